"""Tests each part of the session by itself, in front of a pretended engine and without a window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from splatscope.kernels.policy import Policy
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.view import LogLine
from splatscope.viewer.state.dialogs import Dialogs
from splatscope.viewer.state.engine_link import EngineLink
from splatscope.viewer.state.heatmap import Heatmap
from splatscope.viewer.state.message_log import LOG_LINES, MessageLog
from splatscope.viewer.state.preferences import Preferences
from splatscope.viewer.state.run_verbs import RunVerbs
from splatscope.viewer.state.session import Session
from splatscope.viewer.state.user_settings import UserSettings
from tests.support.fake_engine import SCENE, FakeEngine


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    engine = FakeEngine()
    yield engine
    engine.close()


def test_another_kind_of_heatmap_unlocks_the_scale_and_the_same_kind_does_not() -> None:
    heatmap = Heatmap.starting_with("none", 0.65)
    heatmap.toggle()
    assert (heatmap.overlay, heatmap.kind) == ("tiles", "tiles")
    heatmap.scale = replace(heatmap.scale, locked_top=500)
    heatmap.show("none")
    heatmap.toggle()
    assert (heatmap.overlay, heatmap.scale.locked_top) == ("tiles", 500)
    heatmap.show("depth")
    assert (heatmap.kind, heatmap.scale.locked_top) == ("depth", None)


def test_esc_closes_one_thing_after_the_other_and_says_when_nothing_is_open(engine: FakeEngine) -> None:
    dialogs = Dialogs(EngineLink(engine))
    dialogs.toggle_thumbnails()
    dialogs.toggle_help()
    dialogs.browse("open")
    dialogs.closing = True
    for _ in range(4):
        assert dialogs.close_topmost()
    assert not dialogs.close_topmost()
    assert (dialogs.closing, dialogs.browser, dialogs.help_shown, dialogs.thumbnails_shown) == (False, "", False, False)


def test_nothing_can_be_saved_or_chosen_while_nothing_is_open() -> None:
    engine = FakeEngine(scene=None)
    dialogs = Dialogs(EngineLink(engine))
    dialogs.browse("save")
    dialogs.toggle_thumbnails()
    assert (dialogs.browser, dialogs.thumbnails_shown) == ("", False)
    engine.close()


def test_the_log_keeps_the_newest_lines_and_takes_none_twice(engine: FakeEngine) -> None:
    log = MessageLog("The file was damaged.")
    assert [line.level for line in log.lines] == ["warning"]
    lines = tuple(LogLine("info", str(k), k) for k in range(1, LOG_LINES + 5))
    for _ in range(2):
        log.take(replace(engine.status(), log=lines))
    assert len(log.lines) == LOG_LINES
    assert log.newest == log.lines[-1] == lines[-1]
    log.complain("photographs", "There are none.")
    log.succeed("preferences")
    assert log.error is not None, "another action has succeeded"
    log.succeed("photographs")
    assert log.error is None


def test_a_setting_is_kept_told_to_the_engine_and_an_unwritable_file_is_an_error(
    engine: FakeEngine, tmp_path: Path
) -> None:
    file, config, log = tmp_path / "window.json", WindowConfig(), MessageLog()
    settings = UserSettings(EngineLink(engine), log, config, Preferences.load(file), 1.0)
    assert engine.commands == [], "nothing differs from the defaults"
    settings.set_view_share(0.5)
    settings.set_ui_scale(2.0)
    assert engine.commands == [commands.SetViewShare(0.5, config.view_rate)]
    again = UserSettings(EngineLink(engine), log, config, Preferences.load(file), 1.0)
    assert (again.view_share, again.ui_scale) == (0.5, 2.0)
    assert engine.commands[1:] == [commands.SetViewShare(0.5, config.view_rate)], "a new window tells the engine"
    (tmp_path / "text").write_text("")
    lost = UserSettings(EngineLink(engine), log, config, Preferences(tmp_path / "text" / "window.json"), 1.0)
    lost.set_moving_fps(30)
    assert log.error is not None
    assert "forgotten when the window closes" in log.error.text
    assert lost.moving_fps == 30


def test_a_run_held_for_a_question_continues_to_its_target_unless_it_is_abandoned() -> None:
    engine = FakeEngine(state="running")
    engine.close()
    link = EngineLink(engine)
    link.status = replace(link.status, training=replace(link.status.training, until=650, iterations=7000))
    run = RunVerbs(link, Dialogs(link), MessageLog())
    run.hold()
    run.release()
    run.release()
    run.hold()
    run.abandon()
    run.release()
    pause = commands.PauseTraining()
    expected = [pause, commands.StartTraining(650), pause, commands.StopTraining(save=False)]
    assert engine.commands == expected


def test_photographs_need_a_capture_and_return_to_the_last_camera(engine: FakeEngine) -> None:
    session = Session(engine, WindowConfig())
    session.view.size = (320, 240)
    session.poll()
    session.view.go_to_camera(3)
    session.view.frame_scene()
    assert session.photographs.wish() is None
    session.photographs.compare("error")
    assert session.view.at_camera == SCENE.cameras[3]
    wish = session.request().photograph
    assert wish is not None
    assert (wish.index, wish.error_top) == (3, session.photographs.error_top)
    session.photographs.compare("error")
    assert session.request().photograph is None
    engine._status = replace(engine.status(), scene=replace(SCENE, kind="splats", cameras=(), generation=9))
    session.poll()
    session.photographs.compare("overlay")
    assert (session.photographs.mode, session.log.error is not None) == ("off", True)


def test_measurements_are_of_the_wanted_policy_without_what_the_heatmap_adds(engine: FakeEngine) -> None:
    session = Session(engine, WindowConfig(overlay="depth"))
    session.view.size = (320, 240)
    session.poll()
    assert session.request().policy.schedule.record == "on"
    session.measurements.compare("best")
    measured = engine.commands[-1]
    assert isinstance(measured, commands.Compare)
    assert measured.request.policy == Policy()
    session.measurements.save_recorded_frame()
    assert engine.commands[-1] is measured, "nothing has been recorded"
