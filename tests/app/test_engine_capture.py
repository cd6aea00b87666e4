"""Tests the engine with an open capture: photographs, thumbnails, the recipe, going back to the beginning."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splatscope.app.engine.engine import Engine, EngineConfig
from splatscope.app.opening.scene import fit_camera, listed_views
from splatscope.app.run.plan import RunPlan
from splatscope.assets.formats import open_capture
from splatscope.assets.splats.ply import read_filter
from splatscope.kernels.types import RenderSettings
from splatscope.training.config import TrainConfig
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.view import EngineStatus, PhotographShown, PhotographWish, ViewRequest
from tests.app.test_engine import wait_until, write_capture
from tests.support.odd_captures import make_colmap


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("ball"))


@pytest.fixture
def engine(folder: Path, tmp_path: Path) -> Iterator[Engine]:
    made = Engine(EngineConfig(backend="cpu"), RunPlan(TrainConfig(iterations=60, seed=3), tmp_path / "run"))
    made.start()
    made.send(commands.OpenScene(folder))
    wait_until(lambda: made.status().scene, "the capture")
    yield made
    made.close()


def shown(engine: Engine, request: ViewRequest) -> PhotographShown | None:
    """Returns the photograph that came with the newest picture, once it belongs to that request and is read."""
    picture = engine.picture()
    if picture is None or picture.request != replace(request, policy=picture.request.policy):
        return None
    return picture.photograph if picture.photograph and picture.photograph.rgba is not None else None


def wish_for(engine: Engine, index: int, size: tuple[int, int], error_top: float | None = None) -> ViewRequest:
    scene = engine.status().scene
    assert scene is not None
    camera = fit_camera(scene.cameras[index].camera, *size)
    settings = RenderSettings(scene.background, scene.sh_degree)
    return ViewRequest(camera, settings, photograph=PhotographWish(index, error_top))


def test_a_photograph_comes_with_the_picture_also_while_training_and_fits_better_and_better(engine: Engine) -> None:
    request = wish_for(engine, 2, (160, 100))
    engine.request_view(request)
    wait_until(lambda: shown(engine, request), "the photograph")
    first = shown(engine, request)
    assert first is not None
    assert first.rgba is not None
    assert first.psnr is not None
    assert (first.left, first.rgba.shape[:2]) == (14, (100, 132)), "the inner frame of a 64 x 48 photograph"
    engine.send(commands.StartTraining())
    wait_until(lambda: engine.status().training.iteration > 40, "some training")
    request = wish_for(engine, 2, (160, 100), error_top=0.5)
    engine.request_view(request)
    wait_until(lambda: shown(engine, request), "the photograph while training")
    later = shown(engine, request)
    assert later is not None
    assert later.errors is not None
    assert later.psnr is not None
    assert later.errors.shape == (100, 132, 4)
    assert later.psnr > first.psnr
    assert math.isfinite(later.psnr)


def test_thumbnails_of_what_is_looked_at_come_by_themselves(engine: Engine) -> None:
    engine.send(commands.LoadThumbnails((0, 3, 7)))
    wait_until(lambda: set(engine.status().thumbnails) == {0, 3, 7}, "three thumbnails")
    small = engine.status().thumbnails[3]
    assert small.shape == (48, 64, 3)
    assert np.ptp(small) > 100


def test_cameras_that_the_run_holds_out_say_so(engine: Engine, tmp_path: Path) -> None:
    def held_out() -> list[int] | None:
        scene = engine.status().scene
        is_set = scene is not None and scene.path == tmp_path / "set"
        return [k for k, camera in enumerate(scene.cameras) if camera.is_test] if scene and is_set else None

    engine.send(commands.OpenScene(make_colmap(tmp_path / "set", tuple(f"{k}.jpg" for k in range(9)))))
    wait_until(lambda: held_out() == [], "a set without a split")
    for switch, expected in (("true", [0, 8]), ("false", [])):
        engine.send(commands.SetRecipe(changes=(("data.eval", switch),)))
        wait_until(lambda expected=expected: held_out() == expected, "the split")


def test_the_recipe_can_change_until_the_run_begins_and_again_after_a_reset(engine: Engine, tmp_path: Path) -> None:
    def value(status: EngineStatus, name: str) -> object:
        assert status.recipe is not None
        return next(setting.value for setting in status.recipe.settings if setting.name == name)

    generation = engine.status().scene.generation  # pyright: ignore[reportOptionalMemberAccess]
    engine.send(commands.SetRecipe(changes=(("iterations", "20"), ("data.white_background", "false"))))
    wait_until(lambda: value(engine.status(), "iterations") == 20, "the change")
    before = engine.status().recipe
    engine.send(commands.SetRecipe(changes=(("iterations", "-1"),)))
    wait_until(lambda: "iterations must be" in str(engine.status().log[-1:]), "the refusal")
    wait_until(lambda: engine.status().recipe is not before, "the form as it was")
    assert value(engine.status(), "iterations") == 20
    engine.send(commands.StartTraining(until=5))
    wait_until(lambda: engine.status().training.state == "paused", "the pause")
    assert engine.status().training.iteration == 5
    assert engine.status().recipe is None
    engine.send(commands.SetRecipe(changes=(("iterations", "30"),)))
    wait_until(lambda: "reset the run first" in str(engine.status().log[-1:]), "the refusal")
    engine.send(commands.StartTraining(until=3))
    wait_until(lambda: "is behind" in str(engine.status().log[-1:]), "the other refusal")
    engine.send(commands.StartTraining())
    wait_until(lambda: engine.status().training.state == "finished", "the end")
    engine.send(commands.ResetTraining())
    wait_until(lambda: engine.status().training.state == "ready", "the beginning")
    status = engine.status()
    assert status.training.iteration == 0
    assert status.training.out_dir == tmp_path / "run-2", "what the first run saved stays"
    assert status.scene is not None
    assert status.scene.generation == generation, "the view stays where it is"
    assert value(status, "iterations") == 20


def test_a_run_with_another_filter_is_shown_and_saved_as_such(engine: Engine, tmp_path: Path) -> None:
    def filter() -> str | None:
        scene = engine.status().scene
        return scene.filter if scene else None

    assert filter() == "plain"
    engine.send(commands.SetRecipe(changes=(("antialiasing", "mip"),)))
    wait_until(lambda: filter() == "mip", "the change")
    engine.send(commands.StartTraining(until=3))
    wait_until(lambda: engine.status().training.state == "paused", "the pause")
    engine.send(commands.SavePly(tmp_path / "now.ply"))
    wait_until(lambda: "now.ply" in str(engine.status().log[-1:]), "the file")
    assert read_filter(tmp_path / "now.ply") == filter() == "mip"


def test_the_page_about_the_capture_comes_with_it(engine: Engine) -> None:
    topics = {finding.topic for finding in engine.status().checkup}
    assert {"capture", "photographs", "sizes", "cameras", "memory", "up"} <= topics


def test_photographs_are_listed_as_people_count_and_a_test_split_comes_last(folder: Path) -> None:
    capture = open_capture(folder)
    names = ("10.jpg", "2.jpg", "a/b11.jpg", "A/b2.jpg", "1.jpg")
    views = tuple(replace(view, name=name) for view, name in zip(capture.views, names, strict=False))
    listed = listed_views(replace(capture, views=views[1:], test_views=views[:1]))
    assert [view.name for view in listed] == ["1.jpg", "2.jpg", "A/b2.jpg", "a/b11.jpg", "10.jpg"]


def test_how_long_a_run_takes_joins_the_page_when_asked_and_goes_with_the_recipe(engine: Engine) -> None:
    def times() -> list[str]:
        return [finding.text for finding in engine.status().checkup if finding.topic == "time"]

    assert times() == []
    engine.send(commands.ForeseeTime())
    wait_until(times, "the time")
    assert "a step at first" in times()[0]
    engine.send(commands.SetRecipe(changes=(("iterations", "5"),)))
    wait_until(lambda: not times(), "another recipe")


def test_what_the_recipe_refuses_is_said_of_the_field(engine: Engine) -> None:
    engine.send(commands.SetRecipe(changes=(("data.resolution", "11"),)))
    wait_until(lambda: (recipe := engine.status().recipe) and recipe.refused, "the refusal")
    status = engine.status()
    assert status.recipe is not None
    assert status.recipe.refused is not None
    names, reason = status.recipe.refused
    assert names == ("data.resolution",)
    assert "got 11" in reason
    assert status.log[-1].about not in status.done, "the banner stays"
    engine.send(commands.SetRecipe(changes=(("data.resolution", "4"),)))
    wait_until(lambda: "SetRecipe" in engine.status().done, "the change")
    assert engine.status().done["SetRecipe"] >= status.log[-1].serial
    assert (recipe := engine.status().recipe) is not None
    assert recipe.refused is None


def test_every_view_is_measured_once_and_training_waits_for_it(engine: Engine) -> None:
    scene = engine.status().scene
    assert scene is not None
    engine.send(commands.StartTraining())
    wait_until(lambda: engine.status().training.iteration > 2, "training")
    engine.send(commands.SurveyViews(wish_for(engine, 0, (64, 48))))
    wait_until(lambda: len(engine.status().views) == len(scene.cameras), "all views")
    figures = engine.status().views
    assert [view.index for view in figures] == list(range(8))
    assert all(view.ms > 0 and view.instances > 0 for view in figures)
    assert {view.size for view in figures} == {(c.camera.width, c.camera.height) for c in scene.cameras}
    assert all(view.psnr is not None and 0 < view.psnr < 60 for view in figures)
    wait_until(lambda: engine.status().training.state == "finished", "the rest of the run")
