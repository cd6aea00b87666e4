"""Tests the trainer with the GPU's steps on the CPU harness: the same run as on the CPU, saved, resumed, refused."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from splatscope.app.options.policy import PolicyChoice
from splatscope.app.run import memory_forecast
from splatscope.app.run.controller import RunController
from splatscope.app.run.headless import train_in_terminal
from splatscope.app.run.memory_forecast import memory_use
from splatscope.assets.capture import Capture
from splatscope.assets.splats.ply import read_ply
from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import make_backend
from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.kernels.cuda.launch.buffers import Capacity
from splatscope.kernels.cuda.step import splats as splat_buffers
from splatscope.kernels.cuda.step.splats import SHAPES
from splatscope.kernels.cuda.training_step import TrainingStep
from splatscope.kernels.errors import InputError, NoRoomError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Gaussians
from splatscope.training.config import DataConfig, DensifyConfig, ExposureConfig, InitialConfig, McmcConfig, TrainConfig
from splatscope.training.errors import NotFiniteError
from splatscope.training.events import Densified, Evaluated, GrowthStopped, Stepped
from splatscope.training.files.checkpoint import newest_checkpoint
from splatscope.training.splats import rows
from splatscope.training.trainer import Beginning, Trainer
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_pipeline import emulated_renderer
from tests.support.cuda_training import IN_ORDER, LAZY, emulated_step, filter_kernels, filtered, kept_as, step_kernels
from tests.support.small_capture import SHORT, make_capture

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

DENSIFY = DensifyConfig(start=2, interval=4, stop=11, reset_interval=6, gradient_threshold=1e-5)
CONFIG = replace(SHORT, iterations=12, sh_interval=5, densify=DENSIFY, test_iterations=(), test_interval=0)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("capture"), scale=0.5)  # 3 x 2 tiles: the harness is slow


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[], CudaBackend]:
    """Makes backends whose kernels, and those of their training steps, run on this processor."""

    def training_step(backend: CudaBackend, gaussians: Gaussians, policy: Policy, *_: Any) -> TrainingStep:
        return emulated_step(gaussians, filtered(IN_ORDER, policy.project.filter))

    monkeypatch.setattr(CudaBackend, "training_step", training_step)
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


def test_each_loss_ends_up_with_its_own_iteration_however_late_it_is_known(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [event.loss for event in of_type(run(Trainer(capture, CONFIG, gpu(), tmp_path / "prompt")), Stepped)]
    outcomes, kept = TrainingStep.outcomes, []

    def hold_back(training: TrainingStep, wait: bool = False) -> list[Any]:
        kept.extend(outcomes(training, wait))
        return [kept.pop(0) for _ in range(len(kept) if wait else len(kept) - 3)]

    monkeypatch.setattr(TrainingStep, "outcomes", hold_back)
    late = Trainer(capture, CONFIG, gpu(), tmp_path / "late")
    shown = [event.loss for event in of_type(run(late), Stepped)]
    assert late.history[0] == wanted != shown, "while steps run, the newest loss that is known is shown"


def test_a_run_with_another_filter_steps_and_scores_with_it_as_on_the_cpu(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path
) -> None:
    small = InitialConfig(scale_factor=0.1)  # splats of less than a pixel, which filters matter to
    config = replace(CONFIG, iterations=6, antialiasing="mip", initial=small, densify=DensifyConfig(enabled=False))
    gpu()  # makes training steps those of the harness
    on_gpu = CudaBackend(emulated_renderer(filter_kernels()))
    backends: dict[str, Backend] = {"plain": make_backend("cpu"), "mip": make_backend("cpu"), "gpu": on_gpu}
    runs = {}
    for name, backend in backends.items():
        own = replace(config, antialiasing="plain") if name == "plain" else config
        runs[name] = run(Trainer(capture, own, backend, tmp_path / name))
    losses = {name: [event.loss for event in of_type(events, Stepped)] for name, events in runs.items()}
    assert losses["gpu"] == pytest.approx(losses["mip"], rel=1e-4)
    scores = {name: of_type(events, Evaluated)[-1].psnr for name, events in runs.items()}
    assert scores["gpu"] == pytest.approx(scores["mip"], abs=0.01)
    assert abs(scores["plain"] - scores["mip"]) > 0.1


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
    trainer = Trainer(capture, replace(CONFIG, densify=DensifyConfig(enabled=False)), gpu(), tmp_path / "run")
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
    assert of_type(list(trainer.run()), Stepped)[-1].iteration == CONFIG.iterations


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


@pytest.mark.parametrize("sh_dtype", ["f32", "split"])
def test_splats_are_shaken_moved_added_and_reordered_where_they_are(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sh_dtype: str
) -> None:
    trainer = Trainer(capture, replace(MCMC, reorder_share=0.0), gpu(), tmp_path / "run")
    stepper: Any = trainer.stepper
    splats = stepper.training.splats
    stepper.training.policy = kept_as(IN_ORDER, sh_dtype)
    splats.keep_harmonics_as(sh_dtype)
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
            in_order.append(bool((rows.morton_codes(splats.view("raw")["means"]).diff() >= 0).all()))
        if isinstance(event, Stepped):
            plans |= {id(prepared) for prepared in stepper.training.plans.values()}
    assert trainer.gaussians.count == 132  # two times a twentieth more than 120
    assert not copied
    assert splats.array("raw", "sh").data_ptr() == place
    assert len(plans) == 1  # nothing was planned, or captured, anew
    assert in_order == [True, True]


def test_growth_that_meets_no_memory_stops_with_one_message_and_the_run_goes_on(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(capture, CONFIG, gpu(), tmp_path / "run")
    stepper: Any = trainer.stepper

    def short(*_: Any) -> Any:
        raise NoRoomError("The GPU has no room for raw means.")

    stopped = None
    for event in trainer.run():
        if isinstance(event, GrowthStopped):
            assert stopped is None
            stopped = event
        if isinstance(event, Stepped) and event.iteration == 3:
            monkeypatch.setattr(stepper.training.splats, "rows", 121)  # as if there were no more
            monkeypatch.setattr(stepper.training.memory, "empty", short)
    assert stopped is not None
    assert (stopped.iteration, stopped.count) == (4, 120)
    assert trainer.iteration == CONFIG.iterations
    assert trainer.gaussians.count <= 120
    assert np.isfinite(trainer.gaussians.means).all()


def test_exposures_learned_on_the_gpu_are_those_of_the_cpu(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path
) -> None:
    config = replace(CONFIG, densify=DensifyConfig(enabled=False), exposure=ExposureConfig(True, 0.01, delay_steps=0))
    trainers = [Trainer(capture, config, b, tmp_path / b.name) for b in (make_backend("cpu"), gpu())]
    for trainer in trainers:
        run(trainer)
    cpu, found = (trainer.snapshot().group("exposure") for trainer in trainers)
    assert torch.equal(found["steps"], cpu["steps"])
    assert int(found["steps"].sum()) == config.iterations
    moved = float((cpu["values"] - torch.eye(4, 3)).abs().max())
    assert 0.005 < moved < 0.02
    assert float((found["values"] - cpu["values"]).abs().mean()) < 0.02 * moved


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
        pulls.append(np.asarray(trainer.state.strategy.statistics()["pull"].cpu()))
    signed = Trainer(capture, replace(config, densify=DENSIFY), make_backend("cpu"), tmp_path / "signed")
    run(signed)
    assert np.linalg.norm(pulls[1] - pulls[0]) < 0.02 * np.linalg.norm(pulls[0])
    assert pulls[0].sum() > 1.5 * float(signed.state.strategy.statistics()["pull"].sum())


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


@pytest.mark.parametrize("policy", [LAZY, kept_as(IN_ORDER, "split"), kept_as(IN_ORDER, "bf16")])
def test_pictures_while_training_are_of_the_live_splats_without_copies_and_with_all_harmonics_caught_up(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    backend, camera = gpu(), capture.views[0].camera
    trainer = Trainer(capture, replace(CONFIG, sh_interval=2), backend, tmp_path / "run")
    trainer.use(policy)
    for event in trainer.run():
        if not isinstance(event, Stepped):
            continue
        if event.iteration == 10:
            break
        drawn = Policy(), policy.with_value("optimizer", "adam", "fused")
        with monkeypatch.context() as patch:
            patch.setattr(splat_buffers, "_fetched", None)  # no array is brought to the host for a picture
            live = [backend.render(trainer.gaussians, camera, trainer.settings, p).image for p in drawn]
        names = ("means", "log_scales", "quats", "logit_opacities", "sh")
        copied = Gaussians(*(getattr(trainer.gaussians, name) for name in names))
        for picture, p in zip(live, drawn, strict=True):
            assert np.array_equal(backend.render(copied, camera, trainer.settings, p).image, picture)
        assert trainer.gaussians.count == copied.count
    assert trainer.sh_degree == 3
    assert trainer.sh_dtype == policy.project.sh_dtype


def test_a_run_without_a_window_goes_by_its_toggles_from_the_first_step(
    capture: Capture,
    gpu: Callable[[], CudaBackend],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(memory_forecast, "_of_gpu", lambda: (3 << 30, 8 << 30))
    trainer = Trainer(capture, replace(CONFIG, iterations=3), gpu(), tmp_path / "run")
    policy = kept_as(IN_ORDER, "split")
    used = []
    take = trainer.stepper.take
    monkeypatch.setattr(trainer.stepper, "take", lambda *args: (used.append(trainer.sh_dtype), take(*args))[1])
    train_in_terminal(trainer, PolicyChoice(given=(("project.sh_dtype", "split"),), policy=policy))
    assert used == ["split"] * 3
    assert "Toggles: best" in capsys.readouterr().out


SPLIT = kept_as(IN_ORDER, "split")


def test_a_run_in_words_scores_next_to_one_in_single_precision(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path
) -> None:
    scores = []
    for sh_dtype in ("f32", "split", "bf16"):
        trainer = Trainer(capture, CONFIG, gpu(), tmp_path / sh_dtype)
        trainer.use(kept_as(IN_ORDER, sh_dtype))
        scores.append(of_type(run(trainer), Evaluated)[-1].psnr)
        assert trainer.sh_dtype == sh_dtype
    assert scores[1:] == pytest.approx([scores[0]] * 2, abs=0.05)


def test_a_run_in_words_is_saved_in_single_precision_and_resumed_in_any(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path
) -> None:
    whole, half = (Trainer(capture, replace(MCMC, reorder_share=0.0), gpu(), tmp_path / name) for name in "ab")
    whole.use(SPLIT)
    run(whole)
    half.use(SPLIT)
    for event in half.run():
        if isinstance(event, Stepped) and event.iteration == 7:
            break
    written = read_ply(half.save())
    np.testing.assert_array_equal(written.sh[:, : half.gaussians.sh.shape[1]], half.gaussians.sh)
    path, checkpoint = newest_checkpoint(tmp_path / "b")
    tensors = checkpoint.tensors
    assert tensors["raw.sh"].dtype == torch.float32
    np.testing.assert_array_equal(tensors["raw.sh"].numpy(), half.gaussians.sh)
    for sh_dtype in ("split", "f32", "bf16"):
        rest = Trainer(capture, half.config, gpu(), tmp_path / sh_dtype, Beginning(path, checkpoint))
        assert torch.equal(rest.snapshot().tensors["raw.sh"], tensors["raw.sh"])
        rest.use(kept_as(IN_ORDER, sh_dtype))
        run(rest)
        for name in ("means", "log_scales", "logit_opacities", "sh"):
            got, wanted = (getattr(trainer.gaussians, name) for trainer in (rest, whole))
            if sh_dtype == "split":
                np.testing.assert_array_equal(got, wanted, err_msg=name)
            assert np.linalg.norm(got - wanted) < 0.02 * np.linalg.norm(wanted), name


def test_a_change_of_how_harmonics_are_kept_leaves_the_run_whole_or_is_refused_in_one_sentence(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(capture, CONFIG, gpu(), tmp_path / "run")
    stepper: Any = trainer.stepper
    splats, before, kept = stepper.training.splats, None, []
    for event in trainer.run():
        if not isinstance(event, Stepped):
            continue
        kept.append(trainer.sh_dtype)
        before = trainer.snapshot()
        if event.iteration in (2, 6):
            trainer.use({2: SPLIT, 6: IN_ORDER}[event.iteration])
        if event.iteration == 9:
            monkeypatch.setattr(splats, "_new_harmonics", short_of_room)
            trainer.use(SPLIT)
        if event.iteration == 10:
            with pytest.raises(
                InputError, match=r"Training continues with project\.sh_dtype = f32\. The GPU has no room"
            ):
                trainer.use(SPLIT)
            trainer.use(SPLIT)  # said once
    assert kept == ["f32"] * 2 + ["split"] * 4 + ["f32"] * 6
    assert before is not None
    steady = Trainer(capture, CONFIG, gpu(), tmp_path / "steady")
    run(steady)
    for name, tensor in steady.snapshot().tensors.items():
        if name.startswith(("raw", "first")):
            wanted, got = tensor.numpy(), before.tensors[name].numpy()
            assert got.shape == wanted.shape
            assert np.linalg.norm(got - wanted) < 0.05 * np.linalg.norm(wanted), name


def test_memory_is_foreseen_for_how_harmonics_are_kept(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_forecast, "_of_gpu", lambda: (3 << 30, 8 << 30))
    needed = []
    for sh_dtype in ("f32", "split", "bf16"):
        trainer = Trainer(capture, replace(MCMC, mcmc=McmcConfig(max_splats=1_000_000)), gpu(), tmp_path / sh_dtype)
        stepper: Any = trainer.stepper
        stepper.training.splats.keep_harmonics_as(sh_dtype)
        needed.append(memory_use(trainer).needed / 1e6)
    assert needed[1] - needed[0] == pytest.approx(192), "a copy in float32 for files and density control"
    assert needed[2] - needed[1] == pytest.approx(-2.3 * 96), "half of the numbers, and of those to grow into"


def short_of_room(*_: Any) -> Any:
    raise NoRoomError("The GPU has no room for harmonics.")


@pytest.mark.parametrize("data", [DataConfig(alpha="mask"), DataConfig(random_background=True)])
def test_masks_of_only_some_photographs_train_as_on_the_cpu(
    data: DataConfig, gpu: Callable[[], CudaBackend], tmp_path: Path
) -> None:
    (tmp_path / "pictures").mkdir()
    capture = make_capture(tmp_path / "pictures", cut_out=True, scale=0.5)
    for view in capture.views[::2]:
        with Image.open(view.image_path) as image:
            plain = image.convert("RGB")
        plain.save(view.image_path)
    config = replace(CONFIG, iterations=8, data=data, densify=DensifyConfig(enabled=False))
    losses = []
    for backend in (make_backend("cpu"), gpu()):
        trainer = Trainer(capture, config, backend, tmp_path / backend.name)
        losses.append([event.loss for event in of_type(run(trainer), Stepped)])
        views = trainer.dataset.training
        assert {view.weight is not None for view in views} | {view.coverage is not None for view in views} == {0, 1}
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)


def test_a_run_is_let_go_of_before_another_takes_its_place(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path
) -> None:
    """Covers all that was made to draw the run; otherwise the GPU would hold both."""
    backend = gpu()
    held: list[bool] = []

    def factory(capture: Capture, backend: Any) -> Trainer:
        held.extend(ref() is not None for ref in watched)
        return Trainer(capture, CONFIG, backend, tmp_path / "run")

    watched: list[weakref.ref[Any]] = []
    run = RunController(factory(capture, backend), lambda *_: None, factory)
    run.start(until=2)
    while run.active:
        run.advance()
    trainer = run.trainer
    backend.render(trainer.gaussians, capture.views[0].camera)
    watched += [weakref.ref(trainer), weakref.ref(trainer.state.splats.raw.means.untyped_storage())]
    watched += [weakref.ref(trainer.stepper)]
    del trainer
    run.reset()
    assert held == [False, False, False]
    assert run.trainer.iteration == 0
