"""Tests the real window with mouse and keys on a private display, in front of a pretended engine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from splatscope.kernels.types import Camera
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.drawing.style import MENU_HEIGHT
from splatscope.viewer.figures import overlays
from splatscope.viewer.messages.view import ViewRequest
from splatscope.viewer.palette import BAD_DARK
from tests.support.display import Program, wait_until
from tests.support.fake_engine import SCENE, draw
from tests.support.window_hands import SCRIPT, SIZE, Hands, near

CONFIG = WindowConfig()
HOME_DISTANCE = 4.176  # from the first camera to the middle of the scene, along its axis
SAVE_AND_CLOSE = (176, 326)  # px in the window; the button's place when it asks
PATH_BOX = (760, 48 + MENU_HEIGHT)  # px in the window


@pytest.fixture
def hands(open_window: Hands) -> Hands:
    open_window.home()
    return open_window


def pivot(facts: dict[str, Any], distance: float = HOME_DISTANCE) -> np.ndarray:
    return np.array(facts["eye"]) + distance * np.array(facts["forward"])


def test_a_drag_orbits_by_the_distance_moved_and_keeps_the_pivot(hands: Hands) -> None:
    before = hands.start
    hands.drag(1, 100, 0)
    after = hands.settled(lambda facts: facts["eye"] != before["eye"])
    assert near(pivot(before), pivot(after))
    heading = [np.degrees(np.arctan2(facts["forward"][0], facts["forward"][2])) for facts in (before, after)]
    assert heading[1] - heading[0] == pytest.approx(100 * CONFIG.orbit_speed, abs=0.5)


def test_a_right_drag_pans_without_turning_even_if_the_left_button_joins_in(hands: Hands) -> None:
    before = hands.start
    hands.move(300, 300)
    hands.program.xdotool("mousedown", 3)
    hands.rest(0.2)
    hands.program.xdotool("mousedown", 1)
    hands.program.xdotool("mousemove_relative", 80, 40)
    hands.rest(0.2)
    hands.program.xdotool("mouseup", 1)
    hands.program.xdotool("mouseup", 3)
    after = hands.settled(lambda facts: facts["eye"] != before["eye"])
    assert near(before["forward"], after["forward"])
    moved = np.linalg.norm(np.array(after["eye"]) - before["eye"])
    assert moved == pytest.approx(np.hypot(80, 40) * HOME_DISTANCE / before["focal"], rel=0.03)


def test_a_drag_that_starts_in_the_panels_does_not_move_the_view(hands: Hands) -> None:
    before = hands.start
    hands.move(800, 130)
    hands.program.xdotool("mousedown", 1)
    hands.program.xdotool("mousemove_relative", "--", -400, 60)
    hands.rest(0.3)
    hands.program.xdotool("mouseup", 1)
    hands.rest(0.3)
    assert hands.program.facts["eye"] == before["eye"]


def test_the_wheel_moves_towards_the_cursor(hands: Hands) -> None:
    before = hands.start
    hands.move(300, 305)
    for _ in range(3):
        hands.program.xdotool("click", 4)
    after = hands.settled(lambda facts: facts["eye"] != before["eye"])
    assert near(before["forward"], after["forward"])
    left = HOME_DISTANCE * (1 - CONFIG.zoom_step) ** 3
    assert np.array(after["eye"]) @ after["forward"] - np.array(before["eye"]) @ before["forward"] == pytest.approx(
        HOME_DISTANCE - left, rel=1e-3
    )


def test_w_flies_forward_but_not_while_a_path_is_typed(hands: Hands) -> None:
    before = hands.start
    hands.program.xdotool("keydown", "w")
    hands.rest(0.5)
    hands.program.xdotool("keyup", "w")
    flown = hands.settled(lambda facts: facts["eye"] != before["eye"])
    step = np.array(flown["eye"]) - before["eye"]
    assert near(step / np.linalg.norm(step), before["forward"], within=1e-3)
    hands.click(*PATH_BOX)
    hands.keys("w", "w", "p", "n", "Left")
    hands.rest(0.4)
    facts = hands.program.facts
    assert facts["eye"] == flown["eye"]
    assert facts["commands"] == flown["commands"]
    hands.keys("ctrl+a", "BackSpace")


def test_keys_work_after_a_button_of_the_panels_was_clicked(hands: Hands) -> None:
    before = hands.start
    hands.click(800, 208 + MENU_HEIGHT)
    hands.keys("Tab")
    hands.settled(lambda facts: facts["overlay"] == "tiles")
    hands.keys("Tab")
    hands.settled(lambda facts: facts["overlay"] == "none")
    hands.program.xdotool("keydown", "e")
    hands.rest(0.3)
    hands.program.xdotool("keyup", "e")
    after = hands.settled(lambda facts: facts["eye"] != before["eye"])
    assert after["eye"][1] < before["eye"][1]


def test_a_key_held_while_the_window_loses_the_focus_does_not_stick(hands: Hands, display: str) -> None:
    hands.program.xdotool("keydown", "w")
    hands.rest(0.2)
    other = Program(display, SCRIPT, ["--empty", "--size", "400x300"])
    try:
        other.wait_for("the other window", lambda facts: "ticks" in facts)
        wait_until(lambda: hands.program.try_xdotool("getactivewindow") != hands.window, "the focus to go")
        hands.program.xdotool("keyup", "w")
    finally:
        other.end()
    hands.program.activate(hands.window)
    still = hands.settled()
    hands.rest(0.5)
    assert hands.program.facts["eye"] == still["eye"]


def test_arrow_keys_step_through_the_training_cameras_and_wrap(hands: Hands) -> None:
    for key, index in (("Right", 1), ("Left", 0), ("Left", len(SCENE.cameras) - 1)):
        hands.keys(key)
        camera = SCENE.cameras[index].camera
        hands.settled(lambda facts, eye=camera.position: near(facts["eye"], eye))


def test_a_photograph_fits_the_viewport_whole_with_its_own_intrinsics(hands: Hands) -> None:
    facts = hands.start
    photo, (width, height) = SCENE.cameras[0].camera, facts["size"]
    scale = min(width / photo.width, height / photo.height)
    assert facts["focal"] == pytest.approx(scale * photo.fx)
    assert facts["camera"]["cx"] - width / 2 == pytest.approx(scale * (photo.cx - photo.width / 2))


def test_the_screen_shows_the_picture_pixel_by_pixel(hands: Hands) -> None:
    assert_shown_exactly(hands)


def test_the_fallback_texture_shows_the_same_pixels(display: str) -> None:
    program = Program(display, SCRIPT, ["--size", f"{SIZE[0]}x{SIZE[1]}", "--float-texture"])
    try:
        hands = Hands(program)
        hands.home()
        assert_shown_exactly(hands)
        program.xdotool("windowsize", hands.window, 900, 600)
        hands.settled()
        hands.home()
        assert_shown_exactly(hands)
    finally:
        program.end()


def assert_shown_exactly(hands: Hands) -> None:
    """Compares the upper half of the viewport, where nothing lies over the picture, after leaving the photograph."""
    hands.drag(1, 50, 20)
    facts = hands.settled(lambda facts: facts["camera"]["cx"] > 0)
    hands.rest(0.3)
    camera = facts["camera"]
    expected = overlays.picture_rgba(draw(ViewRequest(Camera(**camera))).image)[..., :3]
    rows = camera["height"] // 2
    shown = hands.picture()[MENU_HEIGHT:, : camera["width"]][:rows]
    assert np.array_equal(shown[8:, 8:], expected[8:rows, 8:])


def test_an_error_appears_over_the_picture_until_it_is_dismissed(hands: Hands) -> None:
    assert error_area(hands) == 0
    hands.keys("ctrl+o")
    hands.rest(0.3)
    hands.program.xdotool("type", "--delay", 30, "/no/such/file.ply")
    hands.keys("Return")
    hands.program.wait_for("the path to be opened", lambda facts: "no/such/file.ply" in str(facts["commands"]))
    hands.rest(0.5)
    assert error_area(hands) > 10_000
    hands.keys("Escape")
    hands.rest(0.4)
    assert error_area(hands) == 0


def error_area(hands: Hands) -> int:
    """Returns pixels in the error bar's colour."""
    return int((hands.picture()[:320, :600] == np.array(BAD_DARK)).all(axis=2).sum())


