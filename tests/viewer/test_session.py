"""Tests what keys and buttons do, without a window: the session in front of a pretended engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splatscope.app.engine.event_log import EventLog, kind_of
from splatscope.kernels.errors import InputError
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.commands import Command
from splatscope.viewer.state.frame_rate import AWAKE_HZ, LEAST_HZ, FrameRate, awake_hz
from splatscope.viewer.state.session import Session
from tests.support.fake_engine import SCENE, FakeEngine


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    engine = FakeEngine()
    yield engine
    engine.close()


@pytest.fixture
def session(engine: FakeEngine) -> Session:
    session = Session(engine, WindowConfig())
    session.view.size = (320, 240)
    session.poll()
    return session


def test_a_scene_opens_at_its_first_camera_with_its_own_background(engine: FakeEngine, session: Session) -> None:
    assert np.allclose(session.view.nav.eye, SCENE.cameras[0].camera.position)
    session.view.set_background((0.5, 0.5, 0.5))
    session.view.frame_scene()
    other = replace(SCENE, generation=2, background=(1.0, 1.0, 1.0), sh_degree=1, cameras=())
    engine._status = replace(engine.status(), scene=other)
    session.poll()
    assert session.view.render_settings.background == (1.0, 1.0, 1.0)
    assert session.view.render_settings.sh_degree == 1
    assert session.view.at_camera is None
    assert np.allclose(session.view.nav.pivot, (0, 0, 0))


def test_pictures_follow_the_scenes_filter_when_a_recipe_changes_it_unless_one_was_asked_for(
    engine: FakeEngine, session: Session
) -> None:
    asked = Session(engine, WindowConfig(keeps_filter=True))
    for filter in ("mip", "compensated", "plain"):
        engine._status = replace(engine.status(), scene=replace(SCENE, filter=filter))
        for each in (session, asked):
            each.poll()
        assert (session.toggles.policy.project.filter, asked.toggles.policy.project.filter) == (filter, "plain")
        session.toggles.policy = session.toggles.policy.with_value("project", "filter", "mip")
        session.poll()
        assert session.toggles.policy.project.filter == "mip", "a click in the panel stays"


def test_the_same_view_is_asked_for_once(engine: FakeEngine, session: Session) -> None:
    session.publish()
    session.publish()
    assert len(engine.requests) == 1
    session.view.move(lambda nav: nav.orbit(0.1, 0.0))
    session.publish()
    assert len(engine.requests) == 2


def test_stepping_comes_back_to_the_last_camera_before_going_on(session: Session) -> None:
    session.view.go_to_camera(5)
    session.view.move(lambda nav: nav.orbit(0.3, 0.0))
    assert session.view.at_camera is None
    session.view.step_camera(1)
    assert session.view.at_camera == SCENE.cameras[5]
    session.view.step_camera(1)
    assert session.view.at_camera == SCENE.cameras[6]


def test_the_pivot_is_what_was_clicked_on(engine: FakeEngine, session: Session) -> None:
    session.publish()
    deadline = time.monotonic() + 120
    while not session.poll() and time.monotonic() < deadline:
        time.sleep(0.02)
    eye = session.view.nav.eye
    session.view.pivot_under(0.5, 0.5)  # the unit ball at the origin lies there
    assert np.linalg.norm(session.view.nav.pivot) == pytest.approx(1.0, abs=0.02)
    assert np.allclose(session.view.nav.eye, eye)
    before = session.view.nav
    session.view.pivot_under(0.5, 0.0)  # the empty sky
    assert session.view.nav == before


def test_no_error_is_lost_and_dismissing_keeps_the_log(engine: FakeEngine, session: Session) -> None:
    engine.say("error", "first")
    engine.say("info", "second")
    engine.say("error", "third")
    session.poll()
    assert session.log.error is not None
    assert session.log.error.text == "third"
    session.dialogs.help_shown = True
    session.dismiss()
    assert not session.dialogs.help_shown
    assert session.log.error is not None
    session.dismiss()
    session.poll()
    assert session.log.error is None
    assert [line.text for line in session.log.lines] == ["first", "second", "third"]


def test_an_error_is_over_once_the_same_goes_well_and_not_before(engine: FakeEngine, session: Session) -> None:
    event_log = EventLog()

    def seen() -> str:
        engine._status = replace(engine._status, log=tuple(event_log.lines), done=dict(event_log.done))
        session.poll()
        return session.log.error.text if session.log.error else ""

    def fails(command: Command) -> None:
        with pytest.raises(InputError), event_log.doing(kind_of(command)):
            raise InputError("no")
        event_log.add("error", type(command).__name__)

    def works(command: Command) -> None:
        with event_log.doing(kind_of(command)):
            event_log.add("info", "done")

    recipe, start, step = commands.SetRecipe(), commands.StartTraining(), commands.StepTraining()
    fails(recipe)
    assert seen() == "SetRecipe"
    works(start)
    assert seen() == "SetRecipe"
    works(recipe)
    assert seen() == ""
    fails(start)
    assert seen() == "StartTraining", "the recipe worked before"
    works(step)
    assert seen() == "", "the run goes on"
    event_log.add("error", "of nothing in particular")
    works(recipe)
    assert seen() == "of nothing in particular"


def test_what_the_form_refuses_is_not_said_again_across_the_picture(engine: FakeEngine, session: Session) -> None:
    engine.say("info", "Opened.")
    session.run.set_recipe(changes=(("iterations", "0"),))
    session.poll()
    assert session.engine.status.recipe is not None
    assert session.engine.status.recipe.refused is not None
    assert (session.log.error, session.log.newest) == (None, session.log.lines[0])
    assert [line.level for line in session.log.lines] == ["info", "error"], "the log has it"
    session.run.set_recipe(changes=(("iterations", "10"),))
    engine.say("error", "Something else.", "StartTraining")
    session.poll()
    assert session.log.error == session.log.newest == session.log.lines[-1]


@pytest.mark.parametrize("typed", ["/data/a b.ply", ' "/data/a b.ply" ', "file:///data/a%20b.ply", "'/data/a b.ply'\n"])
def test_a_pasted_path_is_understood_however_it_was_copied(engine: FakeEngine, session: Session, typed: str) -> None:
    session.open(typed)
    assert engine.commands == [commands.OpenScene(Path("/data/a b.ply"))]


def test_keys_send_only_what_the_state_allows(engine: FakeEngine, session: Session) -> None:
    expected = {
        "none": [],
        "ready": [commands.StartTraining, commands.StepTraining],
        "running": [commands.PauseTraining, commands.StopTraining],
        "stopping": [],
        "stopped": [commands.StartTraining, commands.StepTraining],
        "finished": [],
        "error": [],
    }
    for state, allowed in expected.items():
        session.engine.status = replace(
            session.engine.status, training=replace(session.engine.status.training, state=state)
        )
        engine.commands.clear()
        session.run.toggle()
        session.run.step()
        session.run.stop()
        assert [type(command) for command in engine.commands] == allowed, state


def test_the_window_draws_hardly_more_frames_than_pictures_at_the_view_of_a_run_and_never_too_few() -> None:
    assert awake_hz(trains=False, is_at_view=True, pictures=32) == AWAKE_HZ
    assert awake_hz(trains=True, is_at_view=False, pictures=32) == AWAKE_HZ
    assert 32 < awake_hz(trains=True, is_at_view=True, pictures=32) < 40
    assert awake_hz(trains=True, is_at_view=True, pictures=1e-3) == LEAST_HZ
    assert awake_hz(trains=True, is_at_view=True, pictures=100) == AWAKE_HZ


def test_the_windows_pace_is_its_own_time_and_how_often_it_draws() -> None:
    pace = FrameRate()
    for k in range(200):
        pace.note(0.004, k / 30)
    assert str(pace) == "UI: 4 ms per frame, 30 fps"
    for k in range(200):
        pace.note(0.008, 10 + k / 15)
    assert str(pace) == "UI: 8 ms per frame, 15 fps"
