"""Tests what can be open: nothing, splats, or a capture whose run is made again."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest

from splatscope.app.engine.opened import OpenCapture, Opened, OpenSplats
from splatscope.app.opening.scene import open_scene
from splatscope.app.run.plan import RunPlan
from splatscope.assets.capture import Capture
from splatscope.assets.splats.ply import write_ply
from splatscope.kernels.backend import Backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Gaussians
from splatscope.training.trainer import Trainer
from splatscope.viewer.messages.commands import ResetTraining, StartTraining
from splatscope.viewer.messages.view import EngineStatus, PhotographWish, ViewRequest
from tests.app.test_engine import ball, looking, write_capture
from tests.support.small_capture import SHORT

REQUEST = ViewRequest(looking(0), photograph=PhotographWish(0))


def test_while_nothing_is_open_commands_say_what_to_do_and_the_status_is_empty(tmp_path: Path) -> None:
    opened = Opened()
    for ask in (
        opened.splats_to_view,
        lambda: opened.save_ply(tmp_path / "no.ply"),
        lambda: opened.begin_survey(REQUEST),
    ):
        with pytest.raises(InputError, match="Nothing is open yet; open a PLY"):
            ask()
    with pytest.raises(InputError, match="open a capture"):
        opened.obey(StartTraining())
    opened.load_thumbnails((0, 1))
    opened.close()
    assert (opened.gaussians, opened.run, opened.photographs, opened.is_training) == (None, None, None, False)
    assert opened.photographs_read(REQUEST) == 0
    assert opened.status(0.0).scene is EngineStatus().scene is None


def test_splats_are_one_object_until_they_change(tmp_path: Path) -> None:
    write_ply(tmp_path / "ball.ply", ball())
    opened = OpenSplats(open_scene(tmp_path / "ball.ply"))
    before = opened.splats_to_view()
    assert opened.splats_to_view() is before
    opened.splats_changed()
    assert opened.splats_to_view() is not before
    assert opened.status(0.0).splat_count == before.count == ball().count
    with pytest.raises(InputError, match="open a capture"):
        opened.obey(StartTraining())


def test_no_copy_of_the_splats_is_left_when_a_reset_makes_the_next_run(backend: Backend, tmp_path: Path) -> None:
    """Guards a GPU's memory, which would hold both copies at once."""
    copies: list[weakref.ref[Gaussians]] = []
    held: list[bool] = []

    def make_trainer(capture: Capture, backend: Backend) -> Trainer:
        held.extend(copy() is not None for copy in copies)
        return RunPlan(SHORT, tmp_path / "run")(capture, backend)

    scene = open_scene(write_capture(tmp_path / "ball"))
    assert scene.capture is not None
    opened = OpenCapture(scene, scene.capture, make_trainer, backend, lambda *_: None, lambda: None)
    try:
        version = opened.version
        opened.obey(StartTraining(until=1))
        while opened.is_training:
            opened.run.advance()
        copies.append(weakref.ref(opened.splats_to_view()))
        opened.obey(ResetTraining())
        assert held == [False]
        assert opened.run.trainer.iteration == 0
        assert opened.version > version, "pictures are out of date"
        status = opened.status(0.0)
        assert status.training.state == "ready"
        assert status.scene is not None
        assert {finding.topic for finding in status.checkup} >= {"photographs", "memory"}
    finally:
        opened.close()
