"""Tests the file browser and the menu in the real window with mouse and keys, in front of a pretended engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from splatscope.viewer.dialogs.browser import with_suffix
from splatscope.viewer.drawing.style import MENU_HEIGHT
from splatscope.viewer.state.folders import list_folder
from tests.support.display import wait_until
from tests.support.window_hands import SCENE_HEADER, Hands

ROW = 19  # px from row to row of the list
SAVE_BUTTON = (680, 325 + MENU_HEIGHT)  # px in the window, in the scene's section
TRIES = 8
FIRST_ROW = (50, 118)  # px in the window: the middle of the first row's name


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds, in the browser's order: a folder, a model, two splat files. Its path is short, as tests type it."""
    folder = tmp_path_factory.mktemp("f")
    (folder / "inner" / "deep").mkdir(parents=True)
    (folder / "model" / "point_cloud").mkdir(parents=True)
    for name in ("a.ply", "b.ply"):
        (folder / name).write_bytes(b"ply")
    return folder


@pytest.fixture
def hands(open_window: Hands) -> Hands:
    open_window.home()
    return open_window


def browse(hands: Hands, keys: str, folder: Path) -> None:
    """Opens the browser and types the path of a folder."""
    hands.keys(keys)
    hands.rest(0.4)
    hands.program.xdotool("type", "--delay", 15, str(folder))
    hands.keys("Return")
    hands.rest(0.5)


def double_click(hands: Hands, row: int) -> None:
    hands.move(FIRST_ROW[0], FIRST_ROW[1] + ROW * row)
    hands.program.xdotool("click", "--repeat", 2, "--delay", 60, 1)
    hands.rest(0.4)


def open_row(hands: Hands, row: int, end: str) -> None:
    """Double-clicks on a row until a path that ends so is opened: a busy machine may miss one of the clicks."""
    for _ in range(TRIES):
        double_click(hands, row)
        if f"{end}'" in str(hands.program.facts["commands"][-1:]):
            return
    raise AssertionError(f"{end} was not opened: {hands.program.facts['commands'][-1:]}")


def orange(hands: Hands) -> bool:
    """Returns True if a warning is shown in the left part of the window."""
    red, _, blue = hands.picture()[FIRST_ROW[1] :, :500].astype(int).transpose(2, 0, 1)
    return bool((red - blue > 100).sum() > 20)


def opened(hands: Hands) -> list[str]:
    """Returns the paths that the window was asked to open or save, newest last."""
    return [command for command in hands.program.facts["commands"] if "path=" in command]


def test_a_double_click_enters_a_folder_and_opens_what_can_be_opened(hands: Hands, folder: Path) -> None:
    browse(hands, "ctrl+o", folder)
    open_row(hands, 3, "/b.ply")
    browse(hands, "ctrl+o", folder)
    open_row(hands, 1, f"{folder}/model")
    before = opened(hands)
    browse(hands, "ctrl+o", folder)
    double_click(hands, 0)  # a plain folder is entered, and so is the one in it
    double_click(hands, 0)
    assert opened(hands) == before
    hands.keys("Escape")


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("cup", "cup.ply"),
        ("cup.ply", "cup.ply"),
        ("cup.PLY", "cup.PLY"),
        ("v1.2", "v1.2.ply"),
        ("cup.spz", "cup.spz.ply"),
    ],
)
def test_splats_are_saved_under_a_name_that_open_lists(typed: str, name: str, tmp_path: Path) -> None:
    path = with_suffix(tmp_path / typed)
    assert path == tmp_path / name
    path.write_bytes(b"ply")
    assert [row.path for row in list_folder(tmp_path).rows] == [path]


def test_saving_over_a_file_asks_first_and_a_name_gets_its_suffix(hands: Hands, folder: Path) -> None:
    browse(hands, "ctrl+o", folder)
    open_row(hands, 2, "/a.ply")  # which folds the scene's section
    hands.rest(0.4)
    hands.click(*SCENE_HEADER)
    before = opened(hands)
    hands.click(*SAVE_BUTTON)
    hands.rest(0.4)
    hands.program.xdotool("type", "--delay", 15, f"{folder}/b")
    hands.keys("Return")
    wait_until(lambda: orange(hands), "a warning: b.ply exists")
    hands.rest(0.1)
    assert opened(hands) == before
    hands.keys("Return")
    hands.program.wait_for("b.ply to be replaced", lambda facts: "b.ply" in str(facts["commands"][-1:]))
    before = opened(hands)
    browse(hands, "ctrl+s", folder)
    hands.keys("Escape")
    hands.keys("ctrl+s")
    hands.rest(0.4)
    hands.program.xdotool("type", "--delay", 15, f"{folder}/a")
    hands.keys("Return")
    hands.rest(0.4)
    assert opened(hands) == before
    hands.keys("Escape")
    hands.keys("ctrl+s")
    hands.rest(0.4)
    hands.program.xdotool("type", "--delay", 15, f"{folder}/new")
    hands.keys("Return")
    hands.program.wait_for("new.ply to be saved", lambda facts: "new.ply" in str(facts["commands"][-1:]))
    assert "SavePly" in opened(hands)[-1]


def test_escape_leaves_the_view_alone_and_the_menu_brings_it_home(hands: Hands, folder: Path) -> None:
    home = hands.start["eye"]
    hands.drag(1, 100, 0)
    away = hands.settled(lambda facts: facts["eye"] != home)["eye"]
    browse(hands, "ctrl+o", folder)
    hands.keys("Escape")  # also while the path box has the keyboard
    assert hands.settled()["eye"] == away
    hands.click(60, 13)  # View
    hands.click(90, 40)  # Home view
    hands.settled(lambda facts: facts["eye"] == home)
