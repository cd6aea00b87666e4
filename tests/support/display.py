"""Starts a private X display with a window manager, and programs with windows on it. Linux only.

`start_display` needs Xvfb, openbox, xdotool; `Program` runs a script that prints JSON lines and remembers them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from PIL import Image, ImageGrab

from tests.support.places import ROOT

FRAMES = 3  # one takes what was done in, the next answers, the last is on the screen
NEEDED = ("Xvfb", "openbox", "xdotool")


def missing_programs() -> list[str]:
    """Returns the needed programs that are not installed."""
    return [name for name in NEEDED if shutil.which(name) is None]


@contextmanager
def start_server(width: int = 1400, height: int = 900) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Starts Xvfb on a free display; yields it and the display's name, ends it afterwards."""
    read, write = os.pipe()
    screen = f"{width}x{height}x24"
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(write), "-screen", "0", screen, "-nolisten", "tcp"],
        pass_fds=[write],
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    with os.fdopen(read) as pipe:
        name = f":{pipe.readline().strip()}"
    try:
        yield server, name
    finally:
        server.terminate()
        server.wait(60)


@contextmanager
def start_display(width: int = 1400, height: int = 900) -> Iterator[str]:
    """Starts a display with openbox on it; yields its name, ends both afterwards."""
    with start_server(width, height) as (_, name):
        environment = {**os.environ, "DISPLAY": name}
        manager = subprocess.Popen(["openbox"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            ready = ["xdotool", "get_num_desktops"]  # fails until the window manager has said that it is there
            wait_until(lambda: subprocess.run(ready, env=environment, capture_output=True).returncode == 0, "openbox")
            yield name
        finally:
            manager.terminate()
            manager.wait(60)


def wait_until(holds: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    """Polls until `holds()` is true; fails naming `what` if it never is."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain for {what}")
        time.sleep(0.05)


class Program:
    """Runs a Python script on a display; every line it prints is a JSON object, and `facts` merges them. Its stderr
    goes to `said`, or to ours."""

    def __init__(self, display: str, script: Path, arguments: Sequence[str] = (), said: IO[str] | None = None) -> None:
        self.display = display
        self.facts: dict[str, Any] = {}
        self._said = Path(said.name) if said else None
        self._environment = {**os.environ, "DISPLAY": display, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.facts = {**self.facts, **json.loads(line)}

    def wait_for(self, what: str, holds: Callable[[dict[str, Any]], bool], seconds: float = 120.0) -> dict[str, Any]:
        """Waits until the facts satisfy `holds`; fails naming `what` if they never do."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            facts = self.facts
            try:
                if holds(facts):
                    return facts
            except (KeyError, IndexError):  # not there yet
                pass
            if self.process.poll() is not None and not self._reader.is_alive():
                said = self._said.read_text() if self._said else ""
                raise AssertionError(f"the program ended with {self.process.returncode} before: {what}; {facts} {said}")
            time.sleep(0.01)
        raise AssertionError(f"waited {seconds} s in vain for: {what}; {self.facts}")

    def rest(self, seconds: float) -> None:
        """Waits `seconds`, and until the window has drawn what was done to it before, however busy the machine is. Its
        facts must have `window_places.moment()`."""
        done = time.monotonic()
        time.sleep(seconds)
        first = self.wait_for("news", lambda facts: facts["now"] > done)["frames"]
        self.wait_for("frames", lambda facts: facts["frames"] >= first + FRAMES)

    def xdotool(self, *arguments: object) -> str:
        """Runs one xdotool command line and returns what it prints."""
        words = [str(word) for word in arguments]
        return subprocess.run(
            ["xdotool", *words], env=self._environment, check=True, capture_output=True, text=True, timeout=60
        ).stdout.strip()

    def try_xdotool(self, *arguments: object) -> str:
        """Runs one xdotool command line; returns an empty text if xdotool does not find the window."""
        try:
            return self.xdotool(*arguments)
        except subprocess.CalledProcessError:
            return ""

    def find_window(self, title: str, seconds: float = 90.0) -> str:
        """Returns the id of this program's window with that title, once it is shown and has the focus."""
        search = ("search", "--onlyvisible", "--all", "--pid", self.process.pid, "--name", f"^{title}$")
        ended = self.process.poll
        wait_until(lambda: self.try_xdotool(*search) or ended() is not None, f"a window called {title!r}", seconds)
        assert ended() is None, f"the program ended with {ended()} before its window {title!r} was there"
        window = self.try_xdotool(*search).split()[0]
        self.activate(window)
        return window

    def activate(self, window: str) -> None:
        """Gives a window the focus, also one that was minimised."""
        self.xdotool("windowactivate", window)
        wait_until(lambda: self.try_xdotool("getactivewindow") == window, "the focus")
        places = [""]  # a restored window slides to where it was

        def is_at_rest() -> bool:
            time.sleep(0.1)
            places.append(self.xdotool("getwindowgeometry", window))
            return places[-1] == places[-2]

        wait_until(is_at_rest, "the window to be at rest")

    def screenshot(self, window: str) -> Image.Image:
        """Returns what the display shows from the window's upper left corner on; moves the mouse there."""
        self.xdotool("mousemove", "--window", window, 0, 0)
        place = dict(line.split("=") for line in self.xdotool("getmouselocation", "--shell").splitlines())
        picture = ImageGrab.grab(xdisplay=self.display)
        return picture.crop((int(place["X"]), int(place["Y"]), *picture.size))

    def end(self) -> None:
        """Ends the program if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