def test_the_heatmap_comes_with_a_legend_and_p_saves_the_whole_picture(hands: Hands) -> None:
    plain = hands.picture()
    hands.keys("Tab")
    facts = hands.settled(lambda facts: facts["overlay"] == "tiles")
    hands.rest(0.3)
    overlay = hands.picture()
    bottom = MENU_HEIGHT + facts["size"][1]
    corner = np.s_[bottom - 200 : bottom - 20, 20:40]
    hues = {tuple(color) for color in overlay[corner].reshape(-1, 3)}
    assert len(hues & {tuple(color) for color in overlays.TURBO.tolist()}) > 40
    assert not np.array_equal(plain[:300, :500], overlay[:300, :500])
    hands.keys("p")
    facts = hands.program.wait_for("a screenshot", lambda facts: "SaveScreenshot" in str(facts["commands"]))
    width, height = hands.full_size()
    assert f"width={width}, height={height}" in facts["commands"][-1]
    assert "overlay='tiles'" in facts["commands"][-1]
    hands.keys("Tab")
    hands.settled(lambda facts: facts["overlay"] == "none")


def test_help_and_stage_times_come_and_go(hands: Hands) -> None:
    plain = hands.picture()[:300, :600]
    for key in ("F10", "F1"):
        hands.keys(key)
        hands.rest(0.5)
        assert not np.array_equal(hands.picture()[:300, :600], plain)
        hands.keys(key)
        hands.rest(0.5)
        assert np.array_equal(hands.picture()[:300, :600], plain)


