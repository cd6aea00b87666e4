"""Tests a run in the real window on a real engine: clicked on in every state, closed in the middle, gone wrong."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from splatscope.assets.splats.ply import read_ply
from splatscope.kernels.backends import make_backend
from splatscope.training.files.checkpoint import checkpoints, newest_checkpoint
from tests.support.display import Program
from tests.support.places import SUPPORT
from tests.support.small_capture import write_blender_set

SCRIPT = SUPPORT / "real_window.py"
CLIENT_MESSAGE = 33  # of X


class Run:
    """Holds a window on a run that has not begun."""

    def __init__(self, display: str, capture: Path, out: Path, *options: object) -> None:
        words = [capture, "--out", out, "--only", "Training", "Log", *options]
        self.out = out
        self.program = Program(display, SCRIPT, [str(word) for word in words])
        self.window = self.program.find_window("splatscope")
        self.wait("the form", lambda facts: facts["state"] == "ready" and facts["places"]["start"], 90)

    @property
    def facts(self) -> dict[str, Any]:
        return self.program.facts

    def wait(self, what: str, holds: Callable[[dict[str, Any]], Any], seconds: float = 60) -> dict[str, Any]:
        return self.program.wait_for(what, lambda facts: bool(holds(facts)), seconds)

    def wait_for_state(self, state: str) -> dict[str, Any]:
        return self.wait(state, lambda facts: facts["state"] == state)

    def place(self, name: str) -> tuple[int, int]:
        """Returns the middle of a control, once it is there."""
        left, top, width, height = self.wait(name, lambda facts: facts["places"].get(name))["places"][name]
        return left + width // 2, top + height // 2

    def press(self, name: str, times: int = 1, every: float = 0.2) -> None:
        """Clicks where the control is at first, whatever is there later."""
        x, y = self.place(name)
        for nudge in (2, 0):  # X tells of no movement if the mouse is where it is sent
            self.program.xdotool("mousemove", "--window", self.window, x + nudge, y)
        self.program.rest(0.05)
        for _ in range(times):
            self.program.xdotool("click", 1)
            time.sleep(every)

    def ask_to_close(self) -> None:
        """Asks the window to close, as a window manager's close button does."""
        x = ctypes.CDLL("libX11.so.6")
        x.XOpenDisplay.restype = ctypes.c_void_p
        x.XInternAtom.restype = ctypes.c_ulong
        display = ctypes.c_void_p(x.XOpenDisplay(self.program.display.encode()))
        protocols, delete = (x.XInternAtom(display, name, 0) for name in (b"WM_PROTOCOLS", b"WM_DELETE_WINDOW"))
        event = (ctypes.c_long * 24)(CLIENT_MESSAGE, 0, 0, 0, int(self.window), protocols, 32, delete)
        x.XSendEvent(display, ctypes.c_ulong(int(self.window)), 0, ctypes.c_long(0), ctypes.byref(event))
        x.XCloseDisplay(display)

    @property
    def buttons(self) -> set[str]:
        """Returns the buttons that the run's row has."""
        names = ("start", "resume", "pause", "step", "stop", "reset")
        return {name for name in names if self.facts["places"].get(name)}


@pytest.fixture(scope="module")
def capture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures") / "set"
    write_blender_set(folder)
    make_backend("cpu").warm_up(training=True)  # or the first window would wait for its kernels
    return folder


