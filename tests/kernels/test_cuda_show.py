"""Tests the CUDA backend behind a window: bytes for the screen, arrays on demand, one upload, kernels compiled once."""

from __future__ import annotations

import os
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splatscope.app.engine.engine import Engine, EngineConfig
from splatscope.app.options.subcommands import ViewOptions, parse
from splatscope.assets.splats.ply import write_ply
from splatscope.kernels.cuda import backend as cuda
from splatscope.kernels.cuda import kernel_store, renderer
from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.kernels.cuda.kernel_store import KernelStore
from splatscope.kernels.cuda.launch import compiler, launcher
from splatscope.kernels.cuda.launch.buffers import Capacity
from splatscope.kernels.cuda.launch.compiler import Source, prune_cache
from splatscope.kernels.cuda.launch.launcher import Launcher, Marks, StageTimer
from splatscope.kernels.cuda.plan.passes import Pass
from splatscope.kernels.cuda.renderer import SCENE_ARRAYS
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Camera, Float32, Frame, RenderSettings
from splatscope.viewer.figures.overlays import picture_rgba
from splatscope.viewer.messages import commands, view
from tests.app.test_engine import wait_until
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_pipeline import EmulatedLauncher, HostMemory, Kernels, emulated_renderer, pass_for
from tests.support.small_scenes import random_camera, random_scene

emulated = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

BEST = Policy()
BF16 = BEST.with_value("project", "sh_dtype", "bf16")
CAMERA = random_camera(64, 48)
SCENE = random_scene(CAMERA, 100, seed=11, degree=2)
SETTINGS = RenderSettings(background=(0.2, 0.4, 0.7))
KERNELS = Kernels([pass_for(policy, CAMERA, training=False, wants_depth=True) for policy in (BEST, BF16)])


@pytest.fixture
def backend() -> CudaBackend:
    return CudaBackend(emulated_renderer(KERNELS))


# ---- Pictures --------------------------------------------------------------------------------------------------------


@emulated
def test_what_is_shown_is_the_rendered_frame_as_bytes_and_the_rest_on_demand(backend: CudaBackend) -> None:
    rendered = backend.render(SCENE, CAMERA, SETTINGS)
    rgba, frame = backend.show(SCENE, CAMERA, SETTINGS)
    np.testing.assert_array_equal(rgba, picture_rgba(rendered.image))
    assert not {"image", "depth", "transmittance"} & set(vars(frame)), "nobody has asked for them"
    backend.show(SCENE, replace(CAMERA, fx=20.0), SETTINGS)  # overwrites what the frame was made of
    for field in fields(Frame):
        if field.name != "stage_ms":
            np.testing.assert_array_equal(getattr(frame, field.name), getattr(rendered, field.name), field.name)


@emulated
def test_values_beyond_the_screens_range_are_clamped_as_on_the_cpu(backend: CudaBackend) -> None:
    import torch

    values = np.array([-1.0, 0.0, 0.5, 126.5 / 255, 127.5 / 255, 1.0, 7.0, np.inf, -np.inf], np.float32)
    image = np.ascontiguousarray(np.broadcast_to(values[None, :, None], (2, len(values), 3)))
    rgba = cuda.RgbaConverter()(torch.from_numpy(image)).numpy()
    np.testing.assert_array_equal(rgba, picture_rgba(image))


