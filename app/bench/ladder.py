"""`splatscope bench ladder`: times every preset of the ladder on a GPU, forward and backward, stage by stage.

Presets, and other rasterisers where asked for (`app/bench/peers/rasterisers.py`), take turns repetition by repetition,
on the same splats, camera and image gradient. How times are taken: `bench/measure/gpu.py`. Scenes:
`bench/scenes/subjects.py`. Tables: `bench/tables/ladder.py` and `bench/tables/ladder_document.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch

from splatscope.app.bench.measure.gpu import describe_gpu, hold, timed, wall_ms
from splatscope.app.bench.measure.machine import describe_run
from splatscope.app.bench.measure.results import results_path, spread, write_results
from splatscope.app.bench.measure.roofline import kernel_reports, least_bytes
from splatscope.app.bench.peers.rasterisers import Peer, PeerInput, compare, find_peers
from splatscope.app.bench.scenes.generated import upstream_gradient
from splatscope.app.bench.scenes.primitives import as_primitive
from splatscope.app.bench.scenes.subjects import Loaded, Subject, chosen_subjects
from splatscope.app.bench.tables.ladder import MODES, print_scene
from splatscope.app.bench.tables.publish import check_readme, publish
from splatscope.app.options.bench import LadderOptions
from splatscope.app.options.policy import PolicyChoice, choose_policy
from splatscope.kernels.cuda.backend import need_gpu
from splatscope.kernels.cuda.plan.passes import Scene
from splatscope.kernels.cuda.plan.planner import Plan
from splatscope.kernels.cuda.renderer import KernelStore, Renderer
from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import STEPS, step
from splatscope.kernels.policy import Policy, toggle_table
from splatscope.kernels.primitive import Primitive

WARM_UP = 3  # passes before anything is timed: launched, captured, replayed
COUNT_TOLERANCE = 1e-4  # relative; as for the CPU


def run(options: LadderOptions) -> None:
    """Measures, prints, and writes JSON and a document's table where asked for. Raises InputError."""
    check_readme(options.readme, "cuda", options.out)
    subjects = chosen_subjects(options.scenes, options.camera, options.size)
    written, results = run_ladder(subjects, options)
    if written is not None:
        print(f"Wrote {written}")
    publish(options.readme, [(written, results)])


def run_ladder(subjects: list[Subject], options: LadderOptions) -> tuple[Path | None, dict[str, Any]]:
    """Measures, prints, and writes JSON if asked for; returns (the file, the results).

    Raises InputError; for wrong counts or pictures only at the very end.
    """
    if options.repeat < 1:
        raise InputError(f"--repeat must be at least 1, got {options.repeat}.")
    policies, chosen = ladder_policies(options), choose_policy(options.step, options.toggle)
    need_gpu()
    peers, absent = find_peers(options.vs)
    for sentence in absent:
        print(sentence, flush=True)
    words = ["splatscope bench ladder --scenes", *(subject.words for subject in subjects)]
    words += ["--steps", *options.steps] if options.steps else []
    words += [*chosen.options, *(["--toggles"] if options.toggles else [])]
    words += ["--vs", *options.vs] if options.vs else []
    words += ["--primitive", *options.primitive] if options.primitive else []
    command = " ".join([*words, f"--repeat {options.repeat}"])
    results: dict[str, Any] = {"run": describe_run(command), "machine": describe_gpu(), "scenes": []}
    results["absent_peers"] = absent
    bench, written = LadderBench(policies, options.repeat, primitives=options.primitive), None
    if options.out is not None:
        written = results_path(options.out, results, ["ladder", *(subject.name for subject in subjects)])
    for subject in subjects:
        result = bench.measure(subject, peers)
        results["scenes"].append(result)
        print_scene(result, results["machine"]["copy_gb_per_second"])
        if written is not None:  # after each scene, so that a failure loses only the last
            write_results(written, results)
    refuse_wrong(results, written)
    return written, results


def refuse_wrong(results: dict[str, Any], written: Path | None) -> None:
    """Raises InputError if the counts or the picture of any row are not those of its scene."""
    wrong = [
        f"{scene['name']}, {step}: {sentence}"
        for scene in results["scenes"]
        for step, row in scene["steps"].items()
        for sentence in row["wrong"]
    ]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        where = "above" if written is None else f"in {written}"
        raise InputError(
            f"What was drawn is not what the scene holds ({wrong[0]}{more}), so these times say nothing; all times and "
            f"what is wrong with them are {where}."
        )


