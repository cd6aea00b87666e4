"""Tests output that nobody takes, and signals: how the program ends, however it was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from splatscope.app.lasting_output import LastingOutput
from splatscope.assets.splats.ply import read_ply, write_ply
from splatscope.training.files.checkpoint import newest_checkpoint
from tests.app.test_command_line import few_splats
from tests.support.small_capture import write_blender_set

PROGRAM = [sys.executable, "-m", "splatscope.app"]


def in_shell(line: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Runs a line of a shell. In the line, "$@" stands for the program and these words."""
    command = ["sh", "-c", line, "sh", *PROGRAM, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_file_that_refuses_takes_everything_and_keeps_the_first_reason() -> None:
    read, write = os.pipe()
    file = LastingOutput(os.fdopen(write, "wb", buffering=0))
    assert file.write(b"first") == 5
    assert file.trouble is None
    os.close(read)
    assert file.write(b"second") == 6
    assert isinstance(file.trouble, BrokenPipeError)
    assert file.write(b"third") == 5
    assert not file.isatty()


def test_a_full_pipe_that_does_not_block_is_waited_for() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    file = LastingOutput(os.fdopen(write, "wb", buffering=0))
    with suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    reader = subprocess.Popen(["cat"], stdin=read, stdout=subprocess.PIPE)
    os.close(read)
    assert file.write(b"last") == 4
    file._raw.close()  # pyright: ignore[reportOptionalMemberAccess]
    assert reader.communicate()[0].endswith(b"xlast")
    assert file.trouble is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"$@" >/dev/full', "splatscope: The output cannot be written: No space left on device.\n"),
        ('"$@" >&-', "splatscope: The output cannot be written: it is closed.\n"),
        ('"$@" >&- 2>&-', ""),
        ('("$@"; echo $? >&2) | true', "1\n"),
    ],
)
def test_where_the_output_is_all_status_1_tells_that_it_is_lost(line: str, said: str) -> None:
    ended = in_shell(line, "--help")
    assert ended.stderr == said
    assert ended.returncode == (0 if "|" in line else 1)


def test_where_the_output_is_closed_files_are_written_whole(tmp_path: Path) -> None:
    """Guards against libraries that print into the next file opened."""
    write_ply(tmp_path / "a.ply", few_splats())
    ended = in_shell('"$@" >&- 2>&- <&-', "convert", tmp_path / "a.ply", tmp_path / "b.ply")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert read_ply(tmp_path / "b.ply").count == 50


TOLD = "import os, signal, sys, threading, time; from splatscope.app import main, stop_request; {}; main.main()"
WAIT = "main._run = lambda *_: ({}, os.write(1, b'ready'), time.sleep(60))"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("begun", [True, False])
def test_every_request_to_stop_ends_with_one_sentence_and_status_130(number: signal.Signals, begun: bool) -> None:
    """Stops the program at work, and also before anything but its signal handlers is imported."""
    program = TOLD.format(WAIT.format("stop_request.raise_when_asked()" if begun else "0"))
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.read(5) == "ready"
    process.send_signal(number)
    assert process.communicate(timeout=300) == ("", "splatscope: stopped.\n")
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("happens", "status"),
    [
        ("raise ImportError('half loaded') from None", 130),  # as libraries do that are interrupted while they load
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", 130),  # again, while the first is answered
    ],
)
def test_what_a_library_makes_of_a_request_is_no_traceback(happens: str, status: int) -> None:
    program = (
        "import os, signal, time\nfrom splatscope.app import main, stop_request\n"
        "def run(*_):\n stop_request.raise_when_asked()\n try:\n  os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
        f" except KeyboardInterrupt:\n  {happens}\nmain._run = run\nmain.main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (status, "splatscope: stopped.\n")


def test_a_request_that_python_can_only_print_is_made_again() -> None:
    program = (
        "import os, signal, time\nfrom splatscope.app import main, stop_request\n"
        "class Deaf:\n def __del__(self):\n  os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
        "def run(*_):\n stop_request.raise_when_asked()\n Deaf()\n time.sleep(60)\nmain._run = run\nmain.main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (130, "splatscope: stopped.\n")


def test_a_signal_that_was_ignored_when_the_program_began_stays_ignored() -> None:
    """Imitates `nohup`, which ignores the end of the terminal, and a shell's `&`, which ignores Ctrl-C."""
    program = TOLD.format(
        "main._run = lambda *_: (stop_request.raise_when_asked(), stop_request.StopRequest().__enter__(), "
        "print(*(signal.getsignal(n) == signal.SIG_IGN for n in (1, 2, 15))))"
    )
    line = f'trap \'\' HUP INT; exec "{sys.executable}" -c "$1"'
    ended = subprocess.run(["sh", "-c", line, "sh", program], capture_output=True, text=True, timeout=300)
    assert (ended.stdout, ended.stderr) == ("True True False\n", "")


def test_requests_after_everything_is_said_change_nothing() -> None:
    """Guards against the traceback that Python prints for an interrupt while it shuts down."""
    program = TOLD.format(
        "main._run = lambda *_: threading.Thread(target=lambda: (time.sleep(.3), "
        "[os.kill(os.getpid(), n) for n in (1, 2, 15)], time.sleep(.1))).start()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_terminal_that_goes_unannounced_does_not_end_a_run(tmp_path: Path) -> None:
    """Imitates `disown`, `setsid`, and other ways to ignore the end of the terminal."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    write_blender_set(tmp_path / "set")
    words = ["train", tmp_path / "set", "--headless", "--backend=cpu", "--iterations=60", "--out", tmp_path / "run"]
    process = subprocess.Popen(
        [*PROGRAM, *map(str, words)], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    os.read(ours, 1)
    os.close(ours)
    assert process.wait(120) == 0
    assert newest_checkpoint(tmp_path / "run")[1].iteration == 60