@emulated
def test_a_scene_is_uploaded_once_and_plans_outlive_a_training_step(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, render = 0, backend.renderer
    from_host = renderer._from_host

    def counting(array: Float32) -> Any:
        nonlocal copies
        copies += 1
        return from_host(array)

    monkeypatch.setattr(renderer, "_from_host", counting)
    first = backend.show(SCENE, CAMERA, SETTINGS)[0]
    for _ in range(3):
        np.testing.assert_array_equal(backend.show(SCENE, CAMERA, SETTINGS)[0], first)
    assert copies == len(SCENE_ARRAYS) + 1
    captured = render.launcher.captured
    moved = replace(SCENE, means=SCENE.means + np.float32(0.05))  # a step of training: as many splats, elsewhere
    assert not np.array_equal(backend.show(moved, CAMERA, SETTINGS)[0], first)
    np.testing.assert_array_equal(backend.show(replace(SCENE), CAMERA, SETTINGS)[0], first)
    assert render.launcher.captured == captured, "the graph is still good"
    fewer = replace(SCENE, **{f.name: getattr(SCENE, f.name)[:50] for f in fields(SCENE)})
    assert backend.show(fewer, CAMERA, SETTINGS)[1].visible < backend.show(SCENE, CAMERA, SETTINGS)[1].visible


@emulated
def test_harmonics_in_bfloat16_follow_a_training_step(backend: CudaBackend) -> None:
    before = backend.show(SCENE, CAMERA, SETTINGS, BF16)[0]
    brighter = replace(SCENE, sh=SCENE.sh + np.float32(0.5))
    after = backend.show(brighter, CAMERA, SETTINGS, BF16)[0]
    assert after[..., :3].astype(int).sum() > before[..., :3].astype(int).sum()
    np.testing.assert_array_equal(backend.show(replace(SCENE), CAMERA, SETTINGS, BF16)[0], before)


@emulated
def test_a_picture_that_does_not_fit_is_shown_after_growth(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = backend.show(SCENE, CAMERA, SETTINGS)[0]
    monkeypatch.setattr(Capacity, "of", lambda count: Capacity(16, 64))
    small = CudaBackend(emulated_renderer(KERNELS))
    np.testing.assert_array_equal(small.show(SCENE, CAMERA, SETTINGS)[0], wanted)


@emulated
def test_a_policy_that_cannot_be_is_refused_before_it_is_compiled(backend: CudaBackend) -> None:
    with pytest.raises(InputError, match=r"needs blend\.exp = ex2"):
        backend.waiting_for(CAMERA, BEST.with_value("blend", "exp", "expf"))


@emulated
def test_the_engine_draws_and_measures_on_it(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainer = lambda *_: pytest.fail("nothing is trained here")  # noqa: E731
    engine = Engine(EngineConfig(), trainer, make_backend=lambda *_, **__: backend)
    engine.start()
    try:
        write_ply(tmp_path / "scene.ply", SCENE)
        engine.send(commands.OpenScene(tmp_path / "scene.ply"))
        for policy in (BEST, BF16):
            wanted = view.ViewRequest(CAMERA, SETTINGS, policy)
            engine.request_view(wanted)
            wait_until(lambda wanted=wanted: (p := engine.picture()) and p.request == wanted, "the picture")
            picture = engine.picture()
            assert picture is not None
            np.testing.assert_array_equal(picture.rgba, picture_rgba(picture.frame.image))
        engine.send(commands.Compare(view.ViewRequest(CAMERA, SETTINGS, BEST), BF16, ("bf16", "best"), pairs=2))
        wait_until(lambda: (c := engine.status().comparison) and c.done == 2, "the measurement")
        result = engine.status().comparison
        assert result is not None
        assert result.psnr is not None
        assert 40 < result.psnr < 100, "harmonics of 8 bits change the picture a little"
    finally:
        engine.close()


# ---- Kernels ---------------------------------------------------------------------------------------------------------


class Compiler:
    """Counts, and waits until it is let go."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.go = threading.Event()
        self.go.set()

    def __call__(self, source: Source, names: list[str], architecture: int) -> None:
        assert self.go.wait(10)
        self.calls += [(source.name, name.partition("<")[0]) for name in names]

    def drained(self) -> list[tuple[str, str]]:
        """Returns the kernels compiled since the last call; kernels that take units of a plan go by the stage they
        belong to.
        """
        calls, self.calls = self.calls, []
        return [(file, kernel.removesuffix("_queue").removesuffix("_chunks")) for file, kernel in calls]


@pytest.fixture(autouse=True)
def _cache_of_its_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps stores made here apart from the user's compiled kernels."""
    monkeypatch.setattr(kernel_store, "prune_cache", lambda: None)


def pass_of(policy: Policy, training: bool = True) -> Pass:
    return pass_for(policy, Camera.from_matrix(np.eye(4), 1280, 720, 1000, 1000, 640, 360), training, True)


def finish(store: KernelStore, made_for: Pass) -> None:
    deadline = time.monotonic() + 120
    while not store.start(made_for):
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("key", "value", "kernels"),
    [
        ("blend_backward.accum", "rgb", {"blend_backward"}),
        ("project.sh_load", "scalar", {"project"}),
        ("project_backward.sh_bwd", "regs", {"project_backward"}),
        ("bin.bounds", "circle3s", {"project", "emit"}),
        ("schedule.chunk", "off", {"ranges_plan", "blend", "blend_backward"}),
        ("launch.mode", "direct", set()),
    ],
)
def test_flipping_a_toggle_compiles_the_kernels_of_its_stage_and_flipping_back_none(
    key: str, value: str, kernels: set[str]
) -> None:
    compiler_, stage, _, name = Compiler(), *key.partition(".")
    store = KernelStore(90, compiler_)
    finish(store, pass_of(BEST))
    assert {"project", "blend", "blend_backward"} <= {kernel for _, kernel in compiler_.drained()}
    finish(store, pass_of(BEST.with_value(stage, name, value)))
    assert {kernel for _, kernel in compiler_.drained()} == kernels
    finish(store, pass_of(BEST))
    assert compiler_.drained() == []


def test_a_store_says_which_stages_wait_for_the_compiler_and_never_waits_itself() -> None:
    compiler_ = Compiler()
    store = KernelStore(90, compiler_)
    finish(store, pass_of(BEST))
    compiler_.go.clear()
    flipped = pass_of(BEST.with_value("blend_backward", "accum", "rgb"))
    assert not store.start(flipped)
    assert store.compiling(flipped) == ("blend_backward",)
    planned = pass_of(BEST.with_value("schedule", "cost_model", "seed"))
    assert not store.start(planned)
    assert store.compiling(planned) == ("schedule",), "under the name that the panel has for it"
    assert store.start(pass_of(BEST)), "what is compiled stays ready meanwhile"
    assert not store.is_awaited
    compiler_.go.set()
    finish(store, flipped)
    finish(store, planned)
    assert store.compiling(flipped) == ()


def test_who_waits_for_the_compiler_is_seen_from_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers a picture's call and a training step's: both take kernels from the backend's store."""
    compiler_ = Compiler()
    store = KernelStore(90, compiler_)
    monkeypatch.setattr(kernel_store, "load", lambda source, names: dict.fromkeys(names))
    backend = CudaBackend(renderer.Renderer(memory=HostMemory(EmulatedLauncher()), kernels=store, launcher=Launcher()))
    file, name = pass_of(BEST).kernels()["blend_backward"]
    compiler_.go.clear()
    waits = threading.Thread(target=lambda: store(file, [name]))
    waits.start()
    wait_until(lambda: backend.compiling, "the compiler to be waited for")
    compiler_.go.set()
    waits.join(10)
    assert not backend.compiling


def test_compiled_kernels_unused_for_long_or_beyond_the_limit_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compiler, "KEPT_BYTES", 250)
    now = time.time()
    for name, days in (("new", 0), ("week", 7), ("fortnight", 14), ("old", 40)):
        (tmp_path / f"{name}.json").write_bytes(bytes(100))
        used = now - 86400 * days
        os.utime(tmp_path / f"{name}.json", (used, used))
    prune_cache()
    assert {path.stem for path in tmp_path.iterdir()} == {"new", "week"}


# ---- Times -----------------------------------------------------------------------------------------------------------


class Event:
    """Marks a time on a clock that advances by 1 ms with each record."""

    now = 0.0

    def __init__(self) -> None:
        self.at = -1.0

    def record(self) -> None:
        Event.now += 1.0
        self.at = Event.now

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Event) -> float:
        return end_event.at - self.at


def test_profilers_are_told_of_stages_and_halves_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def record(name: str) -> AbstractContextManager[None]:
        told.append(name)
        return nullcontext()

    monkeypatch.setattr(launcher, "_nvtx_range", record)
    for nvtx in (False, True):
        launches = Launcher(nvtx=nvtx)
        with launches.range("forward"), launches.stage("blend"):
            pass
    assert told == ["forward", "blend"]
    options = parse(["view", "--nvtx"])
    assert isinstance(options, ViewOptions)
    assert options.nvtx


def test_spans_count_from_a_base_event_and_the_newest_frame_keeps_its_own() -> None:
    timeline = StageTimer(make_event=Event)
    base = timeline.mark()
    for _ in range(2):
        with timeline.stage("project"):
            pass
        with timeline.stage("blend"):
            pass
        timeline.end_frame()
        timeline.read_finished()  # gives the events back for reuse
    assert timeline.newest.spans(base) == [("project", 5.0, 6.0), ("blend", 7.0, 8.0)]
    assert timeline.newest.read() == {"project": 1.0, "blend": 1.0}
    assert Marks([]).read() == {}
