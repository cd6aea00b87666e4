"""Stands in for the engine in tests of the window: draws a checkered floor and a ball, and pretends to train.

It implements `EngineClient` for tests of the window. Run as a program it opens the window and prints what the
engine was asked for, one JSON object a line, so that a test can drive the window from outside.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from splatscope.assets.checks.checkup import Finding
from splatscope.kernels.policy import Policy, toggle_table
from splatscope.kernels.schedule.rules import CostModel, Machine, variant
from splatscope.kernels.schedule.simulator import simulate
from splatscope.kernels.schedule.timeline import Recording
from splatscope.kernels.types import Camera, Frame
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.figures import overlays
from splatscope.viewer.figures.tile_values import tile_values
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.commands import Command
from splatscope.viewer.messages.run import Curve, MemoryUse, Phase, Refined, TrainingState, TrainingStatus, Trouble
from splatscope.viewer.messages.view import (
    BlendMachine,
    Comparison,
    EngineStatus,
    LogLine,
    NamedCamera,
    PhotographShown,
    Picture,
    Recipe,
    RecordedFrame,
    SceneInfo,
    Setting,
    StageChange,
    ViewRequest,
)
from tests.support.window_places import PLACES, REPORT_SECONDS, SHOWN, count_frames, moment, tell_places

SPLATS, ITERATIONS = 98_304, 7_000
COMPILE_SECONDS = 1.0  # of a policy nobody has asked for before
CUDA_STAGES = {"project": 0.0412, "depth_sort": 0.0291, "emit": 0.0187, "tile_sort": 0.0614, "ranges": 0.006}


def ring_of_cameras(count: int) -> tuple[NamedCamera, ...]:
    """Returns cameras around the ball, -y up, a little above it; every eighth is held out."""
    cameras = []
    for k in range(count):
        angle = 2 * math.pi * k / count
        eye = np.array([4 * math.sin(angle), -1.2, -4 * math.cos(angle)])
        forward = -eye / np.linalg.norm(eye)
        right = np.cross([0.0, 1.0, 0.0], forward)
        right /= np.linalg.norm(right)
        matrix = np.eye(4)
        matrix[:3, :3] = np.stack([right, np.cross(forward, right), forward])
        matrix[:3, 3] = -matrix[:3, :3] @ eye
        camera = Camera.from_matrix(matrix, 640, 480, 560, 560, 324, 237)
        cameras.append(NamedCamera(f"images/frame_{k:04d}.png", camera, is_test=k % 8 == 0))
    return tuple(cameras)


SCENE = SceneInfo(
    path=Path("/captures/checkered floor"),
    kind="dataset",
    sh_degree=3,
    low=(-1.5, -1.0, -1.5),
    high=(1.5, 1.0, 1.5),
    up=(0.0, -1.0, 0.0),
    extent=4.4,
    cameras=ring_of_cameras(60),
    generation=1,
)


def draw(request: ViewRequest) -> Frame:
    """Returns a unit ball at the origin over a floor at y = 1, ray by ray."""
    camera = request.camera
    u = (np.arange(camera.width, dtype=np.float32) + 0.5 - camera.cx) / camera.fx
    v = (np.arange(camera.height, dtype=np.float32) + 0.5 - camera.cy) / camera.fy
    rotation, eye = camera.matrix[:3, :3].astype(np.float32), camera.position.astype(np.float32)
    # World direction of every ray, unit depth; the three coordinates as separate planes.
    x, y, z = (u[None] * rotation[0, k] + v[:, None] * rotation[1, k] + rotation[2, k] for k in range(3))
    with np.errstate(all="ignore"):
        floor = (1.0 - eye[1]) / y
        floor[~((floor > 0.01) & (floor < 60.0))] = np.nan
        a, b, c = x * x + y * y + z * z, x * eye[0] + y * eye[1] + z * eye[2], eye @ eye - 1.0
        ball = (-b - np.sqrt(b * b - a * c)) / a
        ball[~(ball > 0.01)] = np.nan
        hit_ball = ball <= np.where(np.isnan(floor), np.inf, floor)
        depth = np.where(hit_ball, ball, floor)
        px, pz = eye[0] + floor * x, eye[2] + floor * z
        checker = ((np.floor(px) + np.floor(pz)) % 2 == 0) * 0.35 + 0.25
        fade = np.exp(-floor / 14.0)
    image = np.empty((camera.height, camera.width, 3), np.float32)
    background, tint = request.settings.background, (0.95, 0.85, 0.7)
    for k in range(3):
        ground = np.where(np.isnan(floor), background[k], checker * tint[k] * fade + background[k] * (1 - fade))
        normal = (eye[0] + ball * x, eye[1] + ball * y, eye[2] + ball * z)[k]
        image[..., k] = np.where(hit_ball, 0.5 + 0.45 * np.nan_to_num(normal), ground)
    rows, columns = camera.tiles
    inside = np.add.reduceat(np.add.reduceat(hit_ball, np.arange(rows) * 16, 0), np.arange(columns) * 16, 1)
    ramp = np.linspace(4, 90, rows)[:, None] + 12 * np.sin(np.arange(columns) * 0.7)
    counts = (np.maximum(ramp, 0) + inside * 2.4).astype(np.int32)
    stage_ms = {"project": 2.1, "sort": 1.2, "bin": 3.4, "blend": 6.0 + camera.width * camera.height / 2e5}
    empty = np.isnan(depth).astype(np.float32)
    return Frame(image, depth.astype(np.float32), empty, counts, 61_377, int(counts.sum()), stage_ms=stage_ms)


def photograph(request: ViewRequest) -> PhotographShown:
    """Returns a plain orange photograph where that of the wanted camera lies in the picture."""
    wish, camera = request.photograph, request.camera
    assert wish is not None
    taken_by = SCENE.cameras[wish.index].camera
    scale = camera.fx / taken_by.fx
    width, height = min(camera.width, round(scale * taken_by.width)), min(camera.height, round(scale * taken_by.height))
    rgba = np.full((height, width, 4), (230, 120, 20, 255), np.uint8)
    errors = np.full((height, width, 4), (20, 120, 230, 255), np.uint8) if wish.error_top else None
    left, top = (camera.width - width) // 2, (camera.height - height) // 2
    return PhotographShown(wish.index, left, top, rgba, errors, 27.31, (rgba.shape[1], rgba.shape[0]))


class FakeEngine:
    """Pretends to be an engine. `ticks` counts the steps of a pretended trainer, which nothing may stop.

    As "cuda" it takes a second to compile a policy, and draws with the policy before until then.
    """

    def __init__(self, scene: SceneInfo | None = SCENE, state: TrainingState = "ready", backend: str = "cpu") -> None:
        self.requests: list[ViewRequest] = []
        self.commands: list[Command] = []
        self.ticks = self.asked_again = 0
        self.answered: ViewRequest | None = None  # what the picture is an answer to
        self._news = threading.Condition()
        self._closing = False
        self._chosen = {"iterations": str(ITERATIONS), "data.eval": "false", "rates.opacity": "0.025"}
        self._picture: Picture | None = None
        training = TrainingStatus(state=state if scene else "none", iterations=ITERATIONS)
        device = "2 threads" if backend == "cpu" else "NVIDIA H200"
        machine = Machine(2, 1) if backend == "cpu" else Machine(132, 6, 1.5)
        on = BlendMachine(device, machine, CostModel())
        self._status = EngineStatus(
            scene, SPLATS if scene else 0, training, backend=backend, device=device, blending=on
        )
        self._set_recipe()
        self._compiled = {Policy()}
        self._compiling_until = 0.0
        self._troubles = itertools.count(1)
        self._losses: list[float] = []
        self._iterations, self._until = ITERATIONS, 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def request_view(self, request: ViewRequest) -> None:
        with self._news:
            self.requests.append(request)
            self._news.notify_all()

    def send(self, command: Command) -> None:
        if isinstance(command, commands.DrawAgain):  # its pictures are the same each time, and have the same times
            self.asked_again += 1
            return
        with self._news:
            self.commands.append(command)
            self._obey(command)
            self._news.notify_all()

    def picture(self) -> Picture | None:
        return self._picture

    def status(self) -> EngineStatus:
        return self._status

    def wait_for_news(self, seconds: float) -> None:
        with self._news:
            self._news.wait(seconds)

    def close(self) -> None:
        """Ends the thread."""
        self._closing = True
        self._thread.join()

    def say(self, level: str, text: str, about: str = "") -> None:
        """Adds a log line."""
        line = LogLine(level, text, len(self._status.log) + 1, about)  # pyright: ignore[reportArgumentType]
        self._status = replace(self._status, log=(*self._status.log, line))

    def train(self, iterations: int) -> None:
        """Pretends to have trained that much."""
        rng = np.random.default_rng(7)
        for _ in range(iterations):
            n = len(self._losses) + 1
            self._losses.append(0.28 * n**-0.22 * (1 + 0.15 * rng.standard_normal()))
        n = len(self._losses)
        x = np.arange(1, n + 1, dtype=np.float64)
        every = np.arange(500, n + 1, 500, dtype=np.float64)
        refined = Refined(n // 100 * 100, 240, 112, 52, 0) if n >= 100 else None
        training = replace(
            self._status.training,
            iteration=n,
            loss=self._losses[-1] if self._losses else None,
            psnr=29.0 - 9.0 * math.exp(-n / 2500),
            ssim=0.86,
            psnr_label="held-out PSNR",
            scored_at=n // 500 * 500,
            iterations_per_second=38.2,
            eta_seconds=((self._until or self._iterations) - n) / 38.2,
            loss_curve=Curve(x, np.array(self._losses)),
            count_curve=Curve(x, SPLATS + 300 * (x // 100)),
            psnr_curve=Curve(every, 29.0 - 9.0 * np.exp(-every / 2500)),
            stage_ms={"forward": 8.1, "loss": 2.2, "backward": 13.9, "adam": 1.6, "densify": 0.3} if n else {},
            phase=Phase(min(n // 1000, 3), 3, 640, 480, 1, refined, (n // 100 + 1) * 100, 14_900, n / 38.2),
            memory=MemoryUse("Memory", 2_300_000_000, 25_200_000_000, 42_000_000, 240_000, False, 10**7, "little."),
            view_cost=0.18,
        )
        self._status = replace(self._status, training=training, splat_count=SPLATS + 3 * n)

    def _set_state(self, state: TrainingState) -> None:
        until = self._until if state == "running" else 0
        self._status = replace(self._status, training=replace(self._status.training, state=state, until=until))
        self._set_recipe()

    def _begin_anew(self) -> None:
        """Makes a run that has not begun."""
        self._losses.clear()
        self.train(0)
        self._set_state("ready")

    def _set_losses(self, iteration: int, trouble: Trouble | None) -> None:
        """Pauses the run at an iteration, with losses up to it."""
        self._losses.clear()
        self.train(iteration)
        self._set_state("paused")
        self._status = replace(self._status, training=replace(self._status.training, trouble=trouble))

    def _set_recipe(self) -> None:
        """Shows a form of three values, as long as nothing has begun; iterations below 1 are refused."""
        refused = None
        if int(self._chosen["iterations"]) < 1:
            self._chosen["iterations"] = str(ITERATIONS)
            refused = ("iterations",), "iterations must be at least 1."
            self.say("error", refused[1], commands.SetRecipe.__name__)
        settings = (
            Setting("iterations", "whole", int(self._chosen["iterations"]), label="Iterations", rank="main"),
            Setting("data.eval", "switch", self._chosen["data.eval"] == "true", label="Hold out views", rank="main"),
            Setting("rates.opacity", "number", float(self._chosen["rates.opacity"]), help="of Adam", label="Opacity"),
        )
        settings = tuple(replace(s, usual=s.value if s.name != "iterations" else ITERATIONS) for s in settings)
        recipe = Recipe("inria", ("inria", "mcmc"), settings, "", "inria", refused)
        self._status = replace(self._status, recipe=recipe if self._status.training.state == "ready" else None)

    def _obey(self, command: Command) -> None:
        match command:
            case commands.OpenScene():
                if command.path.exists():
                    generation = (self._status.scene.generation if self._status.scene else 0) + 1
                    scene = replace(SCENE, path=command.path, generation=generation)
                    self._status = replace(self._status, scene=scene)
                    self._begin_anew()
                else:
                    self.say("error", f"{command.path} does not exist; give a .ply file, a model folder or a capture.")
            case commands.StartTraining(until=13):
                words = "Iteration 13 is not finite.", 12, 10, "Go back to iteration 10"
                self._set_losses(12, Trouble(*words, number=next(self._troubles)))
            case commands.GoBack():
                self._set_losses(10, None)
            case commands.StartTraining():
                self._iterations = max(self._iterations, command.until or 0)
                self._until = 0 if command.until == self._iterations else command.until or 0
                now = replace(self._status.training, iterations=self._iterations, until=self._until)
                self._status = replace(self._status, training=now)
                self._set_state("running")
            case commands.ScoreNow():
                now = self._status.training
                self._status = replace(self._status, training=replace(now, scored_at=now.iteration))
            case commands.PauseTraining():
                self._set_state("paused")
            case commands.StepTraining():
                self.train(1)
                self._set_state("paused")
            case commands.StopTraining():
                self._set_state("stopped")
            case commands.SaveScreenshot():
                self.say("info", f"Saved {command.folder / 'floor.png'}.")
            case commands.ResetTraining():
                self._begin_anew()
            case commands.SetRecipe():
                self._chosen |= dict(command.changes)
                self._set_recipe()
            case commands.LoadThumbnails():
                small = {k: np.full((84, 112, 3), 40 + 3 * k, np.uint8) for k in command.indices}
                self._status = replace(self._status, thumbnails={**self._status.thumbnails, **small})
            case commands.SavePly():
                self.say("info", f"Saved {command.path}.")
            case commands.Compare():
                self._status = replace(self._status, comparison=Comparison(*command.names, command.pairs))
            case commands.SaveComparison():
                self.say("info", f"Saved {command.folder / 'floor-comparison.json'}.")
            case commands.RecordFrame():
                self._status = replace(self._status, recorded=self._recorded(command.request, draw(command.request)))
            case commands.SaveRecordedFrame():
                self.say("info", f"Saved {command.folder / 'floor-timeline.json'}.")
            case commands.RecordTrace():
                self.say("info", f"Saved {command.folder / 'floor-trace.json'}.")

    def _recorded(self, request: ViewRequest, frame: Frame) -> RecordedFrame:
        """Returns the frame as the simulator has it, one tile forty times as heavy; 20 ns a splat."""
        on, counts = self._status.blending, frame.tile_counts.copy()
        assert on is not None
        counts[counts.shape[0] // 2, counts.shape[1] // 2] *= 40
        units = variant("length", counts, on.machine, on.costs)
        timeline = simulate(units.work, on.machine)
        parts = np.bincount(units.tile, minlength=counts.size)[units.tile]
        listed, zero = units.work.astype(np.int64), np.zeros(len(units), np.int64)
        start, end = 20 * timeline.start, 20 * timeline.end
        is_gpu, rows, columns = on.machine.blocks_each > 1, *counts.shape
        recording = Recording(
            on.machine, "SM" if is_gpu else "thread", "cycles" if is_gpu else "ns", (rows, columns), units.tile,
            units.chunk, parts, timeline.multiprocessor, zero, start, end, end - start, listed, 2 * listed // 3, zero,
        )  # fmt: skip
        return RecordedFrame(recording, counts, request, on, 0.412, 0.405)

    def _follow(self, request: ViewRequest) -> ViewRequest:
        """Returns the request with the policy that is compiled."""
        wanted, status = request.policy, self._status
        if wanted == status.policy or status.backend == "cpu" or wanted in self._compiled:
            self._status = replace(status, policy=wanted, compiling=())
        elif not status.compiling:
            rows = toggle_table(status.backend)
            stages = (r.stage for r in rows if wanted.value(r.stage, r.name) != status.policy.value(r.stage, r.name))
            self._status = replace(status, compiling=tuple(dict.fromkeys(stages)))
            self._compiling_until = time.monotonic() + COMPILE_SECONDS
        elif time.monotonic() > self._compiling_until:
            self._compiled.add(wanted)
        return replace(request, policy=self._status.policy)

    def _measure(self) -> None:
        """Adds one pair to a measurement."""
        result = self._status.comparison
        if result is None or result.done == result.pairs:
            return
        stages = {**CUDA_STAGES, "blend": 0.4123}
        changes = [StageChange(name, 1.3 * ms, ms, -0.31 * ms, -0.28 * ms) for name, ms in stages.items()]
        changes[0] = StageChange("project", 0.0412, 0.0415, -0.0002, 0.0006)
        total = sum(stages.values())
        changes.append(StageChange("", 1.3 * total, total, -0.31 * total, -0.29 * total))
        result = replace(result, done=result.done + 1, stages=tuple(changes), max_difference=0.0039, psnr=71.24)
        self._status = replace(self._status, comparison=result)

    def _run(self) -> None:
        drawn: ViewRequest | None = None
        while not self._closing:
            asked = self.requests[-1] if self.requests else None
            with self._news:  # or what is asked meanwhile would be lost
                request = self._follow(asked) if asked else None
                self._measure()
            if request is not None and request != drawn:
                start = time.perf_counter()
                frame = draw(request)
                if self._status.backend == "cuda":
                    blend = 0.4 + request.camera.width * request.camera.height / 1e7
                    frame = replace(frame, stage_ms={**CUDA_STAGES, "blend": blend})
                rgba = overlays.picture_rgba(frame.image)
                if request.policy.schedule.record == "on":
                    frame = replace(frame, recording=self._recorded(request, frame).recording)
                if (values := tile_values(request.overlay, frame)) is not None:
                    overlays.blend_tile_heatmap(rgba, values, request.overlay_opacity, request.scale)
                spent = (time.perf_counter() - start) * 1e3
                serial = 1 if self._picture is None else self._picture.serial + 1
                shown = photograph(request) if request.photograph else None
                self._picture, drawn = Picture(rgba, frame, request, serial, spent, shown), request
            self.answered = asked
            self.ticks += 1
            with self._news:
                if self._status.training.state == "running":
                    self.train(1)
                    if len(self._losses) >= (self._until or self._iterations):
                        self._set_state("paused" if self._until else "finished")
                self._news.notify_all()
                self._news.wait(0.02)


def describe(engine: FakeEngine) -> dict[str, object]:
    """Returns facts about the window for tests: the newest request, every command, the engine's progress."""
    facts: dict[str, object] = {
        **moment(),
        "ticks": engine.ticks,
        "answered": bool(engine.requests) and engine.answered is engine.requests[-1],
        "requests": len(engine.requests),
        "state": engine.status().training.state,
        "iteration": engine.status().training.iteration,
        "commands": [repr(command) for command in engine.commands],
        "places": dict(PLACES),
        "shown": dict(SHOWN),
    }
    if engine.requests:
        request = engine.requests[-1]
        facts |= {
            "camera": asdict(request.camera),
            "eye": request.camera.position.tolist(),
            "forward": request.camera.matrix[2, :3].tolist(),
            "size": [request.camera.width, request.camera.height],
            "focal": request.camera.fx,
            "overlay": request.overlay,
            "photograph": [request.photograph.index, request.photograph.error_top] if request.photograph else None,
            "policy": repr(request.policy),
        }
    picture = engine.picture()
    if picture is not None:
        facts["shown policy"] = repr(picture.request.policy)
    return facts


