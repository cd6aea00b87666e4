"""Tests what the window remembers: recent paths, home views and up axes, whatever happens to the file."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from splatscope.kernels.errors import InputError
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.state.navigation import Lens, framing_navigator
from splatscope.viewer.state.preferences import RECENT, SCENES, Preferences
from splatscope.viewer.state.session import Session
from tests.support.fake_engine import FakeEngine

VIEW = framing_navigator((-1, -2, -3), (3, 2, 1), up=(0, 0, 1)).orbit(0.7, -0.2).pan(30, 20, 800, 600)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """Returns a file that the window can remember."""
    path = tmp_path / "scene.ply"
    path.write_bytes(b"ply")
    return path


def test_what_is_set_is_there_the_next_time(tmp_path: Path, scene: Path) -> None:
    file = tmp_path / "settings" / "window.json"
    memory = Preferences.load(file)
    memory.opened(scene)
    memory.set_up(scene, (0.0, 0.0, 1.0))
    memory.set_home(scene, VIEW)
    again = Preferences.load(file)
    assert again.recent == [scene]
    assert again.of(scene).up == (0.0, 0.0, 1.0)
    home = again.of(scene).home
    assert home is not None
    assert replace(home, extent=VIEW.extent) == VIEW  # the extent is the scene's, not the view's
    again.set_home(scene, None)
    assert Preferences.load(file).of(scene).home is None
    assert Preferences.load(file).of(scene).up == (0.0, 0.0, 1.0)


def test_another_file_under_the_same_name_starts_afresh(scene: Path) -> None:
    memory = Preferences()
    memory.set_home(scene, VIEW)
    scene.write_bytes(b"ply of another size")
    assert memory.of(scene).home is None


def test_recent_paths_are_few_and_newest_first(tmp_path: Path) -> None:
    memory = Preferences(tmp_path / "window.json")
    for k in range(RECENT + 5):
        memory.opened(tmp_path / f"{k}.ply")
    memory.opened(tmp_path / "9.ply")
    assert memory.recent[:2] == [tmp_path / "9.ply", tmp_path / f"{RECENT + 4}.ply"]
    assert len(memory.recent) == len(set(memory.recent)) == RECENT
    memory.forget_recent()
    assert Preferences.load(memory.path).recent == []


def test_only_the_newest_scenes_are_kept(tmp_path: Path) -> None:
    memory = Preferences()
    for k in range(SCENES + 3):
        memory.set_up(tmp_path / str(k), (0.0, 1.0, 0.0))
    assert memory.of(tmp_path / "2").up is None
    assert memory.of(tmp_path / "3").up == (0.0, 1.0, 0.0)


def test_a_damaged_file_counts_as_empty_and_one_that_is_not_understood_is_kept_and_told_of(
    tmp_path: Path, scene: Path
) -> None:
    file = tmp_path / "window.json"
    memory = Preferences(file)
    memory.set_home(scene, VIEW)
    good = json.loads(file.read_text())
    key = next(iter(good["scenes"]))
    bad = [
        "", "[]", "null", "{", '{"recent": 3, "scenes": []}', "[" * 100_000, '{"recent": [1, null]}',
        json.dumps({"scenes": {key: {"up": [0, 0, 9], "home": 4}}}),
        json.dumps({"scenes": {key: {"up": "north", "home": {"pivot": [0, 0], "lens": {}}}}}),
        *(
            json.dumps({"scenes": {key: {"home": good["scenes"][key]["home"] | change}}})
            for change in (
                {"distance": -1}, {"distance": math.nan}, {"base": [[1, 0, 0]] * 3}, {"yaw": "left"}, {"lens": None},
                {"lens": {"fov_y": 4, "pixel_aspect": 1, "shift_x": 0, "shift_y": 0}}, {"pivot": [[1], [2], [3]]},
            )
        ),
    ]  # fmt: skip
    for text in bad:
        file.write_text(text)
        loaded = Preferences.load(file)
        assert (loaded.recent, loaded.of(scene).up, loaded.of(scene).home) == ([], None, None), text
    for content in (b"\xff\xfe\x00", b"[1]", b"{" * 100_000):
        file.write_bytes(content)
        loaded = Preferences.load(file)
        assert loaded.recent == []
        assert f"is kept as {file}.damaged" in loaded.remark
        assert Path(f"{file}.damaged").read_bytes() == content
        session = Session(FakeEngine(), WindowConfig(preferences_file=file))
        assert not session.log.lines, "the file is out of the way"
    file.write_text("{")
    assert "Recent paths" in Session(FakeEngine(), WindowConfig(preferences_file=file)).log.lines[0].text


def test_a_place_that_cannot_be_written_is_said_and_nothing_is_lost_meanwhile(tmp_path: Path, scene: Path) -> None:
    (tmp_path / "file").write_text("")
    memory = Preferences(tmp_path / "file" / "window.json")
    with pytest.raises(InputError, match="cannot be written"):
        memory.set_home(scene, replace(VIEW, lens=Lens()))
    assert memory.of(scene).home is not None
