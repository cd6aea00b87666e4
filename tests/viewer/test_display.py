"""Tests the questions asked of an X server before a window opens, on private servers, as `xvfb-run` starts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from tests.support.display import ROOT, start_server

FIND = "from splatscope.viewer.display import find_display; print(find_display())\n"
# A server that starts anew forgets the names it was told. It does so when the last client leaves: `visit` would be it.
STAYS = (
    FIND
    + """
import ctypes, time
x11 = ctypes.CDLL("libX11.so.6")
x11.XOpenDisplay.restype = ctypes.c_void_p
def visit(only_if_there):
    connection = ctypes.c_void_p(x11.XOpenDisplay(None))
    number = x11.XInternAtom(connection, b"SPLATSCOPE_WAS_HERE", only_if_there)
    x11.XCloseDisplay(connection)
    return number
first = visit(False)
time.sleep(0.5)
print(first > 0, visit(True) == first)
"""
)


def run_on(display: str, script: str) -> list[str]:
    """Runs a Python script on that display and returns its output, line by line."""
    environment = {**os.environ, "DISPLAY": display, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


def test_a_server_without_other_clients_is_kept_from_starting_anew_before_the_window_opens(display: str) -> None:
    with start_server(640, 480) as (_, name):
        screen, stays = run_on(name, STAYS)
    assert "width=640, height=480" in screen
    assert stays == "True True"


def test_a_server_that_turns_the_first_client_away_is_asked_again(display: str) -> None:
    """Imitates a server that restarts: ours refuses the first client, then passes data on to a real server."""
    with start_server(640, 480) as (_, name), socket.socket(socket.AF_UNIX) as front:
        number = int(name[1:]) + 1000
        front.bind(f"\0/tmp/.X11-unix/X{number}")
        front.listen()
        turned_away = []

        def serve() -> None:
            client, _ = front.accept()
            client.close()
            turned_away.append(True)
            client, _ = front.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"/tmp/.X11-unix/X{name[1:]}")
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=pass_on, args=(source, target), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        (screen,) = run_on(f":{number}", FIND)
    assert turned_away
    assert "width=640, height=480" in screen


def pass_on(source: socket.socket, target: socket.socket) -> None:
    """Passes bytes on until the source ends."""
    while piece := source.recv(1 << 16):
        target.sendall(piece)


def test_a_name_that_nobody_answers_gets_one_sentence_within_seconds(display: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_on(":987", FIND)
    assert "DISPLAY names one that does not answer" in caught.value.stderr