def report(engine: FakeEngine) -> None:
    """Prints the facts again and again."""
    while True:
        print(json.dumps(describe(engine)), flush=True)
        time.sleep(REPORT_SECONDS)


def main() -> None:
    """Opens the window on the fake engine."""
    from splatscope.viewer import window
    from splatscope.viewer.drawing import photo_layer, textures, viewport

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="1280x720")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--train", type=int, default=0, help="iterations already done")
    parser.add_argument("--state", default="ready")
    parser.add_argument("--empty", action="store_true", help="no scene is open")
    parser.add_argument("--busy", default="")
    parser.add_argument("--odd", action="store_true", help="the capture has one thing that is odd")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--only", nargs="*", help="titles of the panels to have")
    parser.add_argument("--float-texture", action="store_true", help="the slow way, as on Windows")
    options = parser.parse_args()
    width, height = (int(part) for part in options.size.split("x"))
    engine = FakeEngine(None if options.empty else SCENE, options.state, options.backend)
    if options.train:
        engine.train(options.train)
    if options.busy:
        engine._status = replace(engine._status, busy=options.busy)
    if options.odd:
        engine._status = replace(engine._status, checkup=(Finding("photographs", "7 are missing.", True),))
    if options.only:
        window.PANELS = tuple(panel for panel in window.PANELS if panel.title in options.only)
        for panel in window.PANELS:
            panel.open_at_start = True
        tell_places()
    if options.float_texture:
        viewport.make_texture = photo_layer.make_texture = textures.FloatTexture
    count_frames()
    threading.Thread(target=report, args=(engine,), daemon=True).start()
    window.run_window(engine, WindowConfig(width=width, height=height, ui_scale=options.scale))
    engine.close()
    print(json.dumps({"closed": True}), flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
