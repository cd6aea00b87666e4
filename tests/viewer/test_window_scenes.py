"""Tests panels in the real window: no figures of an earlier scene remain, and none is cut in a narrow dock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.display import Program
from tests.support.window_hands import SCRIPT, Hands


@pytest.fixture
def open_hands(display: str) -> Iterator[Callable[..., Hands]]:
    """Opens a window of a size with arguments."""
    programs: list[Program] = []

    def open_one(size: str, *arguments: str) -> Hands:
        programs.append(Program(display, SCRIPT, ["--size", size, *arguments]))
        return Hands(programs[-1])

    yield open_one
    for program in programs:
        program.end()


def test_another_scene_begins_the_stages_and_run_to_anew_and_a_reset_does_not(
    open_hands: Callable[..., Hands], tmp_path: Path
) -> None:
    hands = open_hands("1000x780", "--only", "Stages", "Training", "--train", "8600", "--state", "paused")
    program = hands.program
    program.wait_for("a target past the run", lambda facts: facts["shown"].get("until") == 9000)
    for _ in range(3):
        hands.drag(1, 60, 20)
    program.wait_for("several pictures", lambda facts: facts["shown"]["pictures"] > 4 and facts["shown"]["steps"])
    hands.settled()
    shown = program.facts["shown"]
    left, top, _, height = program.facts["places"]["reset"]
    hands.click(left + 20, top + height // 2)
    left, top, _, height = program.wait_for("throw", lambda facts: facts["places"].get("throw"))["places"]["throw"]
    hands.click(left + 20, top + height // 2)
    program.wait_for("the reset", lambda facts: facts["iteration"] == 0)
    hands.rest(0.5)
    assert program.facts["shown"]["pictures"] >= shown["pictures"], "the scene is the same"
    assert program.facts["shown"]["until"] == 9000, "and so is what was aimed at"
    (tmp_path / "other.ply").write_bytes(b"ply")
    hands.click(300, 300)
    hands.keys("ctrl+o")
    hands.rest(0.4)
    program.xdotool("type", "--delay", 15, str(tmp_path / "other.ply"))
    hands.keys("Return")
    program.wait_for("the other one", lambda facts: "OpenScene" in facts["commands"][-1])
    program.wait_for("Run to of a run that has not begun", lambda facts: facts["shown"]["until"] == 1000)
    program.wait_for("no steps", lambda facts: facts["shown"]["steps"] is None)
    program.wait_for("its pictures alone", lambda facts: 0 < (facts["shown"]["pictures"] or 0) < shown["pictures"])


@pytest.mark.parametrize(
    ("size", "words"),
    [("1000x700", "Memory 2.1 of 23.5 GiB; run needs up to 40 MiB"), ("500x300", "Memory 2.1 of 23.5 GiB")],
)
def test_a_narrow_bar_says_less_and_no_figure_is_cut(open_hands: Callable[..., Hands], size: str, words: str) -> None:
    hands = open_hands(size, "--only", "Training", "--train", "40", "--state", "paused")
    hands.program.wait_for(words, lambda facts: facts["shown"].get("memory") == words)


def test_what_is_odd_is_said_beside_start_also_of_a_run_that_can_go_on(open_hands: Callable[..., Hands]) -> None:
    for done in ("0", "40"):
        program = open_hands("1000x780", "--only", "Training", "--odd", "--train", done).program
        places = program.wait_for("what is odd", lambda facts: facts["places"].get("odd"))["places"]
        assert bool(places["how long"]) == (done == "0"), "which is asked of a whole run"
