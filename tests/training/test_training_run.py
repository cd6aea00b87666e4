"""Tests whole runs on a small scene made here, and on a real capture where there is one."""

from __future__ import annotations

import itertools
import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from plyfile import PlyData

from splatscope.assets.capture import Capture
from splatscope.assets.splats.ply import read_ply
from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import host_math
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Float32, Gaussians
from splatscope.training import metrics
from splatscope.training.config import DataConfig, DensifyConfig, TrainConfig, config_from_dict
from splatscope.training.data.dataset import Dataset, Photograph
from splatscope.training.events import (
    Densified,
    Evaluated,
    Evaluating,
    Event,
    Finished,
    Forecast,
    Loading,
    Prepared,
    Saved,
    Stepped,
)
from splatscope.training.forecast import suggest
from splatscope.training.trainer import Trainer
from tests.support.places import DATA
from tests.support.small_capture import SHORT

TUMBLER = DATA / "train" / "tumbler"


def of_type(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def arrays(gaussians: Gaussians) -> list[Float32]:
    names = ("means", "log_scales", "quats", "logit_opacities", "sh")
    return [np.array(getattr(gaussians, name)) for name in names]


def test_held_out_views_gain_many_decibels(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    densify = DensifyConfig(start=100, interval=50, stop=400)
    config = replace(SHORT, iterations=500, test_iterations=(1,), test_interval=0, densify=densify)
    events = list(Trainer(capture, config, backend, tmp_path / "out").run())
    first, last = of_type(events, Evaluated)
    assert (first.label, first.views) == ("held-out PSNR", 3)
    assert last.psnr > first.psnr + 6
    assert last.ssim > first.ssim + 0.1


def test_events_tell_the_run_in_order(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    config = replace(SHORT, save_iterations=(30,))
    trainer = Trainer(capture, config, backend, tmp_path / "out")
    assert trainer.iteration == 0
    assert trainer.gaussians.count == 120
    events = list(trainer.run())
    assert [e.done for e in of_type(events, Loading)] == list(range(1, 25))
    (prepared,), (forecast,) = of_type(events, Prepared), of_type(events, Forecast)
    assert (prepared.training_views, prepared.held_out_views, prepared.count) == (21, 3, 120)
    assert prepared.warnings == ("3 photographs are missing.",)
    assert forecast.seconds > 0
    stepped = of_type(events, Stepped)
    assert [e.iteration for e in stepped] == list(range(1, 41))
    assert {"loss", "adam", "densify"} < set(stepped[0].stage_ms)
    assert stepped[0].stage_ms.keys() >= {"project", "blend"}
    assert [e.iteration for e in of_type(events, Densified)] == [10, 20, 30]
    assert [(e.done, e.total) for e in of_type(events, Evaluating)] == [(1, 3), (2, 3), (3, 3)] * 2
    assert [e.iteration for e in of_type(events, Evaluated)] == [20, 40]
    assert [e.iteration for e in of_type(events, Saved)] == [30, 40]
    assert events[-1] == Finished(40)
    for before, after in itertools.pairwise(of_type(events, Densified)):
        assert after.count == before.count + after.cloned + after.split - after.pruned
    assert trainer.sh_degree == 2


def bits_after(trainer: Trainer) -> tuple[list[float], list[Float32]]:
    losses = [event.loss for event in trainer.run() if isinstance(event, Stepped)]
    return losses, arrays(trainer.gaussians)


def test_one_seed_gives_one_result_at_any_thread_count(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    threads = numba.get_num_threads()
    results = []
    try:
        for i, count in enumerate((threads, 1)):
            numba.set_num_threads(count)
            results.append(bits_after(Trainer(capture, SHORT, backend, tmp_path / f"{i}")))
    finally:
        numba.set_num_threads(threads)
    (losses, splats), (losses_again, splats_again) = results
    assert losses == losses_again
    assert all(np.array_equal(a, b) for a, b in zip(splats, splats_again, strict=True))
    other = bits_after(Trainer(capture, replace(SHORT, seed=1), backend, tmp_path / "other"))
    assert other[0] != losses


def test_every_view_is_used_once_an_epoch(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    config = replace(SHORT, iterations=42, data=DataConfig(eval=True))
    seen: list[Camera] = []

    class Watching:
        """Wraps the backend and notes which cameras are differentiated."""

        def __getattr__(self, name: str) -> Any:
            return getattr(backend, name)

        def forward(self, gaussians: Gaussians, camera: Camera, *rest: Any) -> Any:
            seen.append(camera)
            return backend.forward(gaussians, camera, *rest)

    watching: Any = Watching()
    list(Trainer(capture, config, watching, tmp_path / "out").run())
    epochs = seen[-42:-21], seen[-21:]
    assert len(set(epochs[0])) == len(set(epochs[1])) == 21
    assert epochs[0] != epochs[1]


def test_the_output_folder_opens_again(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    trainer = Trainer(capture, SHORT, backend, out)
    list(trainer.run())
    saved = read_ply(out / "point_cloud" / "iteration_40" / "point_cloud.ply")
    trained = trainer.gaussians
    assert (trained.sh_degree, saved.sh_degree) == (2, 3)
    np.testing.assert_array_equal(saved.sh[:, :9], trained.sh)
    assert not saved.sh[:, 9:].any()
    for ours, theirs in zip(arrays(trained)[:4], arrays(saved)[:4], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    settings = json.loads((out / "settings.json").read_text())
    assert config_from_dict(settings["training"]) == SHORT
    assert len(json.loads((out / "cameras.json").read_text())) == 24
    assert eval((out / "cfg_args").read_text(), {"Namespace": Namespace}).source_path == str(capture.path)
    assert PlyData.read(str(out / "input.ply"))["vertex"].count == 120
    scores = json.loads((out / "metrics.json").read_text())
    assert [s["iteration"] for s in scores["scores"]] == [20, 40]
    assert scores["views"] == ["00.png", "08.png", "16.png"]
    assert not [p for p in out.rglob("*") if p.is_file() and p.suffix not in {".ply", ".json", ".pt", ""}]


def test_a_stopped_run_saves_what_is_there(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    trainer = Trainer(capture, SHORT, backend, tmp_path)
    run = trainer.run()
    for event in run:
        if isinstance(event, Stepped) and event.iteration == 13:
            break
    run.close()  # pyright: ignore[reportAttributeAccessIssue]
    path = trainer.save()
    assert path == tmp_path / "point_cloud" / "iteration_13" / "point_cloud.ply"
    np.testing.assert_array_equal(read_ply(path).means, trainer.gaussians.means)


def test_without_held_out_views_the_score_is_labelled_training(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    config = replace(SHORT, iterations=2, data=DataConfig(training_views_tested=5))
    (score,) = of_type(list(Trainer(capture, config, backend, tmp_path).run()), Evaluated)
    assert (score.label, score.views) == ("training PSNR", 5)


def test_a_loss_that_is_not_finite_stops_before_the_splats_are_touched(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    trainer = Trainer(capture, SHORT, backend, tmp_path)
    run = trainer.run()
    while not isinstance(next(run), Forecast):
        pass
    before = arrays(trainer.gaussians)
    view = trainer.dataset.training[0]
    poison = np.full((56, 72, 3), np.nan, np.float32)
    trainer.dataset.training[:] = [_with_target(view, poison)]
    with pytest.raises(InputError, match=rf"iteration 1: the loss on {view.name}"):
        next(run)
    assert trainer.iteration == 0
    assert all(np.array_equal(a, b) for a, b in zip(before, arrays(trainer.gaussians), strict=True))


def test_a_run_that_would_lose_every_splat_stops_with_them(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    config = replace(SHORT, densify=replace(SHORT.densify, smallest_opacity=0.9999))
    trainer = Trainer(capture, config, backend, tmp_path)
    with pytest.raises(InputError, match="iteration 10: a refine would remove every one of 120 splats"):
        list(trainer.run())
    assert trainer.gaussians.count == 120


def _with_target(view: Photograph, target: Float32) -> Any:
    return Namespace(name=view.name, camera=view.camera, target=lambda background: target, weights=lambda: None)


def test_a_folder_that_cannot_be_made_is_named(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = Trainer(capture, SHORT, backend, tmp_path / "file" / "out").run()
    with pytest.raises(InputError, match="file"):
        next(run)


def test_psnr_is_that_of_the_clamped_floats(backend: Backend) -> None:
    target = np.zeros((16, 16, 3), np.float32)
    image = np.full_like(target, 0.1)
    image[:8] = -5
    value, _ = metrics.score(image, target, host_math(backend))
    assert value == pytest.approx(-10 * np.log10(0.01 / 2), abs=1e-4)


def test_a_long_run_gets_the_mildest_resolution_that_makes_it_short() -> None:
    assert suggest(600, 1) == ""
    assert suggest(3600, 1).startswith("At resolution 2 (-r 2) ")
    assert suggest(4 * 3600, 1).startswith("At resolution 4 (-r 4) ")
    assert suggest(3600, 2.0).startswith("At resolution 4 (-r 4) ")
    assert suggest(50 * 3600, 2).startswith("At resolution 8 (-r 8) ")
    assert suggest(50 * 3600, 8) == ""


@pytest.mark.skipif(not TUMBLER.is_dir(), reason="the tumbler capture is not beside the checkout")
def test_a_real_capture_improves_within_a_few_dozen_steps(backend: Backend, tmp_path: Path) -> None:
    from splatscope.assets.colmap.captures import read_colmap

    config = TrainConfig(iterations=60, test_iterations=(1,), data=DataConfig(resolution=4, eval=True))
    real = read_colmap(TUMBLER)
    assert len(Dataset(real, config.data).held_out_views) == 10
    events = list(Trainer(real, config, backend, tmp_path).run())
    losses = [event.loss for event in of_type(events, Stepped)]
    first, last = of_type(events, Evaluated)
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])
    assert last.psnr > first.psnr + 2