def ladder_policies(options: LadderOptions) -> dict[str, Policy]:
    """Returns name -> policy in the order of the table. Raises InputError for presets and toggles that do not exist."""
    found = {name: step(name) for name in options.steps or STEPS}
    if options.vs:  # other rasterisers are compared with it
        found |= {"best": step("best")}
    found |= rows_of(choose_policy(options.step, options.toggle))
    if options.toggles:
        for row in toggle_table("cuda"):
            for value in row.values:
                policy = step("best").with_value(row.stage, row.name, value)
                if policy != step("best") and not policy.problems():
                    found[f"best, {row.key} = {value}"] = policy
    return found


def rows_of(chosen: PolicyChoice) -> dict[str, Policy]:
    """Returns name -> policy of --step and --toggle, after the preset they start from; nothing for the default."""
    return {} if chosen.is_default else {chosen.step: step(chosen.step), chosen.row: chosen.policy}


class Job(Protocol):
    """Takes turns with others: one preset of ours, or another rasteriser."""

    def warm_up(self) -> None: ...
    def run(self, mode: str) -> Any: ...


class LadderBench:
    """Measures one scene at a time, with one renderer without events and one with them.

    Both share compiled kernels.
    """

    def __init__(
        self,
        policies: dict[str, Policy],
        repeat: int,
        renderers: tuple[Renderer, Renderer] | None = None,
        primitives: tuple[Primitive, ...] = (),
    ) -> None:
        self.policies, self.repeat, self.primitives = policies, repeat, primitives
        self._plain, self._timed = renderers or _renderers()

    def measure(self, subject: Subject, peers: list[Peer] | None = None) -> dict[str, Any]:
        """Measures all presets, and the peers, on one scene."""
        loaded = subject.load()
        self._forget()
        steps = self._jobs(loaded)
        for name, job in steps.items():
            start = perf_counter()
            job.warm_up()
            print(f"{subject.name} {name}: ready in {perf_counter() - start:.2f} s", flush=True)
        for job in steps.values():  # buffers that grew for a later step took the graphs of earlier ones with them
            job.warm_up()
        best = steps.get("best") or list(steps.values())[-1]
        scene, gradient = best.scene, best.gradient
        models = {primitive: steps.get(f"best {primitive}", best) for primitive in self.primitives}
        others: dict[str, PeerJob] = {}
        agreement: dict[str, Any] = {}
        if peers:
            given = PeerInput.of(scene, loaded.camera, loaded.gaussians.sh.shape[1])
            image, ours = best.picture_and_gradients()
            for peer in peers:
                others[peer.name] = PeerJob(peer, given, gradient)
                others[peer.name].warm_up()
                agreement[peer.name] = compare(peer, gradient, image, ours)
            del image, ours
        clocks: dict[str, _Clock] = {name: _Clock(job) for name, job in [*steps.items(), *others.items()]}
        for _ in range(self.repeat):
            for clock in clocks.values():
                clock.sample()
        result = {
            "name": subject.name,
            "splats": scene.count,
            "width": loaded.camera.width,
            "height": loaded.camera.height,
            "bits_match": loaded.bits_match,
            "steps": {
                name: {**job.summary(models.get(job.scene.primitive, best)), **clocks[name].summary()}
                for name, job in steps.items()
            },
            "peers": {
                name: {"version": job.peer.version, **clocks[name].summary(), **agreement[name]}
                for name, job in others.items()
            },
        }
        self._forget()
        for peer in peers or []:
            peer.release()
        torch.cuda.empty_cache()
        return result

    def _jobs(self, loaded: Loaded) -> dict[str, StepJob]:
        """Returns a job for each policy and primitive. Compiling begins for all of them, on all processors."""
        jobs: dict[str, StepJob] = {}
        for primitive in (loaded.gaussians.primitive, *self.primitives):
            is_own = primitive == loaded.gaussians.primitive
            scene = self._plain.upload(as_primitive(loaded.gaussians, primitive))
            gradient = torch.from_numpy(upstream_gradient(loaded.camera)).to(scene.means.device)
            given = loaded if is_own else replace(loaded, expected=None)  # counts are known for a scene's own splats
            for name, policy in self.policies.items():
                for training in (True, False):
                    self._plain.is_ready(policy, training, False, loaded.camera, primitive)
                row = name if is_own else f"{name} {primitive}"
                jobs[row] = StepJob(self._plain, self._timed, scene, given, policy, gradient)
        return jobs

    def _forget(self) -> None:
        for renderer in (self._plain, self._timed):
            renderer.forget()


def _renderers() -> tuple[Renderer, Renderer]:
    kernels = KernelStore()
    return Renderer(kernels=kernels), Renderer(timed=True, kernels=kernels)


