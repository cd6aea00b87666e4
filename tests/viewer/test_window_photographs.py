"""Tests photographs in the real window: compared, chosen, clicked on; in front of a pretended engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from splatscope.kernels.types import Camera
from splatscope.viewer.drawing.style import MENU_HEIGHT
from splatscope.viewer.figures.frustums import apexes, depth_for
from splatscope.viewer.palette import ACCENT
from tests.support.display import Program
from tests.support.fake_engine import SCENE
from tests.support.window_hands import SCRIPT, SIZE, Hands, near
from tests.viewer.test_window import CONFIG

ORANGE = (230, 120, 20)  # the pretended photograph
BLUE = (20, 120, 230)  # the pretended error map


@pytest.fixture(scope="module", params=["gl", "float"])
def open_window(display: str, request: pytest.FixtureRequest) -> Iterator[Hands]:
    slow = ["--float-texture"] if request.param == "float" else []
    program = Program(display, SCRIPT, ["--size", f"{SIZE[0]}x{SIZE[1]}", *slow])
    yield Hands(program)
    program.end()


@pytest.fixture
def hands(open_window: Hands) -> Hands:
    open_window.home()
    return open_window


def share_of(hands: Hands, color: tuple[int, int, int], columns: slice = slice(60, 560)) -> float:
    """Returns the share of the viewport's middle with exactly this colour."""
    hands.rest(0.1)
    middle = hands.picture()[150:500, columns]
    return float((np.abs(middle.astype(int) - color).max(axis=2) <= 2).mean())


def wished(facts: dict[str, Any]) -> object:
    return facts["photograph"]


def test_g_lays_the_photograph_over_the_picture_until_the_view_moves_away(hands: Hands) -> None:
    plain = hands.picture()[150:500, 60:560].astype(float)
    hands.keys("g")
    facts = hands.settled(wished)
    assert facts["photograph"] == [0, None]
    hands.rest(0.1)
    over = hands.picture()[150:500, 60:560].astype(float)
    assert np.abs(over - (plain + ORANGE) / 2).max() < 3, "half of each"
    hands.drag(1, 60, 0)
    hands.settled(lambda facts: facts["photograph"] is None)
    assert share_of(hands, ORANGE) == 0
    hands.keys("Right")
    facts = hands.settled(wished)
    assert facts["photograph"] == [0, None], "back to where it was, and compared again"
    hands.keys("g")
    hands.settled(lambda facts: facts["photograph"] is None)


def test_v_splits_the_view_at_a_line_that_the_mouse_drags_and_nothing_else_moves(hands: Hands) -> None:
    hands.keys("v")
    before = hands.settled(wished)
    width = before["size"][0]
    middle = width // 2
    assert share_of(hands, ORANGE, slice(60, middle - 10)) == 1
    assert share_of(hands, ORANGE, slice(middle + 10, 560)) == 0
    hands.move(middle, 300)
    hands.program.xdotool("mousedown", 1)
    hands.rest(0.2)
    for _ in range(4):
        hands.program.xdotool("mousemove_relative", "--", -30, 3)
        time.sleep(0.05)
    hands.program.xdotool("mouseup", 1)
    assert share_of(hands, ORANGE, slice(60, middle - 130)) == 1
    assert share_of(hands, ORANGE, slice(middle - 110, 560)) == 0
    assert hands.program.facts["eye"] == before["eye"]
    assert hands.program.facts["requests"] == before["requests"], "the line needs no new picture"
    hands.keys("Escape")
    hands.settled(lambda facts: facts["photograph"] is None)


def test_the_error_map_comes_from_the_menu_and_the_heatmap_steps_aside(hands: Hands) -> None:
    hands.keys("Tab")
    hands.settled(lambda facts: facts["overlay"] == "tiles")
    hands.click(60, 13)  # View
    hands.click(90, 180)  # Error map
    facts = hands.settled(wished)
    assert facts["photograph"][1] == pytest.approx(0.25)
    assert facts["overlay"] == "none"
    assert share_of(hands, BLUE, slice(200, 560)) == 1
    hands.keys("Escape")
    hands.settled(lambda facts: facts["overlay"] == "tiles")
    hands.keys("Tab")
    hands.settled(lambda facts: facts["overlay"] == "none")


