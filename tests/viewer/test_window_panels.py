"""Tests the dock in the real window: menus close, the keyboard comes back, the log follows, choices stay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from splatscope.viewer.drawing import widgets
from splatscope.viewer.drawing.style import MENU_HEIGHT
from tests.support.display import Program
from tests.support.window_hands import SCRIPT, Hands

WIDTH, HEIGHT = 1100, 700
VIEW_MENU, UI_SCALE, SCALE_125 = (60, 13), (70, 318), (340, 384)  # px in the window


@pytest.fixture
def hands(display: str) -> Iterator[Hands]:
    program = Program(display, SCRIPT, ["--size", f"{WIDTH}x{HEIGHT}", "--only", "Training", "Photographs", "Log"])
    try:
        hands = Hands(program)
        program.wait_for("the form", lambda facts: facts["places"].get("recipe"))
        yield hands
    finally:
        program.end()


def middle(hands: Hands, name: str) -> tuple[int, int]:
    left, top, width, height = hands.program.wait_for(name, lambda facts: facts["places"].get(name))["places"][name]
    return left + width // 2, top + height // 2


def dock(hands: Hands) -> np.ndarray:
    """Returns the right part of the window, without the mouse."""
    hands.move(300, 300)
    return hands.picture()[MENU_HEIGHT:, hands.full_size()[0] :]


def test_dropdowns_menus_and_the_log_do_what_people_expect_and_a_new_scale_keeps_it_all(hands: Hands) -> None:
    program = hands.program
    before = dock(hands)
    hands.click(*middle(hands, "recipe"))
    hands.rest(0.2)
    assert not np.array_equal(dock(hands), before), "the dropdown is open"
    hands.keys("Escape")
    hands.rest(0.2)
    assert np.array_equal(dock(hands), before), "Esc closes it"

    x, y = middle(hands, "recipe")
    hands.click(x, y)
    hands.click(x, y + 44)
    program.wait_for("a choice", lambda facts: "SetRecipe" in facts["commands"][-1])
    hands.move(300, 300)
    for overlay in ("tiles", "none"):
        hands.keys("Tab")
        hands.settled(lambda facts, overlay=overlay: facts["overlay"] == overlay)
    assert np.array_equal(dock(hands), before), "Tab is for the picture"

    hands.keys("v")
    hands.settled(lambda facts: facts["photograph"])
    plain = hands.picture()[:400, :400]
    hands.click(*VIEW_MENU)
    hands.rest(0.2)
    assert not np.array_equal(hands.picture()[:400, :400], plain), "the menu is open"
    hands.keys("Escape")
    hands.move(300, 300)
    hands.rest(0.2)
    assert np.array_equal(hands.picture()[:400, :400], plain), "Esc closes the menu and nothing else"

    hands.click(*middle(hands, "Photographs"))
    opened = ["Training", "Log"]
    program.wait_for("a folded section", lambda facts: facts["shown"]["open"] == opened)
    hands.keys(*["p"] * 20)
    program.wait_for("the newest line", lambda facts: 0 < facts["shown"]["log"][1] == facts["shown"]["log"][0])
    x, y = middle(hands, "Log")
    hands.move(x, y + 120)
    program.xdotool("click", "--repeat", 3, 4)
    up = program.wait_for("an older line", lambda facts: facts["shown"]["log"][0] < facts["shown"]["log"][1])
    hands.move(300, 300)
    hands.keys("p")
    most = up["shown"]["log"][1]
    after = program.wait_for("a line more", lambda facts: facts["shown"]["log"][1] > most)
    hands.rest(0.3)
    assert program.facts["shown"]["log"][0] == after["shown"]["log"][0] < most, "who reads is not disturbed"

    hands.click(*VIEW_MENU)
    hands.move(*UI_SCALE)
    hands.rest(0.3)
    hands.click(*SCALE_125)
    program.wait_for("another scale", lambda facts: facts["shown"]["scale"] == 1.25)
    hands.move(300, 300)
    hands.rest(0.5)
    assert program.facts["shown"]["open"] == opened
    line = round(0.5 * program.facts["size"][0])  # between photograph and picture
    row = hands.picture()[round(1.25 * (MENU_HEIGHT + 12)), line - 200 : line - 10]
    chip = (row > 4).any(axis=1).sum()  # on a black sky
    assert 80 < chip < 130, "the word has room"


def test_lines_break_between_words_and_only_where_there_is_no_other_way_within_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(widgets, "text_width", lambda text, font: 10.0 * len(text))
    widgets.wrap_text.cache_clear()
    try:
        assert widgets.wrap_text("Opened with 9,262 splats, 0.25 of all.", 120, 0).split("\n") == [
            "Opened with",
            "9,262",
            "splats, 0.25",
            "of all.",
        ]
        assert widgets.wrap_text("in /data/captures/garden now", 150, 0) == "in\n/data/captures/\ngarden now"
        assert widgets.wrap_text("abcdefghij\n\nk", 40, 0) == "abcd\nefgh\nij\n\nk"
    finally:
        widgets.wrap_text.cache_clear()