class _Clock:
    """Keeps the times of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._samples: dict[str, list[float]] = {mode: [] for mode in (*MODES, "synchronous")}

    def sample(self) -> None:
        """Times one repetition: each mode with the host ahead of the GPU, then both passes from an idle GPU."""
        pairs = {}
        for mode in MODES:
            hold()
            pairs[mode] = timed(lambda m=mode: self._job.run(m))
        torch.cuda.synchronize()
        pairs["synchronous"] = timed(lambda: self._job.run("forward_backward"))
        torch.cuda.synchronize()
        for mode, pair in pairs.items():
            self._samples[mode].append(pair.ms)
        if isinstance(self._job, StepJob):
            self._job.sample_stages()

    def summary(self) -> dict[str, Any]:
        """Returns spreads, and takes wall-clock times. `synchronous` includes the host's gaps, as a lone call does."""
        wall = {mode: round(wall_ms(lambda m=mode: self._job.run(m)), 4) for mode in ("view", "forward_backward")}
        return {**{mode: spread(values) for mode, values in self._samples.items()}, "wall_ms": wall}


class StepJob:
    """Draws one scene under one preset."""

    def __init__(
        self, plain: Renderer, timed_renderer: Renderer, scene: Scene, loaded: Loaded, policy: Policy, gradient: Any
    ) -> None:
        self.plain, self.timed, self.scene, self.loaded = plain, timed_renderer, scene, loaded
        self.policy, self.gradient = policy, gradient
        self.stages: dict[str, list[float]] = {}
        self.image: Any = None
        self.record: np.void | None = None
        self.plan: Plan | None = None

    def run(self, mode: str, renderer: Renderer | None = None) -> Any:
        """Starts one pass and does not wait for it."""
        renderer = renderer or self.plain
        outputs = renderer.forward(self.scene, self.loaded.camera, policy=self.policy, training=mode != "view")
        if mode == "forward_backward":
            renderer.backward(self.gradient)
        return outputs

    def warm_up(self) -> None:
        """Compiles, makes room and captures; keeps the picture and the counts."""
        for renderer in (self.plain, self.timed):
            for mode in MODES:
                outputs, self.record = renderer.complete(lambda r=renderer, m=mode: self.run(m, r))
                self.image = outputs.image.clone()
                for _ in range(WARM_UP):
                    self.run(mode, renderer)
        self.plan = self.plain.newest_plan

    def sample_stages(self) -> None:
        """Takes the stage times of one pass."""
        hold()
        self.run("forward_backward", self.timed)
        torch.cuda.synchronize()
        self.timed.stage_ms.clear()
        self.run("forward_backward", self.timed)  # a graph tells the times of its replay at the next one
        torch.cuda.synchronize()
        for stage, ms in self.timed.stage_ms.items():
            self.stages.setdefault(stage, []).append(ms)

    def picture_and_gradients(self) -> tuple[Any, dict[str, Any]]:
        """Returns copies of the image [H, W, 3] and of the gradients by name, on the GPU."""
        outputs = self.run("forward")
        gradients = self.plain.backward(self.gradient)
        return outputs.image.clone(), {name: gradient.clone() for name, gradient in gradients.items()}

    def summary(self, best: StepJob) -> dict[str, Any]:
        """Returns counts, stage times, costs, and sentences about anything wrong."""
        assert self.record is not None
        assert self.plan is not None
        counts = {key: int(self.record[key]) for key in ("visible", "instances", "skipped")}
        return {
            **counts,
            "stages": {stage: spread(values) for stage, values in self.stages.items()},
            "least_bytes": least_bytes(self.plan, self.scene.count, counts, self.loaded.camera),
            "kernels": kernel_reports(self.plan),
            "wrong": self._wrong(counts),
            "image_difference": float((self.image - best.image).abs().max()),
        }

    def _wrong(self, counts: dict[str, int]) -> list[str]:
        """Returns sentences about wrong counts; counts are known for exact bounds of plain splats only."""
        sentences, expected, policy = [], self.loaded.expected, self.policy
        if expected is not None and policy.bin.bounds == "row_span" and policy.project.filter == "plain":
            for key, wanted in (("visible", expected.visible), ("instances", expected.instances)):
                if abs(counts[key] - wanted) > COUNT_TOLERANCE * wanted:
                    sentences.append(f"{key} are {counts[key]:,}, expected {wanted:,}")
        if not bool(self.image.isfinite().all()):
            sentences.append("the picture is not finite")
        return sentences


class PeerJob:
    """Draws the same scene with another rasteriser."""

    def __init__(self, peer: Peer, given: Any, gradient: Any) -> None:
        self.peer, self._gradient = peer, gradient
        peer.prepare(given)

    def run(self, mode: str) -> Any:
        """Starts one pass; some peers let the host wait in it."""
        if mode == "view":
            with torch.no_grad():
                return self.peer.forward()
        image = self.peer.forward()
        return self.peer.backward(image, self._gradient) if mode == "forward_backward" else image

    def warm_up(self) -> None:
        """Lets the first passes do what later passes need not."""
        for _ in range(WARM_UP):
            for mode in MODES:
                self.run(mode)