@pytest.fixture
def begin(display: str, capture_folder: Path, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Opens the window; ends it afterwards."""
    runs: list[Run] = []

    def begun(*options: object) -> Run:
        runs.append(Run(display, capture_folder, tmp_path / "run", *options))
        return runs[-1]

    yield begun
    for run in runs:
        run.program.end()


def test_a_number_that_is_not_finite_is_named_within_one_step_and_a_click_goes_back(begin: Any) -> None:
    run = begin("--poison", 9, "--checkpoint", 5)
    run.press("start")
    facts = run.wait("the offer", lambda facts: facts["places"].get("back"))
    assert (facts["state"], facts["iteration"]) == ("paused", 8)
    assert "at iteration 9: the gradient of sh on " in facts["trouble"]
    assert ".png is not a finite number for 1 splat, first 5." in facts["trouble"]
    assert not run.buttons
    run.press("back", times=3)  # an impatient hand does not go back further, nor to the beginning
    facts = run.wait("the run's own buttons", lambda facts: facts["places"]["resume"])
    assert (facts["state"], facts["iteration"], facts["trouble"]) == ("paused", 5, "")
    run.press("resume")
    run.wait("going on past it", lambda facts: facts["iteration"] > 20)
    assert len(run.facts["errors"]) == 1


def test_each_state_has_its_buttons_and_a_second_click_does_no_harm(begin: Any, tmp_path: Path) -> None:
    compiled = tmp_path / "compiled"
    run = begin("--compiling", compiled)
    assert run.buttons == {"start", "step"}
    run.press("step", times=4)  # kernels compile meanwhile, and where Step was nothing else may be
    run.program.rest(0.1)
    compiled.touch()
    facts = run.wait("the pause after it", lambda facts: facts["state"] == "paused" and facts["places"]["resume"])
    assert facts["iteration"] == 1
    assert run.buttons == {"resume", "step", "stop", "reset"}
    for iteration in (2, 3):
        run.press("step")
        run.wait("a step more", lambda facts, n=iteration: (facts["state"], facts["iteration"]) == ("paused", n))
        run.wait("its buttons", lambda facts: facts["places"]["step"])
    run.press("run")
    run.wait_for_state("running")
    run.press("pause")
    run.wait_for_state("paused")
    compiled.unlink()
    run.press("reset")
    run.press("throw", times=2)
    run.wait("the beginning", lambda facts: (facts["state"], facts["iteration"]) == ("ready", 0))
    run.program.rest(0.5)  # what has just become Start does not count as pressed
    run.press("start")  # and kernels compile once more
    run.press("pause", times=3)
    assert run.facts["iteration"] == 0
    assert run.buttons == {"pause", "stop"}
    compiled.touch()
    run.wait_for_state("paused")
    run.press("resume")
    run.press("stop", times=2)
    facts = run.wait("the end", lambda facts: facts["state"] == "stopped" and facts["places"]["reset"])
    assert run.buttons == {"resume", "step", "reset"}
    stopped_at = facts["iteration"]
    run.press("resume")
    run.wait("going on", lambda facts: facts["iteration"] > stopped_at)
    run.press("stop")
    facts = run.wait_for_state("stopped")
    (began_anew,) = (said for said in facts["infos"] if "at its beginning again" in said)
    out = Path(began_anew.partition("write to ")[2].rstrip("."))
    assert newest_checkpoint(out)[1].iteration == facts["iteration"]
    assert not facts["errors"]


def test_closing_a_live_run_asks_in_front_of_everything_and_each_answer_is_what_it_says(begin: Any) -> None:
    run = begin()
    run.press("start")
    run.wait("steps", lambda facts: facts["iteration"] > 3)
    run.ask_to_close()
    run.place("cancel")
    run.program.xdotool("key", "ctrl+s")  # a file to be chosen opens over it
    run.program.rest(0.8)
    for answer in ("cancel", "Escape"):
        reached = run.facts["iteration"]
        if answer == "Escape":
            run.ask_to_close()
            run.place("cancel")
            run.program.xdotool("key", answer)
        else:
            run.press(answer)
        run.wait("no question", lambda facts: not facts["places"]["cancel"])
        run.wait("going on", lambda facts, reached=reached: facts["iteration"] > reached + 3)
        assert run.program.process.poll() is None
    run.program.xdotool("key", "alt+F4")
    run.press("save and close")
    assert run.program.process.wait(120) == 0
    *_, iteration = checkpoints(run.out)  # earlier ones are those of its first seconds
    assert newest_checkpoint(run.out)[1].iteration == iteration
    assert iteration >= reached
    assert read_ply(run.out / "point_cloud" / f"iteration_{iteration}" / "point_cloud.ply").count > 0
    assert not list(run.out.rglob(".*")), "nothing half-written is left"


def test_closing_without_saving_leaves_the_run_as_its_newest_checkpoint_has_it(begin: Any) -> None:
    run = begin("--checkpoint", 5)
    run.press("start")
    run.wait("a checkpoint", lambda facts: facts["iteration"] > 6)
    run.ask_to_close()
    run.place("close unsaved")
    facts = run.wait_for_state("paused")
    run.program.xdotool("key", "space")  # not behind the question
    run.program.rest(0.6)
    assert run.facts["iteration"] == facts["iteration"], "it waits for the answer"
    run.press("close unsaved")
    assert run.program.process.wait(120) == 0
    assert not (run.out / "point_cloud").exists()
    assert 0 < newest_checkpoint(run.out)[1].iteration <= facts["iteration"]


def test_splats_are_saved_in_the_folder_of_their_run_and_next_time_where_they_were_saved_last(
    begin: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("f")  # short, as it is typed
    run = begin()
    run.press("step")
    run.wait_for_state("paused")

    def save(*typed: str) -> None:
        run.program.xdotool("key", "ctrl+s")
        run.program.rest(0.8)
        for text in typed:
            run.program.xdotool("type", "--delay", 30, text)
        run.program.xdotool("key", "Return")

    save()
    run.wait("the proposed place", lambda facts: f"Saved {run.out / 'set-1.ply'}." in facts["infos"])
    assert read_ply(run.out / "set-1.ply").count > 0
    save(str(elsewhere / "mine"))
    run.wait("what was typed over it", lambda facts: f"Saved {elsewhere / 'mine.ply'}." in facts["infos"])
    save()
    run.wait("the same place", lambda facts: f"Saved {elsewhere / 'set-1.ply'}." in facts["infos"])


def test_a_window_in_which_nothing_runs_closes_at_once_with_a_file_being_chosen(begin: Any) -> None:
    run = begin()
    run.program.xdotool("key", "ctrl+s")
    run.program.rest(0.6)
    run.ask_to_close()
    assert run.program.process.wait(120) == 0
    assert not run.out.exists()
