"""The trainer on the GPU's steps, which run on the CPU harness: the same run as on the CPU, saved, resumed, refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splatscope.assets.capture import Capture
from splatscope.kernels import splat_buffers
from splatscope.kernels.api import make_backend
from splatscope.kernels.cuda import CudaBackend
from splatscope.kernels.cuda_buffers import Capacity
from splatscope.kernels.errors import NoRoomError
from splatscope.kernels.splat_buffers import SHAPES
from splatscope.kernels.types import Gaussians
from splatscope.training import device_step, ops
from splatscope.training.checkpoint import newest_checkpoint
from splatscope.training.config import DensifyConfig, ExposureConfig, McmcConfig, TrainConfig
from splatscope.training.errors import NotFiniteError
from splatscope.training.events import Densified, Evaluated, GrowthStopped, Stepped
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


MCMC = replace(
    CONFIG,
    strategy="mcmc",
    opacity_penalty=0.01,
    scale_penalty=0.01,
    mcmc=McmcConfig(start=1, stop=9, interval=3, max_splats=150),
)


def test_a_resumed_run_shakes_its_splats_as_it_would_have(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path
) -> None:
    whole = Trainer(capture, MCMC, gpu(), tmp_path / "whole")
    run(whole)
    half = Trainer(capture, MCMC, gpu(), tmp_path / "half")
    for event in half.run():
        if isinstance(event, Stepped) and event.iteration == 7:
            break
    half.save()
    path, checkpoint = newest_checkpoint(tmp_path / "half")
    rest = Trainer(capture, MCMC, gpu(), tmp_path / "rest", Beginning(path, checkpoint))
    run(rest)
    for name in ("means", "log_scales", "logit_opacities", "sh"):
        np.testing.assert_array_equal(getattr(rest.gaussians, name), getattr(whole.gaussians, name), err_msg=name)


def test_splats_are_shaken_moved_added_and_reordered_where_they_are(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(capture, replace(MCMC, reorder_share=0.0), gpu(), tmp_path / "run")
    stepper: Any = trainer._stepper
    splats = stepper._training.splats
    place = splats.array("raw", "sh").data_ptr()
    copied: list[str] = []
    assign = splats.assign

    def watched(state: Any) -> None:
        copied.extend(name for name in SHAPES if not splats.holds(state, name))
        assign(state)

    monkeypatch.setattr(splats, "assign", watched)
    in_order: list[bool] = []  # after each refine
    plans = set()
    for event in trainer.run():
        if isinstance(event, Densified):
            in_order.append(bool((ops.morton_codes(splats.view("raw")["means"]).diff() >= 0).all()))
        if isinstance(event, Stepped):
            plans |= {id(prepared) for prepared in stepper._training._plans.values()}
    assert trainer.gaussians.count == 132  # two times a twentieth more than 120
    assert not copied
    assert splats.array("raw", "sh").data_ptr() == place
    assert len(plans) == 1  # nothing was planned, or captured, anew
    assert in_order == [True, True]


def test_growth_that_meets_no_memory_stops_with_one_message_and_the_run_goes_on(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(capture, CONFIG, gpu(), tmp_path / "run")
    stepper: Any = trainer._stepper

    def short(*_: Any) -> Any:
        raise NoRoomError("The GPU has no room for raw means.")

    stopped = None
    for event in trainer.run():
        if isinstance(event, GrowthStopped):
            assert stopped is None
            stopped = event
        if isinstance(event, Stepped) and event.iteration == 3:
            monkeypatch.setattr(stepper._splats, "rows", 121)  # as if there were no more
            monkeypatch.setattr(stepper._splats._memory, "empty", short)
            monkeypatch.setattr(stepper._training, "_make_room", lambda _: None)
    assert stopped is not None
    assert (stopped.iteration, stopped.count) == (4, 120)
    assert trainer.iteration == CONFIG.iterations
    assert trainer.gaussians.count <= 120
    assert np.isfinite(trainer.gaussians.means).all()


def test_exposures_learned_on_the_gpu_are_those_of_the_cpu(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path
) -> None:
    config = replace(CONFIG, densify=DensifyConfig(enabled=False), exposure=ExposureConfig(enabled=True))
    trainers = [Trainer(capture, config, b, tmp_path / b.name) for b in (make_backend("cpu"), gpu())]
    for trainer in trainers:
        run(trainer)
    cpu, found = (trainer.snapshot().group("exposure") for trainer in trainers)
    assert torch.equal(found["steps"], cpu["steps"])
    assert int(found["steps"].sum()) == config.iterations
    moved = (cpu["values"] - torch.eye(4, 3)).abs().max()
    assert 0.005 < float(moved) < 0.02
    assert float((found["values"] - cpu["values"]).abs().mean()) < 0.02 * float(moved)


def test_a_resumed_run_goes_on_with_its_exposures(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path
) -> None:
    config = replace(CONFIG, iterations=8, exposure=ExposureConfig(enabled=True))
    whole, half = (Trainer(capture, config, gpu(), tmp_path / name) for name in ("whole", "half"))
    run(whole)
    for event in half.run():
        if isinstance(event, Stepped) and event.iteration == 5:
            break
    half.save()
    rest = Trainer(capture, config, gpu(), tmp_path / "rest", Beginning(*newest_checkpoint(tmp_path / "half")))
    run(rest)
    found, wanted = (trainer.snapshot().group("exposure") for trainer in (rest, whole))
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name
    np.testing.assert_array_equal(rest.gaussians.means, whole.gaussians.means)


def test_absolute_pulls_make_other_splats_grow(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path
) -> None:
    config = replace(CONFIG, iterations=4, densify=replace(DENSIFY, absgrad=True))
    trainers = [Trainer(capture, config, b, tmp_path / b.name) for b in (make_backend("cpu"), gpu())]
    pulls = []
    for trainer in trainers:
        run(trainer)
        trainer.settle()
        pulls.append(np.asarray(trainer._strategy.statistics()["pull"].cpu()))
    signed = Trainer(capture, replace(config, densify=DENSIFY), make_backend("cpu"), tmp_path / "signed")
    run(signed)
    assert np.linalg.norm(pulls[1] - pulls[0]) < 0.02 * np.linalg.norm(pulls[0])
    assert pulls[0].sum() > 1.5 * float(signed._strategy.statistics()["pull"].sum())


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
