"""Tests the training panel in the real window: recipe, length of the run, reset, and the cost of pictures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from splatscope.viewer.messages.run import TrainingStatus
from splatscope.viewer.panels.status_bar import HEIGHT as STATUS_HEIGHT
from splatscope.viewer.state.run_wording import view_price
from tests.support.display import Program
from tests.support.window_hands import SCRIPT, Hands

SIZE = (1000, 780)


@pytest.fixture
def hands(display: str) -> Iterator[Hands]:
    program = Program(display, SCRIPT, ["--size", f"{SIZE[0]}x{SIZE[1]}", "--only", "Training"])
    try:
        hands = Hands(program)
        program.wait_for("the form", lambda facts: facts["places"].get("iterations"))
        yield hands
    finally:
        program.end()


def press(hands: Hands, name: str) -> None:
    """Clicks on a control once it is there."""
    facts = hands.program.wait_for(name, lambda facts: bool(facts["places"].get(name)))
    left, top, width, height = facts["places"][name]
    hands.click(left + min(20, width // 2), top + height // 2)


def fill(hands: Hands, name: str, text: str) -> None:
    press(hands, name)
    hands.keys("ctrl+a")
    hands.program.xdotool("type", "--delay", 40, text)
    hands.keys("Tab")
    hands.rest(0.3)


def test_a_field_of_the_recipe_takes_effect_when_it_is_left_and_comes_back_if_it_is_refused(hands: Hands) -> None:
    eye = hands.settled()["eye"]
    fill(hands, "iterations", "1200")
    hands.program.wait_for("the change", lambda facts: "changes=(('iterations', '1200'),)" in facts["commands"][-1])
    press(hands, "data.eval")
    hands.program.wait_for("the switch", lambda facts: "(('data.eval', 'true'),)" in facts["commands"][-1])
    fill(hands, "folder", "/tmp/elsewhere")
    hands.program.wait_for("the folder", lambda facts: "out='/tmp/elsewhere'" in facts["commands"][-1])
    press(hands, "back iterations")
    hands.program.wait_for("the way back", lambda facts: "(('iterations', '7000'),)" in facts["commands"][-1])
    places = hands.program.facts["places"]
    fill(hands, "iterations", "0")
    hands.program.wait_for("the refusal", lambda facts: "(('iterations', '0'),)" in facts["commands"][-1])
    hands.program.wait_for("why", lambda facts: facts["shown"]["note"] == "Iterations must be at least 1.")
    assert hands.program.facts["places"]["folder"] == places["folder"], "nothing moves"
    sent = len(hands.program.facts["commands"])
    fill(hands, "iterations", "7000")  # what it shows again, so that nothing changes
    hands.rest(0.5)
    assert len(hands.program.facts["commands"]) == sent
    assert hands.program.facts["eye"] == eye, "typing did not fly"


def test_a_run_stops_where_it_was_told_to_and_is_thrown_away_only_when_asked_twice(hands: Hands) -> None:
    fill(hands, "until", "25")
    press(hands, "run")
    facts = hands.program.wait_for("the pause", lambda facts: facts["state"] == "paused")
    assert facts["iteration"] == 25
    assert not facts["places"]["iterations"], "the recipe is settled"
    press(hands, "reset")
    hands.rest(0.4)
    assert hands.program.facts["iteration"] == 25
    press(hands, "throw")
    hands.program.wait_for("the beginning", lambda facts: facts["state"] == "ready" and facts["iteration"] == 0)
    hands.program.wait_for("the form again", lambda facts: facts["places"]["iterations"])


def test_where_a_run_pauses_can_be_changed_while_it_goes_and_lie_past_its_end(hands: Hands) -> None:
    fill(hands, "until", "4000")
    press(hands, "run")
    hands.program.wait_for("the run", lambda facts: facts["state"] == "running")
    fill(hands, "until", "200")
    press(hands, "run")
    hands.program.wait_for("an earlier pause", lambda facts: (facts["state"], facts["iteration"]) == ("paused", 200))
    fill(hands, "until", "7010")
    press(hands, "run")
    facts = hands.program.wait_for("going on", lambda facts: facts["iteration"] > 200)
    assert facts["commands"][-1] == "StartTraining(until=7010)"


def test_a_double_click_on_pause_pauses_and_on_resume_resumes(hands: Hands) -> None:
    press(hands, "start")
    for name, state in (("pause", "paused"), ("resume", "running"), ("pause", "paused")):
        left, top, width, height = hands.program.wait_for(name, lambda facts, name=name: facts["places"].get(name))[
            "places"
        ][name]
        hands.rest(0.5)
        hands.move(left + width // 2, top + height // 2)
        hands.program.xdotool("click", "--repeat", 2, "--delay", 180, 1)
        hands.program.wait_for(state, lambda facts, state=state: facts["state"] == state)
        hands.rest(0.8)
        assert hands.program.facts["state"] == state, name


def test_a_tooltip_goes_with_the_press_that_it_foretold_until_the_mouse_comes_back(hands: Hands) -> None:
    press(hands, "step")
    left, top, width, height = hands.program.wait_for("reset", lambda facts: facts["places"].get("reset"))["places"][
        "reset"
    ]
    spot = left + width // 2, top + height // 2
    hands.move(*spot)
    hands.program.wait_for("the tooltip", lambda facts: facts["places"]["reset tip"])
    hands.program.xdotool("click", 1)
    hands.program.wait_for("the question", lambda facts: facts["places"]["throw"])
    hands.program.wait_for("no tooltip", lambda facts: not facts["places"]["reset tip"])
    hands.rest(0.8)
    assert not hands.program.facts["places"]["reset tip"], "the mouse rests there"
    hands.keys("Escape")
    hands.program.wait_for("no question", lambda facts: not facts["places"]["throw"])
    hands.move(300, 300)
    hands.move(*spot)
    hands.program.wait_for("the tooltip again", lambda facts: facts["places"]["reset tip"])


def test_a_run_that_paused_by_itself_offers_a_way_back_and_nothing_else_until_that_is_answered(hands: Hands) -> None:
    for answer in ("keep", "back"):
        fill(hands, "until", "13")
        press(hands, "run")
        facts = hands.program.wait_for("the offer", lambda facts: facts["places"].get("back"))
        assert (facts["state"], facts["iteration"]) == ("paused", 12)
        assert not facts["places"]["run"], "first things first"
        press(hands, answer)
        hands.program.wait_for(
            "the run's own buttons, and none else", lambda facts: facts["places"]["run"] and not facts["places"]["back"]
        )
    hands.program.wait_for("an earlier iteration", lambda facts: facts["iteration"] == 10)


def test_in_a_small_window_the_curves_of_a_run_are_in_sight_and_its_buttons_stay_where_they_were(display: str) -> None:
    width, height = 1280, 720
    program = Program(display, SCRIPT, ["--size", f"{width}x{height}", "--only", "Scene", "Training"])
    try:
        hands = Hands(program)
        facts = program.wait_for("the form", lambda facts: facts["places"].get("start"))
        start = facts["places"]["start"]
        press(hands, "start")
        facts = program.wait_for("the curve", lambda facts: facts["places"].get("loss plot"))
        assert facts["places"]["pause"] == start
        program.wait_for("a second curve", lambda facts: facts["places"].get("splats plot"))
        for name in ("loss plot", "splats plot"):
            _, top, _, tall = program.facts["places"][name]
            assert top + tall < height - STATUS_HEIGHT, name
    finally:
        program.end()


def test_the_price_of_looking_on_is_what_the_run_would_do_alone() -> None:
    assert view_price(TrainingStatus(iterations_per_second=30.0, view_cost=0.25)) == "10.0 of 40.0 it/s"
    assert view_price(TrainingStatus(iterations_per_second=0.5, view_cost=0.5)) == "50% of 1.0 it/s"
    assert view_price(TrainingStatus(iterations_per_second=30.0, view_cost=0.0)) == ""
    assert view_price(TrainingStatus(view_cost=0.2)) == ""
