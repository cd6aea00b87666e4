"""Tests settings that change while pictures are drawn: compiling, refusals, two settings compared, traces."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from splatscope.app.engine.ab_measurement import compare_stages
from splatscope.app.engine.active_policy import first_error
from splatscope.app.engine.engine import Engine, EngineConfig
from splatscope.app.engine.trace import TraceRecorder
from splatscope.app.provenance import Provenance
from splatscope.app.run.controller import TrainerFactory
from splatscope.app.run.plan import RunPlan
from splatscope.assets.capture import Capture
from splatscope.assets.splats.ply import read_ply
from splatscope.kernels import backends
from splatscope.kernels.backend import Backend, LiveBackend, Span
from splatscope.kernels.backends import make_backend
from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.cuda.launch.compiler import CompileError, Source, compile_kernels, nvrtc_path
from splatscope.kernels.cuda.plan.passes import source
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.types import Camera, Frame, Gaussians, RenderSettings
from splatscope.training.config import TrainConfig
from splatscope.training.trainer import Trainer
from splatscope.viewer.figures import overlays
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.commands import Compare
from splatscope.viewer.messages.view import ViewRequest
from tests.app.test_engine import ball, errors, looking, open_ball, wait_until, write_capture

PLAIN, BEST = RenderSettings(), Policy()
WIDE = BEST.with_value("bin", "bounds", "circle3s")
BROKEN = BEST.with_value("blend", "exp", "expf")


@dataclass
class Shown:
    """Holds a picture that is drawn already, and is ready when its maker says so."""

    made: tuple[NDArray[np.uint8], Frame]
    by: PretendedGpu

    @property
    def ready(self) -> bool:
        return self.by.done

    def finish(self) -> tuple[NDArray[np.uint8], Frame]:
        return self.made


class PretendedGpu(CpuBackend):
    """Draws on the CPU, but must compile each policy first, which a test permits; `BROKEN` does not compile."""

    def __init__(self) -> None:
        super().__init__()
        self.compiled = {BEST, BROKEN}
        self.shown: list[Policy] = []
        self.done = True  # pictures are ready at once
        self._spans: list[Span] = []

    def waiting_for(self, camera: Camera, policy: Policy, primitive: Primitive = "3dgs") -> tuple[str, ...]:
        return () if policy in self.compiled else ("project", "bin")

    def show(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings = PLAIN, policy: Policy = BEST
    ) -> tuple[NDArray[np.uint8], Frame]:
        if policy == BROKEN:
            raise CompileError('blend.cuh does not compile for sm_90:\nblend.cuh(12): error: "expg" is undefined\nmore')
        start = time.perf_counter()
        frame = self.render(gaussians, camera, settings, policy)
        end = time.perf_counter()
        self._spans = [("project", start, (start + end) / 2), ("blend", (start + end) / 2, end)]
        self.shown.append(policy)
        return overlays.picture_rgba(frame.image), replace(frame, stage_ms={"project": 0.1, "blend": 0.2})

    def begin_show(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings = PLAIN, policy: Policy = BEST
    ) -> Shown:
        return Shown(self.show(gaussians, camera, settings, policy), self)

    def start_clock(self) -> None:
        self._spans = []

    def newest_spans(self) -> list[Span]:
        return self._spans


def running(
    backend: Backend, make_trainer: TrainerFactory = lambda *_: pytest.fail("nothing is trained here")
) -> Engine:
    made = Engine(EngineConfig(), make_trainer, make_backend=lambda *_, **__: backend)
    made.start()
    return made


@pytest.fixture
def gpu() -> PretendedGpu:
    return PretendedGpu()


@pytest.fixture
def live(gpu: PretendedGpu, tmp_path: Path) -> Iterator[Engine]:
    engine = running(gpu)
    open_ball(engine, tmp_path)
    yield engine
    engine.close()


@pytest.fixture
def on_cpu(tmp_path: Path) -> Iterator[Engine]:
    engine = running(make_backend("cpu"))
    open_ball(engine, tmp_path)
    yield engine
    engine.close()


def shown(engine: Engine, request: ViewRequest) -> bool:
    picture = engine.picture()
    return picture is not None and picture.request == request


# ---- Settings --------------------------------------------------------------------------------------------------------


def test_pictures_go_on_with_the_old_setting_until_the_new_one_is_compiled(live: Engine, gpu: PretendedGpu) -> None:
    live.request_view(ViewRequest(looking(0)))
    wait_until(lambda: shown(live, ViewRequest(looking(0))), "a picture")
    for k in range(1, 6):
        live.request_view(ViewRequest(looking(k), policy=WIDE))
        wait_until(lambda k=k: shown(live, ViewRequest(looking(k))), "a picture with the old setting")
        assert live.status().compiling == ("project", "bin")
        assert live.status().policy == BEST
    gpu.compiled.add(WIDE)
    wait_until(lambda: shown(live, ViewRequest(looking(5), policy=WIDE)), "the new setting")
    wait_until(lambda: live.status().policy == WIDE and not live.status().compiling, "the news of it")
    assert not errors(live)


def test_a_setting_that_does_not_compile_is_refused_in_one_sentence_and_the_old_one_stays(live: Engine) -> None:
    live.request_view(ViewRequest(looking(0)))
    wait_until(live.picture, "a picture")
    live.request_view(ViewRequest(looking(1), policy=BROKEN))
    wait_until(lambda: shown(live, ViewRequest(looking(1))), "a picture with the old setting")
    (sentence,) = errors(live)
    assert sentence == (
        "This setting cannot be used; the one before stays. "
        'blend.cuh does not compile for sm_90: blend.cuh(12): error: "expg" is undefined'
    )
    assert live.status().refused == BROKEN
    live.request_view(ViewRequest(looking(2), policy=BROKEN))
    wait_until(lambda: shown(live, ViewRequest(looking(2))), "the next view")
    assert len(errors(live)) == 1, "it is said once"
    live.request_view(ViewRequest(looking(2)))
    wait_until(lambda: live.status().refused is None, "the refusal to be forgotten")


@pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC")
def test_what_the_compiler_says_becomes_one_sentence_with_our_line(capsys: pytest.CaptureFixture[str]) -> None:
    good = source("bin.cuh")
    files = tuple((n, text + "\n__device__ int f() { return nothing; }" * (n == good.name)) for n, text in good.files)
    with pytest.raises(CompileError) as caught:
        compile_kernels(Source(good.name, files), ["offsets<OffsetsPolicy{}>"], 90)
    sentence = first_error(caught.value)
    assert re.fullmatch(r'bin\.cuh does not compile for sm_90: bin\.cuh\(\d+\): error: .*"nothing".*', sentence)
    assert "return nothing" in capsys.readouterr().err, "all of it goes to the terminal"


def test_training_goes_on_while_a_picture_is_on_its_way_and_the_last_one_shows_its_outcome(
    gpu: PretendedGpu, tmp_path: Path
) -> None:
    def make(capture: Capture, backend: Backend) -> Trainer:
        return RunPlan(TrainConfig(iterations=80, seed=3), tmp_path / "run")(capture, backend)

    engine = running(gpu, make)
    try:
        engine.send(commands.OpenScene(write_capture(tmp_path / "capture")))
        engine.request_view(ViewRequest(looking(0)))
        wait_until(engine.picture, "a picture of the untrained splats")
        before = engine.picture()
        assert before is not None
        gpu.done = False  # from now on pictures stay on their way
        engine.send(commands.StartTraining(until=40))
        wait_until(lambda: engine.status().training.iteration >= 30, "steps behind the picture")
        is_running = engine.status().training.state == "running"
        serial = (engine.picture() or before).serial
        assert not is_running or serial == before.serial
        gpu.done = True
        wait_until(lambda: engine.status().training.state == "paused", "the pause")
        wait_until(lambda: (p := engine.picture()) and p.serial > before.serial, "the picture")
        engine.send(commands.StartTraining())
        wait_until(lambda: engine.status().training.state == "finished", "the end")
        final = gpu.render(read_ply(next((tmp_path / "run").rglob("point_cloud.ply"))), looking(0))
        expected = overlays.picture_rgba(final.image)
        wait_until(lambda: (p := engine.picture()) and np.array_equal(p.rgba, expected), "the trained splats")
    finally:
        engine.close()
    assert not np.array_equal(before.rgba, expected)


def test_stages_that_training_waits_for_are_named_while_it_runs(gpu: PretendedGpu, tmp_path: Path) -> None:
    waiting: dict[Policy, tuple[str, ...]] = {BEST: (), WIDE: ("bin", "blend_backward")}

    class WaitingTrainer(Trainer):
        def use(self, policy: Policy) -> tuple[str, ...]:
            return waiting[policy]

    def make(capture: Capture, backend: Backend) -> Trainer:
        return WaitingTrainer(capture, TrainConfig(iterations=100_000), backend, tmp_path / "run")

    engine = running(gpu, make)
    try:
        engine.send(commands.OpenScene(write_capture(tmp_path / "capture")))
        engine.request_view(ViewRequest(looking(0)))
        engine.send(commands.StartTraining())
        wait_until(lambda: engine.status().training.iteration > 0, "a step")
        assert engine.status().compiling == ()
        engine.request_view(ViewRequest(looking(0), policy=WIDE))
        wait_until(lambda: engine.status().compiling == ("project", "bin", "blend_backward"), "both compilers' stages")
        gpu.compiled.add(WIDE)
        wait_until(lambda: engine.status().compiling == ("bin", "blend_backward"), "those of training")
        engine.send(commands.PauseTraining())
        wait_until(lambda: engine.status().compiling == (), "none, as nobody asks while it rests")
        assert engine.status().training.state == "paused"
    finally:
        engine.close()


# ---- Two settings ----------------------------------------------------------------------------------------------------


def test_a_measurement_takes_turns_on_one_frame_and_pictures_go_on(live: Engine, gpu: PretendedGpu) -> None:
    live.send(Compare(ViewRequest(looking(0.3)), WIDE, ("wide", "best"), pairs=6))
    wait_until(lambda: (c := live.status().comparison) and c.waiting == ("project", "bin"), "the compiler")
    live.request_view(ViewRequest(looking(1)))
    wait_until(lambda: shown(live, ViewRequest(looking(1))), "a picture meanwhile")
    gpu.shown.clear()
    gpu.compiled.add(WIDE)
    wait_until(lambda: (c := live.status().comparison) and c.done == 6, "the measurement")
    assert gpu.shown == [WIDE, WIDE, BEST, BEST, *3 * [WIDE, BEST, BEST, WIDE]]
    result = live.status().comparison
    assert result is not None
    assert (result.before, result.after, result.problem) == ("wide", "best", "")
    assert [change.stage for change in result.stages] == ["project", "blend", ""]
    assert result.stages[-1].before_ms == pytest.approx(0.3)


def test_the_difference_of_pictures_is_measured_and_everything_can_be_saved(on_cpu: Engine, tmp_path: Path) -> None:
    request = ViewRequest(looking(0.3, 200, 150))
    on_cpu.send(Compare(request, WIDE, ("wide", "best"), pairs=4))
    on_cpu.send(commands.SaveComparison(tmp_path / "early"))
    wait_until(lambda: errors(on_cpu), "the refusal to save what is not finished")
    wait_until(lambda: (c := on_cpu.status().comparison) and c.done == 4, "the measurement")
    backend, result = make_backend("cpu"), on_cpu.status().comparison
    images = [backend.render(ball(), request.camera, policy=policy).image.astype(np.float64) for policy in (WIDE, BEST)]
    assert result is not None
    assert result.max_difference == pytest.approx(np.abs(images[1] - images[0]).max())
    assert result.psnr == pytest.approx(-10 * np.log10(np.square(images[1] - images[0]).mean()))
    on_cpu.send(commands.SaveComparison(tmp_path / "saved"))
    wait_until(lambda: any("-comparison.json" in line.text for line in on_cpu.status().log), "the file")
    (path,) = (tmp_path / "saved").glob("*.json")
    saved = json.loads(path.read_text())
    assert saved["before"]["policy"]["bin"]["bounds"] == "circle3s"
    assert len(saved["before"]["stage_ms"]) == len(saved["after"]["stage_ms"]) == 4
    assert saved["stages"][-1]["after_ms"] == pytest.approx(result.stages[-1].after_ms)
    assert saved["stages"][-1]["low_ms"] is None, "four pairs tell nothing, and JSON knows no infinity"
    assert (saved["backend"], saved["iteration"]) == ("cpu", None)
    told = next(line.text for line in on_cpu.status().log if "-comparison.json" in line.text)
    assert told == f"Saved {path.name} in {path.parent}."


def test_a_still_view_is_drawn_again_when_asked(on_cpu: Engine) -> None:
    on_cpu.request_view(ViewRequest(looking(0.3)))
    wait_until(on_cpu.picture, "a picture")
    first = on_cpu.picture()
    assert first is not None
    on_cpu.send(commands.DrawAgain())
    wait_until(lambda: (p := on_cpu.picture()) and p.serial == first.serial + 1, "another one")
    again = on_cpu.picture()
    assert again is not None
    assert again.request == first.request
    assert np.array_equal(again.rgba, first.rgba)


def test_a_setting_against_itself_changes_no_bit(on_cpu: Engine) -> None:
    on_cpu.send(Compare(ViewRequest(looking(0.3)), BEST, ("best", "best"), pairs=1))
    wait_until(lambda: (c := on_cpu.status().comparison) and c.done == 1, "the measurement")
    result = on_cpu.status().comparison
    assert result is not None
    assert (result.max_difference, result.psnr) == (0.0, float("inf"))


def test_a_measurement_that_fails_says_why_and_the_engine_goes_on(live: Engine) -> None:
    live.send(Compare(ViewRequest(looking(0.3)), BROKEN, ("broken", "best")))
    wait_until(lambda: errors(live), "an error line")
    result = live.status().comparison
    assert result is not None
    assert "expg" in result.problem
    live.request_view(ViewRequest(looking(1)))
    wait_until(lambda: shown(live, ViewRequest(looking(1))), "a picture")


def test_a_change_is_the_difference_of_the_medians_shown_and_a_stage_only_one_has_costs_nothing_in_the_other() -> None:
    before = [{"sort": 2.0, "blend": 5.0}, {"sort": 2.0, "blend": 7.0}, {"sort": 2.0, "blend": 90.0}]
    after = [{"blend": 4.0}, {"blend": 6.0}, {"blend": 50.0}]
    blend, sort, total = compare_stages(before, after)
    assert (blend.stage, blend.before_ms, blend.after_ms, blend.change_ms) == ("blend", 7.0, 6.0, -1.0)
    assert blend.ratio == pytest.approx(6 / 7)
    assert (sort.stage, sort.after_ms, sort.change_ms, sort.ratio) == ("sort", 0.0, -2.0, 0.0)
    assert (total.stage, total.change_ms) == ("", -3.0)
    assert compare_stages(after, before)[0].ratio is None, "the first setting does not have the stage"
    assert all(change.is_noise for change in (blend, sort, total)), "three pairs tell nothing"


def test_a_change_is_within_noise_where_drawing_the_pairs_again_gives_both_signs() -> None:
    rng = np.random.default_rng(4)
    common = rng.exponential(20.0, 20)  # of both pictures of a pair: a busy machine
    before = [{"blend": 50.0 + c + e} for c, e in zip(common, rng.normal(0, 0.2, 20), strict=True)]
    same, slower = (
        [{"blend": 50.0 + more + c + e} for c, e in zip(common, rng.normal(0, 0.2, 20), strict=True)]
        for more in (0.0, 5.0)
    )
    assert compare_stages(before, same)[-1].is_noise
    change = compare_stages(before, slower)[-1]
    assert not change.is_noise
    assert 4.0 < change.low_ms < change.change_ms < change.high_ms < 6.0, "what a pair has in common cancels"
    assert compare_stages(before, slower) == compare_stages(before, slower), "the same figures each time"


# ---- Traces ----------------------------------------------------------------------------------------------------------


def tracks_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns track name -> its spans, which nest: each begins and ends inside the one around it."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    tracks: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[names[event["tid"]]].append(event)
    for spans in tracks.values():
        around: list[float] = []
        for span in spans:
            while around and around[-1] <= span["ts"] + 1e-3:
                around.pop()
            end = span["ts"] + span["dur"]
            assert not around or end <= around[-1] + 1e-3, f"{span['name']} sticks out of what is around it"
            around.append(end)
    return tracks


@pytest.mark.parametrize("kind", ["live", "on_cpu"])
def test_a_recorded_second_has_the_engines_work_and_the_stages_on_two_tracks(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    engine: Engine = request.getfixturevalue(kind)
    view = ViewRequest(looking(0))
    engine.request_view(view)
    wait_until(engine.picture, "a picture")
    engine.send(commands.RecordTrace(tmp_path / "traces", seconds=0.5))
    engine.send(commands.SaveScreenshot(view, tmp_path / "shots"))
    wait_until(lambda: any("-trace.json" in line.text for line in engine.status().log), "the file")
    (path,) = (tmp_path / "traces").glob("*.json")
    tracks = tracks_of(path)
    assert list(tracks) == ["engine", f"stages on {engine.status().backend}, {engine.status().device}"]
    work, stages = tracks.values()
    names = [span["name"] for span in work]
    assert {"SaveScreenshot", "picture"} <= set(names)
    assert names.count("picture") > 1, "the same view is drawn again and again while it is recorded"
    expected = ["picture", "project", "blend"]
    if kind == "on_cpu":
        expected = ["picture", *make_backend("cpu").render(ball(), view.camera).stage_ms]
    assert [span["name"] for span in stages[: len(expected)]] == expected
    host = next(span for span in work if span["name"] == "picture")
    assert host["ts"] <= stages[0]["ts"] + 1.0
    wait_until(lambda: not engine.status().recording, "the end of it")


def test_a_trace_file_lists_the_span_around_before_those_inside(tmp_path: Path) -> None:
    recorder = TraceRecorder(Provenance(Path("garden"), 3064, "cpu", "a device"))
    with recorder.span("outer"), recorder.span("inner"):
        pass
    recorder.add_stages("picture", [("project", 1.0, 1.5), ("blend", 1.5, 2.0)], number=7)
    recorder.write(tmp_path / "trace.json")
    told = json.loads((tmp_path / "trace.json").read_text())["otherData"]
    assert told == {"scene": "garden", "iteration": 3064, "backend": "cpu", "device": "a device"}
    tracks = tracks_of(tmp_path / "trace.json")
    assert [span["name"] for span in tracks["engine"]] == ["outer", "inner"]
    assert [(s["name"], s["dur"]) for s in tracks["stages on cpu, a device"]] == [
        ("picture", pytest.approx(1e6)),
        ("project", pytest.approx(5e5)),
        ("blend", pytest.approx(5e5)),
    ]
    assert tracks["stages on cpu, a device"][0]["args"] == {"number": 7}


# ---- Which backend ---------------------------------------------------------------------------------------------------


def test_auto_takes_a_gpu_only_if_it_has_drawn_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    from splatscope.kernels.cuda import backend as cuda

    class FakeCuda:
        name = "cuda"

        works = True

        def __init__(self, nvtx: bool) -> None:
            pass

        def warm_up(self) -> None:
            if not FakeCuda.works:
                raise RuntimeError("no kernel image is available\nfor this card")

    monkeypatch.setattr(cuda, "CudaBackend", FakeCuda)
    backends._first_picture_problem.cache_clear()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(backends, "gpu_is_present", lambda: True)
    monkeypatch.setattr(cuda, "need_gpu", lambda: None)
    assert make_backend("auto").name == "cuda"

    FakeCuda.works = False
    backends._first_picture_problem.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert make_backend("auto").name == "cpu"
    reason = "The GPU did not draw a first picture (RuntimeError: no kernel image is available)."
    assert backends.why_not_gpu() == reason
    assert make_backend("cuda").name == "cuda"  # who asks for it by name gets it
    backends._first_picture_problem.cache_clear()  # pyright: ignore[reportPrivateUsage]

    def refuse() -> None:
        raise InputError("no CuPy")

    monkeypatch.setattr(cuda, "need_gpu", refuse)
    assert make_backend("auto").name == "cpu"
    assert backends.why_not_gpu() == "no CuPy"
    monkeypatch.setattr(backends, "gpu_is_present", lambda: False)
    assert make_backend("auto").name == "cpu"
    assert backends.why_not_gpu() is None


def test_only_backends_that_can_are_taken_for_live(gpu: PretendedGpu) -> None:
    assert isinstance(gpu, LiveBackend)
    assert not isinstance(make_backend("cpu"), LiveBackend)
