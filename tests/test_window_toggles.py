"""The toggles and stages panels in the real window, used with the mouse, in front of an engine that only pretends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from splatscope.kernels.policy import Policy
from splatscope.kernels.steps import step
from tests.display import Program
from tests.window_hands import SCRIPT, Hands

SIZE = (1000, 780)
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
    click(hands, "blend.compaction")
    hands.program.wait_for("what needs it to go too", lambda facts: "cmask='off'" in facts["policy"])
    assert "compaction='off'" in hands.program.facts["policy"]


def test_a_measurement_is_asked_for_shown_and_saved_and_a_second_recorded(hands: Hands) -> None:
    click(hands, "start")
    facts = hands.program.wait_for("the measurement", lambda facts: "Compare(" in str(facts["commands"]))
    assert "names=('s00', 'best')" in facts["commands"][-1]
    width, height = facts["size"]
    assert f"width={width}, height={height}" in facts["commands"][-1], "the view as it is, at full resolution"
    hands.program.wait_for("its end", lambda facts: bool(facts["places"]["save"]))
    click(hands, "save")
    hands.program.wait_for("saving", lambda facts: "SaveComparison" in facts["commands"][-1])
    click(hands, "record")
    hands.program.wait_for("recording", lambda facts: "RecordTrace" in facts["commands"][-1])
