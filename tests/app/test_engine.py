"""Tests the engine thread through its public side: newest request wins, errors stay visible, a run is never lost."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from splatscope.app.engine.engine import Engine, EngineConfig
from splatscope.app.engine.pictures import blend_heatmap
from splatscope.app.run.plan import RunPlan
from splatscope.assets.formats import open_capture
from splatscope.assets.photographs.images import write_png
from splatscope.assets.splats.ply import read_ply, write_ply
from splatscope.kernels.backends import make_backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Gaussians
from splatscope.training.config import TrainConfig
from splatscope.viewer.figures.overlays import picture_rgba
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.view import ViewRequest


def ball(count: int = 200) -> Gaussians:
    rng = np.random.default_rng(11)
    return Gaussians(
        rng.normal(0, 0.4, (count, 3)).astype(np.float32),
        np.full((count, 3), -2.3, np.float32),
        np.tile(np.array([1, 0, 0, 0], np.float32), (count, 1)),
        np.full(count, 2.0, np.float32),
        rng.normal(0, 0.8, (count, 1, 3)).astype(np.float32),
    )


def looking(angle: float, width: int = 64, height: int = 48) -> Camera:
    c, s = math.cos(angle), math.sin(angle)
    view_from_world = [[c, 0, -s, 0], [0, 1, 0, 0], [s, 0, c, 4], [0, 0, 0, 1]]
    return Camera.from_matrix(view_from_world, width, height, 60, 60, width / 2, height / 2)


@pytest.fixture
def capture_folder(tmp_path: Path) -> Path:
    """Returns the capture of `write_capture`."""
    return write_capture(tmp_path / "ball capture")


def write_capture(folder: Path) -> Path:
    """Returns a capture in NeRF-synthetic layout: pictures of `ball` from eight sides, two held out."""
    backend = make_backend("cpu")
    for split, indices in (("train", range(6)), ("test", range(6, 8))):
        frames = []
        for i in indices:
            camera = looking(i * math.pi / 4)
            frame = backend.render(ball(), camera)
            alpha = 1 - frame.transmittance[..., None]
            rgb = np.clip(frame.image / np.maximum(alpha, 1e-3), 0, 1)
            rgba = (np.concatenate([rgb, alpha], 2) * 255).round().astype(np.uint8)
            (folder / split).mkdir(parents=True, exist_ok=True)
            write_png(folder / split / f"r_{i}.png", rgba)
            world_from_view = np.linalg.inv(camera.matrix) @ np.diag([1.0, -1.0, -1.0, 1.0])
            frames.append({"file_path": f"./{split}/r_{i}", "transform_matrix": world_from_view.tolist()})
        transforms = {"camera_angle_x": 2 * math.atan(64 / 2 / 60), "frames": frames}
        (folder / f"transforms_{split}.json").write_text(json.dumps(transforms))
    return folder


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    config = TrainConfig(iterations=40, test_iterations=(20,), seed=3)
    made = Engine(
        EngineConfig(backend="cpu"), lambda capture, backend: RunPlan(config, tmp_path / "run")(capture, backend)
    )
    made.start()
    yield made
    made.close()


def wait_until(condition: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)


def open_ball(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "ball.ply"
    write_ply(path, ball())
    engine.send(commands.OpenScene(path))
    wait_until(lambda: engine.status().scene, "opening")


def errors(engine: Engine) -> list[str]:
    return [line.text for line in engine.status().log if line.level == "error"]


def test_the_newest_request_is_the_picture_that_stays(engine: Engine, tmp_path: Path) -> None:
    open_ball(engine, tmp_path)
    for i in range(200):
        engine.request_view(ViewRequest(looking(i / 100)))
    last = ViewRequest(looking(2.5), overlay="tiles")
    engine.request_view(last)
    wait_until(lambda: (p := engine.picture()) and p.request == last, "the last picture")
    picture = engine.picture()
    assert picture is not None
    assert picture.serial < 200, "older requests must be dropped, not queued"
    frame = make_backend("cpu").render(ball(), last.camera)
    np.testing.assert_array_equal(picture.rgba, blend_heatmap(picture_rgba(frame.image), frame, last))


def test_an_equal_request_makes_no_new_picture(engine: Engine, tmp_path: Path) -> None:
    open_ball(engine, tmp_path)
    engine.request_view(ViewRequest(looking(0)))
    wait_until(engine.picture, "a picture")
    first = engine.picture()
    for _ in range(20):
        engine.request_view(ViewRequest(looking(0)))
        time.sleep(0.005)
    assert engine.picture() is first


def test_what_is_open_stays_when_opening_something_else_fails(engine: Engine, tmp_path: Path) -> None:
    open_ball(engine, tmp_path)
    broken = tmp_path / "broken.ply"
    broken.write_bytes(b"ply\nformat binary_little_endian 1.0\nelement vertex 9\n")
    engine.send(commands.OpenScene(broken))
    wait_until(lambda: errors(engine), "an error line")
    assert "broken.ply" in errors(engine)[0]
    scene = engine.status().scene
    assert scene is not None
    assert scene.path.name == "ball.ply"
    assert not engine.status().busy
    engine.request_view(ViewRequest(looking(1)))
    wait_until(engine.picture, "a picture")


def test_a_capture_that_cannot_be_opened_is_the_only_complaint(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    engine.send(commands.OpenScene(tmp_path / "empty", then_train=True))
    engine.send(commands.OpenScene(tmp_path / "nothing.ply"))
    wait_until(lambda: len(errors(engine)) > 1, "both error lines")
    assert "empty" in errors(engine)[0]
    assert "nothing.ply" in errors(engine)[1]


def test_training_without_a_capture_says_what_to_do(engine: Engine, tmp_path: Path) -> None:
    open_ball(engine, tmp_path)
    engine.send(commands.StartTraining())
    wait_until(lambda: errors(engine), "an error line")
    assert "open a capture" in errors(engine)[0]


def test_a_run_steps_pauses_goes_on_and_finishes_with_pictures_in_between(engine: Engine, capture_folder: Path) -> None:
    engine.send(commands.OpenScene(capture_folder))
    wait_until(lambda: engine.status().training.state == "ready", "a trainer")
    assert engine.status().training.iteration == 0
    engine.send(commands.StepTraining())
    wait_until(lambda: engine.status().training.iteration == 1, "one step")
    wait_until(lambda: engine.status().training.state == "paused", "the pause after it")
    engine.request_view(ViewRequest(looking(0)))
    wait_until(engine.picture, "a picture while paused")
    time.sleep(0.1)
    assert engine.status().training.iteration == 1, "paused means no step"
    before = engine.picture()
    engine.send(commands.StartTraining())
    wait_until(lambda: engine.status().training.state == "finished", "the end")
    status = engine.status().training
    assert status.iteration == 40
    assert status.psnr is not None
    assert status.psnr_label.startswith("held-out")
    assert len(status.loss_curve.x) == 40
    assert status.loss_curve.y[-5:].mean() < status.loss_curve.y[:5].mean()
    wait_until(lambda: engine.picture() is not before, "a newer picture of the trained splats")
    assert status.out_dir is not None
    assert (status.out_dir / "point_cloud/iteration_40/point_cloud.ply").exists()


def test_stopping_saves_and_closing_a_live_run_saves(capture_folder: Path, tmp_path: Path) -> None:
    config = TrainConfig(iterations=100_000)
    for how in ("stop", "close"):
        out = tmp_path / f"to {how} it"
        engine = Engine(EngineConfig(), lambda capture, backend, out=out: RunPlan(config, out)(capture, backend))
        engine.start()
        engine.send(commands.OpenScene(capture_folder, then_train=True))
        wait_until(lambda engine=engine: engine.status().training.iteration > 3, "some steps")
        if how == "stop":
            engine.send(commands.StopTraining())
            wait_until(lambda engine=engine: engine.status().training.state == "stopped", "the stop")
        said = engine.close()
        (saved,) = out.glob("point_cloud/iteration_*/point_cloud.ply")
        assert read_ply(saved).count > 0
        assert (f"; saved {saved}. Resume: splatscope train --resume '{out}'" in said) == (how == "close")


def test_a_live_run_that_cannot_be_saved_on_closing_is_no_success(capture_folder: Path, tmp_path: Path) -> None:
    config = TrainConfig(iterations=100_000)
    engine = Engine(EngineConfig(), lambda capture, backend: RunPlan(config, tmp_path / "out")(capture, backend))
    engine.start()
    engine.send(commands.OpenScene(capture_folder, then_train=True))
    wait_until(lambda: engine.status().training.iteration > 3, "some steps")
    (tmp_path / "out" / "point_cloud").write_text("where the folder should be")
    with pytest.raises(InputError, match="point_cloud"):
        engine.close()


def test_a_failing_frame_is_reported_and_the_next_one_works(engine: Engine, tmp_path: Path) -> None:
    open_ball(engine, tmp_path)
    engine.request_view(ViewRequest(looking(0, width=-5)))
    wait_until(lambda: errors(engine), "an error line")
    engine.request_view(ViewRequest(looking(0)))
    wait_until(engine.picture, "a picture after the failure")
    assert len(errors(engine)) == 1, "the same failing request must not be tried again and again"


def test_a_screenshot_with_heatmap_leaves_picture_heatmap_and_counts(engine: Engine, tmp_path: Path) -> None:
    open_ball(engine, tmp_path)
    request = ViewRequest(looking(0.3, 200, 100), overlay="tiles")
    engine.send(commands.SaveScreenshot(request, tmp_path / "shots"))
    wait_until(lambda: any("Saved" in line.text for line in engine.status().log), "the files")
    frame = make_backend("cpu").render(ball(), request.camera)
    (counts,) = (tmp_path / "shots").glob("*.npy")
    np.testing.assert_array_equal(np.load(counts), frame.tile_counts)
    assert len(list((tmp_path / "shots").glob("*.png"))) == 2


def test_a_finished_model_is_never_written_over(capture_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out/point_cloud/iteration_60").mkdir(parents=True)
    (tmp_path / "out/point_cloud/iteration_60/point_cloud.ply").touch()
    capture = open_capture(capture_folder)
    with pytest.raises(InputError, match="already holds a trained model"):
        RunPlan(TrainConfig(), tmp_path / "out")(capture, make_backend("cpu"))
