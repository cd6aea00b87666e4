"""Tests the toggles and stages panels in the real window with the mouse, in front of a pretended engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from splatscope.kernels.ladder import step
from splatscope.kernels.policy import Policy
from splatscope.viewer.figures.stage_times import LEAST
from tests.support.display import Program
from tests.support.places import STILL_LIFE, SUPPORT
from tests.support.window_hands import SCRIPT, Hands

SIZE = (1000, 840)  # the list of presets has room below
WHEEL_NOTCHES = 60  # to try, at most


@pytest.fixture
def hands(display: str) -> Iterator[Hands]:
    arguments = ["--size", f"{SIZE[0]}x{SIZE[1]}", "--backend", "cuda", "--only", "Stages", "Toggles"]
    program = Program(display, SCRIPT, arguments)
    try:
        hands = Hands(program)
        program.wait_for("the panels", lambda facts: facts["places"]["preset"] and facts["places"]["start"])
        yield hands
    finally:
        program.end()


def click(hands: Hands, name: str) -> list[int]:
    """Scrolls to a control and clicks on it; returns its place."""
    for _ in range(WHEEL_NOTCHES):
        places = hands.program.facts["places"]
        place, order = places[name], list(places)
        if place and place[1] > 0 and place[1] + place[3] < SIZE[1] - 60:
            hands.click(place[0] + min(20, place[2] // 2), place[1] + place[3] // 2)
            return place
        hands.move(SIZE[0] - 6, SIZE[1] // 2)
        first_seen = next(k for k, other in enumerate(order) if places[other])
        is_above = order.index(name) < first_seen or (place and place[1] <= 0)
        hands.program.xdotool("click", "--repeat", 1 if place else 4, "--delay", 40, 4 if is_above else 5)
        hands.rest(0.25)
    raise AssertionError(f"{name} cannot be reached")


def test_a_click_on_a_toggle_takes_effect_once_it_is_compiled_and_pictures_go_on(hands: Hands) -> None:
    wanted = Policy().with_value("bin", "bounds", "circle3s")
    choose(hands, "bin.bounds", 1)
    hands.program.wait_for("the wish", lambda facts: facts["policy"] == repr(wanted))
    before = hands.program.facts
    assert before["shown policy"] == repr(Policy())
    hands.drag(1, 60, 0)
    hands.program.wait_for(
        "a picture meanwhile, or after it",
        lambda facts: facts["eye"] != before["eye"] and facts["requests"] > before["requests"],
    )
    hands.program.wait_for("the new setting on the screen", lambda facts: facts["shown policy"] == repr(wanted))


def choose(hands: Hands, name: str, row: int) -> None:
    """Opens a choice and clicks on a row of its list."""
    left, top, _, height = click(hands, name)
    hands.click(left + 20, top + height + 8 + round((row - 0.5) * 23))


def test_a_preset_sets_all_and_what_a_toggle_needs_is_not_to_be_clicked_before(hands: Hands) -> None:
    choose(hands, "preset", 1)
    hands.program.wait_for("the first preset", lambda facts: facts["policy"] == repr(step("s00")))
    hands.program.wait_for("it on the screen", lambda facts: facts["shown policy"] == repr(step("s00")))
    click(hands, "blend.cmask")
    hands.rest(0.5)
    assert hands.program.facts["policy"] == repr(step("s00")), "it needs compaction, and is grey"
    choose(hands, "blend.subtile", 3)
    hands.program.wait_for("the masks", lambda facts: "subtile='ellipse'" in facts["policy"])
    click(hands, "blend.compaction")
    click(hands, "blend.cmask")
    hands.program.wait_for("both", lambda facts: "cmask='on'" in facts["policy"])
    place = click(hands, "blend.compaction")
    hands.program.wait_for("what needs it to go too", lambda facts: "cmask='off'" in facts["policy"])
    assert "compaction='off'" in hands.program.facts["policy"]
    hands.rest(0.3)
    assert hands.program.facts["places"]["blend.compaction"] == place, "the note above has its place"


def test_a_measurement_is_asked_for_shown_and_saved_and_a_second_recorded(hands: Hands) -> None:
    before = click(hands, "save"), click(hands, "record")
    hands.program.wait_for("recording", lambda facts: "RecordTrace" in facts["commands"][-1])
    assert not any("SaveComparison" in command for command in hands.program.facts["commands"]), "there is none yet"
    click(hands, "start")
    facts = hands.program.wait_for("the measurement", lambda facts: "Compare(" in str(facts["commands"]))
    assert "names=('s00', 'best')" in facts["commands"][-1]
    width, height = facts["size"]
    assert f"width={width}, height={height}" in facts["commands"][-1], "the view as it is, at full resolution"
    hands.program.wait_for("its end", lambda facts: facts["shown"]["measured"])
    hands.rest(0.3)
    assert (click(hands, "save"), hands.program.facts["places"]["record"]) == before, (
        "what is pressed stays where it is"
    )
    hands.program.wait_for("saving", lambda facts: "SaveComparison" in facts["commands"][-1])


def test_a_view_that_is_still_is_drawn_until_figures_hold_and_again_after_a_toggle(display: str) -> None:
    arguments = [str(STILL_LIFE), "--only", "Stages", "Toggles"]
    program = Program(display, SUPPORT / "real_window.py", arguments)
    try:
        program.wait_for("frames of the first view", lambda facts: (facts["shown"]["pictures"] or 0) >= LEAST)
        program.wait_for("the panel", lambda facts: facts["places"]["preset"])
        left, top, _, height = program.facts["places"]["preset"]
        window = program.find_window("splatscope")
        for x, y in ((left + 20, top + 12), (left + 20, top + height + 20)):
            program.xdotool("mousemove", "--window", window, x, y, "click", 1)
            program.rest(0.4)
        program.wait_for("the preset", lambda facts: facts["shown"]["preset"] == "s00")
        first = program.facts["pictures"]
        program.wait_for("more pictures", lambda facts: facts["pictures"] > first + LEAST)
        program.wait_for("figures of them", lambda facts: (facts["shown"]["pictures"] or 0) >= LEAST)
    finally:
        program.end()


def test_the_tooltip_of_a_hidden_control_does_not_show_with_that_of_the_one_before_it(display: str) -> None:
    program = Program(display, SUPPORT / "tooltip_window.py")
    try:
        window = program.find_window("splatscope")
        for name in ("shown", "disabled"):
            left, top = program.wait_for("buttons", lambda facts: facts["places"]["disabled"][0])["places"][name]
            for nudge in (2, 0):
                program.xdotool("mousemove", "--window", window, left + 8 + nudge, top + 8)
            program.wait_for("its tooltip", lambda facts, name=name: name in facts["seen"])
            program.rest(0.5)
            assert program.facts["seen"] == [name]
    finally:
        program.end()