def test_a_click_on_a_small_photograph_goes_there(hands: Hands) -> None:
    hands.keys("c")
    hands.program.wait_for("what is looked at", lambda facts: "LoadThumbnails" in str(facts["commands"][-1:]))
    assert "indices=(0, 1, 2" in hands.program.facts["commands"][-1]
    hands.rest(0.5)
    picture = hands.picture()
    shade = np.argwhere((picture == 40 + 3 * 7).all(axis=2))  # the eighth
    row, column = shade[len(shade) // 2]
    hands.click(int(column), int(row))
    hands.settled(lambda facts: near(facts["eye"], SCENE.cameras[7].camera.position))
    hands.keys("c", "c")
    assert near(hands.settled()["eye"], SCENE.cameras[7].camera.position)


def test_a_click_on_a_drawn_camera_goes_there(hands: Hands) -> None:
    hands.drag(1, 10, 120)
    for _ in range(6):
        hands.program.xdotool("click", 5)  # away from the scene, until cameras are in view
    facts = hands.settled(lambda facts: facts["eye"] != hands.start["eye"])
    plain = count_of(hands, ACCENT)
    hands.keys("k")
    hands.rest(0.1)
    assert count_of(hands, ACCENT) > plain + 50
    camera = Camera(**facts["camera"])
    eyes = apexes(SCENE.cameras, camera, depth_for(SCENE.cameras, SCENE.extent))
    spots = {k: eye for k, eye in eyes.items() if 60 < eye[0] < 540 and 60 < eye[1] < 480}

    def apart(k: int) -> float:
        return min(np.hypot(*np.subtract(spots[k], eye)) for other, eye in eyes.items() if other != k)

    target = max(spots, key=apart)
    hands.move(round(spots[target][0]), round(spots[target][1]) + MENU_HEIGHT)
    hands.program.wait_for("its photograph", lambda facts: f"indices=({target},)" in str(facts["commands"][-1:]))
    hands.rest(0.8)
    small = (hands.picture()[40:560, :590] == 40 + 3 * target).all(axis=2)
    assert small.sum() > 3000, "beside it, small"
    hands.click(round(spots[target][0]), round(spots[target][1]) + MENU_HEIGHT)
    hands.settled(lambda facts: near(facts["eye"], SCENE.cameras[target].camera.position))
    hands.keys("k")


def count_of(hands: Hands, color: tuple[int, ...]) -> int:
    """Returns pixels of the viewport of about that colour's hue."""
    view = hands.picture()[40:560, :590].astype(int)
    return int((view[..., 2] - view[..., 0] > 0.5 * (color[2] - color[0])).sum())


def test_text_and_controls_grow_at_once_and_the_view_stays(hands: Hands) -> None:
    before = hands.settled()
    hands.click(60, 13)
    hands.click(90, 317)  # Size of text and controls
    hands.click(340, 317 + 22 * 3)  # 125 %
    dock = min(round(1.25 * 352), SIZE[0] // 2)
    facts = hands.program.wait_for("a smaller viewport", lambda facts: facts["size"][0] == SIZE[0] - dock)
    hands.rest(0.5)
    assert near(facts["eye"], before["eye"])
    hands.keys("Tab")
    hands.program.wait_for("the keys to work still, once", lambda facts: facts["overlay"] == "tiles")
    wheel = hands.program.facts["eye"]
    hands.move(200, 300)
    hands.program.xdotool("click", 4)
    hands.program.wait_for("the wheel", lambda facts: facts["eye"] != wheel)
    hands.rest(0.5)
    moved = np.linalg.norm(np.subtract(hands.program.facts["eye"], wheel))
    assert 0.5 < moved / (CONFIG.zoom_step * 4.2) < 1.5, "one notch, not one for every size there was"