def test_the_window_survives_being_a_sliver(hands: Hands) -> None:
    for width, height in ((40, 500), (500, 30), (1, 1)):
        hands.program.xdotool("windowsize", hands.window, width, height)
        time.sleep(0.4)
    hands.program.xdotool("windowsize", hands.window, *SIZE)
    hands.settled()


def test_training_goes_on_while_the_window_is_minimised(hands: Hands) -> None:
    hands.program.xdotool("windowminimize", hands.window)
    time.sleep(0.5)
    before = hands.program.facts["ticks"]
    hands.program.wait_for("steps", lambda facts: facts["ticks"] > before + 20)
    hands.program.activate(hands.window)
    view = hands.start
    hands.drag(1, 40, 0)
    hands.settled(lambda facts: facts["eye"] != view["eye"])


def test_space_trains_and_pauses_n_steps_and_closing_ends_it_all(display: str) -> None:
    program = Program(display, SCRIPT, ["--size", f"{SIZE[0]}x{SIZE[1]}"])
    try:
        hands = Hands(program)
        hands.keys("n")
        program.wait_for("one iteration", lambda facts: facts["iteration"] == 1 and facts["state"] == "paused")
        hands.keys("space")
        program.wait_for("training", lambda facts: facts["state"] == "running" and facts["iteration"] > 10)
        hands.keys("space")
        program.wait_for("a pause", lambda facts: facts["state"] == "paused")
        hands.keys("space")
        program.wait_for("training again", lambda facts: facts["state"] == "running")
        hands.keys("alt+F4")
        hands.rest(0.6)  # it asks first
        assert program.process.poll() is None
        assert program.facts["state"] == "paused", "it waits for the answer"
        hands.keys("Escape")  # which is no; and the window manager kept the release of Alt
        program.wait_for("going on", lambda facts: facts["state"] == "running")
        hands.rest(0.6)
        hands.keys("space")
        program.wait_for("a pause by a key after Alt + F4", lambda facts: facts["state"] == "paused")
        hands.keys("alt+F4")
        hands.rest(0.6)  # it asks again
        assert program.process.poll() is None
        hands.move(*SAVE_AND_CLOSE)
        program.xdotool("click", 1)
        assert program.process.wait(120) == 0
        program.wait_for("the loop to return", lambda facts: facts["closed"])
    finally:
        program.end()


def test_without_a_display_there_is_a_sentence_and_no_crash() -> None:
    code = (
        "from splatscope.kernels.errors import InputError\n"
        "from splatscope.viewer.config import WindowConfig\n"
        "from splatscope.viewer.window import run_window\n"
        "try:\n    run_window(None, WindowConfig())\n"
        "except InputError as error:\n    print('refused:', error)\n"
    )
    for name in ("", ":4711"):
        environment = {**os.environ, "DISPLAY": name}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("refused: No window can be opened")
