"""Tests a live run in the window that is ended from outside: its display goes, or its connection."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from splatscope.app.open_window import DISPLAY_GONE
from splatscope.assets.splats.ply import read_ply
from splatscope.kernels.backends import make_backend
from splatscope.training.files.checkpoint import newest_checkpoint
from tests.support.display import Program, start_server
from tests.support.places import SUPPORT
from tests.support.small_capture import write_blender_set

SCRIPT = SUPPORT / "command_window.py"
LINE = r"{}Training stopped at iteration {:,}; saved {}\. Resume: splatscope train --resume {}\n"


@dataclass
class LiveRun:
    """Holds a program that trains in its window, its X server, its output, and the folder of its run."""

    program: Program
    server: subprocess.Popen[bytes]
    said: Path
    out: Path

    def check_saved(self, begins: str, ends: str) -> None:
        """Checks that the iteration in the one printed sentence is on disk, and that nothing else was printed."""
        iteration = newest_checkpoint(self.out)[1].iteration
        splats = self.out / "point_cloud" / f"iteration_{iteration}" / "point_cloud.ply"
        wanted = LINE.format(begins, iteration, re.escape(str(splats)), re.escape(str(self.out))) + ends
        assert re.fullmatch(wanted, self.said.read_text())
        assert iteration >= self.program.facts["iteration"] > 3
        assert read_ply(splats).count > 0
        assert not list(self.out.rglob(".*")), "nothing half-written is left"


@pytest.fixture(scope="module")
def capture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures") / "set"
    write_blender_set(folder)
    make_backend("cpu").warm_up(training=True)  # or the window would wait for its kernels
    return folder


@pytest.fixture
def run(display: str, capture_folder: Path, tmp_path: Path) -> Iterator[LiveRun]:
    """Starts a run on a display of its own and lets it take some iterations. `display` checks that there can be one."""
    words = ["train", capture_folder, "--out", tmp_path / "run", "--backend", "cpu"]
    with start_server() as (server, name), (tmp_path / "said").open("w") as said:
        program = Program(name, SCRIPT, [str(word) for word in (tmp_path, *words)], said)
        try:
            seen = "steps, and pictures of them"
            program.wait_for(seen, lambda facts: facts["iteration"] > 3 and facts["requests"] > 1)
            yield LiveRun(program, server, tmp_path / "said", tmp_path / "run")
        finally:
            program.end()


def test_when_the_display_goes_the_run_is_saved_and_one_line_says_what_happened_and_how_to_go_on(run: LiveRun) -> None:
    run.server.kill()
    assert run.program.process.wait(120) == 2
    run.check_saved(f"splatscope: {re.escape(DISPLAY_GONE)} ", "")


def test_a_connection_that_breaks_ends_display_and_terminal_at_once_and_the_run_is_saved(run: LiveRun) -> None:
    """Sends the end of the terminal several times, as the kernel and the shell both do."""
    run.server.kill()
    while run.program.process.poll() is None:
        run.program.process.send_signal(signal.SIGHUP)
        time.sleep(0.005)
    if run.program.process.returncode == 2:  # the display was missed first
        run.check_saved(f"splatscope: {re.escape(DISPLAY_GONE)} ", "")
    else:
        assert run.program.process.returncode == 130
        run.check_saved("", r"splatscope: stopped\.\n")
