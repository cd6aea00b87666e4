"""The trainer on the GPU's steps, which run on the CPU harness: the same run as on the CPU, saved, resumed, refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splatscope.assets.capture import Capture
from splatscope.kernels import splat_buffers
from splatscope.kernels.api import make_backend
from splatscope.kernels.cuda import CudaBackend
from splatscope.kernels.cuda_buffers import Capacity
from splatscope.kernels.types import Gaussians
from splatscope.training import device_step, ops
from splatscope.training.checkpoint import newest_checkpoint
from splatscope.training.config import DensifyConfig, TrainConfig
from splatscope.training.errors import NotFiniteError
from splatscope.training.events import Densified, Evaluated, Stepped
from splatscope.training.trainer import Beginning, Trainer
from tests.cuda_on_cpu.run import is_supported
from tests.cuda_pipeline import emulated_renderer
from tests.cuda_training import IN_ORDER, LAZY, emulated_step, step_kernels
from tests.small_capture import SHORT, make_capture

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

DENSIFY = DensifyConfig(start=2, interval=4, stop=11, reset_interval=6, gradient_threshold=1e-5)
CONFIG = replace(SHORT, iterations=12, sh_interval=5, densify=DENSIFY, test_iterations=(), test_interval=0)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("capture"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[], CudaBackend]:
    """Makes backends whose kernels, and those of their training steps, run on this processor."""

    def training_step(backend: CudaBackend, state: ops.SplatState) -> Any:
        return emulated_step(ops.as_gaussians(state.raw), IN_ORDER)

    monkeypatch.setattr(device_step, "_training_step", training_step)
    monkeypatch.setattr(CudaBackend, "warm_up", lambda *_, **__: None)
    return lambda: CudaBackend(emulated_renderer(step_kernels()))


def run(trainer: Trainer) -> list[Any]:
    return list(trainer.run())


def of_type(events: list[Any], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_a_run_on_the_gpu_is_that_on_the_cpu(capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path) -> None:
    runs = [run(Trainer(capture, CONFIG, b, tmp_path / b.name)) for b in (make_backend("cpu"), gpu())]
    scores = [of_type(events, Evaluated)[-1] for events in runs]
    assert scores[1].psnr == pytest.approx(scores[0].psnr, abs=0.3)
    densified = [of_type(events, Densified) for events in runs]
    assert [event.iteration for event in densified[1]] == [event.iteration for event in densified[0]] == [4, 8]
    first = [events[0] for events in densified]
    assert first[1].cloned + first[1].split == pytest.approx(first[0].cloned + first[0].split, abs=3)
    steps = of_type(runs[1], Stepped)
    assert [event.iteration for event in steps] == list(range(1, 13))
    losses = [[event.loss for event in of_type(events, Stepped)] for events in runs]
    assert losses[1][:4] == pytest.approx(losses[0][:4], rel=1e-4)


def test_a_resumed_run_goes_on_where_it_stood(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Trainer(capture, CONFIG, gpu(), tmp_path / "whole")
    run(whole)
    half = Trainer(capture, CONFIG, gpu(), tmp_path / "half")
    for event in half.run():
        if isinstance(event, Stepped) and event.iteration == 7:
            break
    half.save()
    path, checkpoint = newest_checkpoint(tmp_path / "half")
    assert checkpoint.iteration == 7
    monkeypatch.setattr(Capacity, "of", lambda count: Capacity(64, 512))  # and must grow first
    rest = Trainer(capture, CONFIG, gpu(), tmp_path / "rest", Beginning(path, checkpoint))
    run(rest)
    assert rest.gaussians.count == whole.gaussians.count
    for name in ("means", "log_scales", "logit_opacities", "sh"):
        got, wanted = (getattr(trainer.gaussians, name) for trainer in (rest, whole))
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=2e-3 * np.abs(wanted).max(), err_msg=name)


def test_a_loss_that_is_not_finite_names_view_and_iteration_and_the_run_can_go_on(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path
) -> None:
    config = replace(CONFIG, densify=DensifyConfig(enabled=False))
    trainer = Trainer(capture, config, gpu(), tmp_path / "run")
    events = trainer.run()
    for event in events:
        if isinstance(event, Stepped) and event.iteration == 3:
            break
    before = trainer.snapshot()
    background = trainer.dataset.background
    trainer.dataset.background = (float("nan"), 0.0, 0.0)
    with pytest.raises(NotFiniteError, match="iteration 4") as caught:
        for _ in events:
            pass
    assert caught.value.view in [view.name for view in trainer.dataset.training_views]
    assert trainer.iteration == 3
    trainer.dataset.background = background
    after = trainer.snapshot()
    for name, tensor in before.tensors.items():
        if name.startswith(("raw", "first", "second")):
            np.testing.assert_array_equal(tensor.numpy(), after.tensors[name].numpy(), err_msg=name)
    assert of_type(list(trainer.run()), Stepped)[-1].iteration == config.iterations


@pytest.mark.parametrize("strategy", ["mcmc", "budget"])
def test_other_strategies_move_splats_on_the_gpu(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, strategy: Any
) -> None:
    groups = {
        name: replace(getattr(TrainConfig(), name), start=1, stop=9, interval=3, max_splats=150)
        for name in ("mcmc", "budget")
    }
    config = replace(CONFIG, strategy=strategy, opacity_penalty=0.01, scale_penalty=0.01, **groups)
    trainer = Trainer(capture, config, gpu(), tmp_path / "run")
    events = run(trainer)
    assert of_type(events, Densified)
    assert 120 < trainer.gaussians.count <= 150
    assert np.isfinite(trainer.gaussians.means).all()


def test_pictures_while_training_are_of_the_live_splats_without_copies_and_with_all_harmonics_caught_up(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, camera = gpu(), capture.views[0].camera
    trainer = Trainer(capture, replace(CONFIG, sh_interval=2), backend, tmp_path / "run")
    stepper: Any = trainer._stepper
    stepper._training.policy = LAZY
    for event in trainer.run():
        if not isinstance(event, Stepped):
            continue
        if event.iteration == 10:
            break
        with monkeypatch.context() as patch:
            patch.setattr(splat_buffers, "_fetched", None)  # no array is brought to the host for a picture
            live = backend.render(trainer.gaussians, camera, trainer.settings).image
        names = ("means", "log_scales", "quats", "logit_opacities", "sh")
        copied = Gaussians(*(getattr(trainer.gaussians, name) for name in names))
        assert np.array_equal(backend.render(copied, camera, trainer.settings).image, live)
        assert trainer.gaussians.count == copied.count
    assert trainer.sh_degree == 3
