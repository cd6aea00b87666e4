"""`splatscope bench --calibrate`: what splats and chunks cost on this GPU, for the policy that splits tiles.

Each number is the difference of two measured times of the blend stage, on scenes whose tiles are known: even ones, and
one crowded tile. Stored once a GPU (`kernels/schedule_calibration.py`); the model: `kernels/schedule.py`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splatscope.app.bench_schedule import decided, stage_times

if TYPE_CHECKING:
    from splatscope.kernels.passes import Scene
    from splatscope.kernels.policy import Policy
    from splatscope.kernels.renderer import Renderer
    from splatscope.kernels.schedule_calibration import Calibration
    from splatscope.kernels.types import Camera

REPEAT, WARM_UP = 12, 3
EVEN, CROWDED = 0.5, 60.0  # imbalance ratios
TAIL_RATIOS, TAIL_CHOICES = (5.0, 20.0), ((4, 16), (16, 16), (4, 64))  # (h, k)
_LPT = {"schedule.sched": "lpt_binned", "schedule.chunk": "off"}
_ALL = _LPT | {"schedule.chunk": "all", "schedule.chunk_k": "4"}
_INEXACT = {"schedule.exact_stop": "off"}


def run_calibration() -> tuple[Path, Calibration]:
    """Measures, stores and prints. Raises InputError without a GPU."""
    from rich.console import Console

    from splatscope.kernels.cuda import need_gpu
    from splatscope.kernels.schedule_calibration import store_calibration

    need_gpu()
    import torch

    gpu = torch.cuda.get_device_name()
    calibration = Calibrator().measure().clamped()
    path = store_calibration(gpu, calibration)
    words = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in asdict(calibration).items())
    Console(highlight=False, soft_wrap=True).print(f"{gpu}: {words}; kept in {path}.")
    return path, calibration


class Calibrator:
    """One renderer and the scenes it is asked about."""

    def __init__(self) -> None:
        from splatscope.app.bench_schedule import ScheduleBench, ScheduleOptions

        self._bench = ScheduleBench(ScheduleOptions(variants=("grid",)))
        self._renderer = self._bench.renderers["grid"]
        self._multiprocessors = self._renderer.memory.multiprocessors
        self._workers = self._bench.workers()

    def measure(self) -> Calibration:
        """All numbers, each from the ones before it."""
        from splatscope.kernels.pipeline import BLEND_THREADS
        from splatscope.kernels.schedule_calibration import Calibration

        even, camera, total, _ = self._scene(EVEN)
        whole = self._blend_ms(even, camera, _LPT)
        pace = total / whole  # splats a millisecond of the whole GPU
        split, chunks = self._blend_ms(even, camera, _ALL | _INEXACT), self._chunks()
        chunk = max(0.0, split - whole) * pace / chunks
        second_walk = (self._blend_ms(even, camera, _ALL) - split) * pace / total
        trained, split = (self._blend_ms(even, camera, changes, training=True) for changes in (_LPT, _ALL))
        training_walk = (split - trained) / trained - chunk * self._chunks() / total

        crowded, camera, _, heaviest = self._scene(CROWDED)
        alone = heaviest / self._blend_ms(crowded, camera, _LPT)  # splats a millisecond of one block
        threads = BLEND_THREADS[self._bench.policies["grid"].blend.map]
        saturating = pace / alone / self._multiprocessors
        found = Calibration(saturating * threads / 32, chunk, 0.1, second_walk, training_walk)
        share = min(1.0, saturating * self._multiprocessors / self._workers)
        return replace(found, tail=self._tail(pace, share, chunk))

    def _tail(self, pace: float, share_of_speed: float, chunk: float) -> float:
        """beta by least squares, from times that the rest of the model does not explain."""
        import numpy as np

        rests, longest_units = [], []
        for ratio in TAIL_RATIOS:
            scene, camera, total, heaviest = self._scene(ratio)
            for h, k in TAIL_CHOICES:
                choice = {"schedule.chunk": "fixed", "schedule.chunk_h": str(h), "schedule.chunk_k": str(k)}
                took = self._blend_ms(scene, camera, _LPT | choice | _INEXACT) * pace / self._workers
                share = (total + chunk * h * k) / self._workers
                longest = heaviest / k
                rests.append(took - (1 - share_of_speed) * share - share_of_speed * max(longest, share))
                longest_units.append(share_of_speed * longest)
        rests, longest_units = np.array(rests), np.array(longest_units)
        return float((rests * longest_units).sum() / (longest_units**2).sum())

    def _scene(self, ratio: float) -> tuple[Scene, Camera, int, int]:
        """(scene, camera, splats over all tiles, those of the heaviest)."""
        from splatscope.benchmarks.crowded import crowded_scene

        gaussians, camera = crowded_scene(ratio, self._workers)
        self._renderer.forget()
        scene = self._renderer.upload(gaussians)
        _, frame = self._renderer.complete(lambda: self._renderer.forward(scene, camera, policy=self._policy(_ALL)))
        record = self._renderer.pipeline.read_schedule()
        assert record is not None
        return scene, camera, int(frame["instances"]), int(record["heaviest"])

    def _policy(self, changes: dict[str, str]) -> Policy:
        from splatscope.kernels.steps import changed, step

        return changed(step("best"), changes)

    def _chunks(self) -> int:
        return decided(self._renderer)["chunk_units"]

    def _blend_ms(self, scene: Scene, camera: Camera, changes: dict[str, str], training: bool = False) -> float:
        """The median time of the blend stage."""
        import numpy as np

        renderer: Renderer = self._renderer
        policy = self._policy(changes)

        def draw() -> Any:
            return renderer.forward(scene, camera, policy=policy, training=training)

        renderer.complete(draw)
        for _ in range(WARM_UP):
            draw()
        return float(np.median([stage_times(draw, renderer)["blend"] for _ in range(REPEAT)]))
