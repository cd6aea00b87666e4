"""`splatscope bench calibrate`: measures what splats and chunks cost on this GPU, for the policy that splits tiles.

Each number comes from times of the blend stage on scenes whose tiles are known: even ones, and one crowded tile.
`Calibrator` asks a `Stand`, which is a GPU or a test's model of one. The numbers are stored for each GPU
(`kernels/schedule/calibration.py`). The cost model: `kernels/schedule/rules.py`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch

from splatscope.app.bench.scenes.crowded import EVEN_SPLATS, crowded_scene
from splatscope.app.bench.schedule import ScheduleBench, decided, stage_times, tile_counts
from splatscope.app.options.bench import CalibrateOptions, ScheduleOptions
from splatscope.app.terminal import Terminal
from splatscope.kernels.cuda.backend import need_gpu
from splatscope.kernels.cuda.plan.passes import BLEND_THREADS
from splatscope.kernels.cuda.renderer import Renderer
from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import changed, step
from splatscope.kernels.policy import Policy
from splatscope.kernels.schedule.calibration import Calibration, store_calibration

REPEAT, WARM_UP = 12, 3
EVEN, LESS, MORE, MOST = 0.5, 5.0, 10.0, 20.0  # imbalance ratios
SHARES = (
    0.25,
    0.5,
    0.75,
    1.0,
)  # shares of the even scene's splats: tell the cost of a splat and the base cost of a tile
TAIL_CHOICES = ((4, 16), (16, 16), (4, 64))  # (h, k)
WALK_CHOICE = (4, 4)  # chunks so long that they alone decide how long the frame takes
Changes = dict[str, str]
_LPT: Changes = {"schedule.sched": "lpt_binned", "schedule.chunk": "off"}
_ALL: Changes = _LPT | {"schedule.chunk": "all", "schedule.chunk_k": "4"}
_INEXACT: Changes = {"schedule.exact_stop": "off"}


def fixed(h: int, k: int) -> Changes:
    """Returns the toggles that split the h heaviest tiles into k chunks each."""
    return _LPT | {"schedule.chunk": "fixed", "schedule.chunk_h": str(h), "schedule.chunk_k": str(k)}


def run(_: CalibrateOptions) -> None:
    """Measures, stores and prints. Raises InputError without a GPU, and for times that cannot be right."""
    need_gpu()
    gpu = torch.cuda.get_device_name()
    found = Calibrator(GpuStand.here()).measure()
    path = store_calibration(gpu, found.clamped())
    Terminal().print(f"{spoken(gpu, found)} Kept in {path}.")


def spoken(gpu: str, found: Calibration) -> str:
    """Returns the numbers in sentences, with those that had to be limited."""
    kept = found.clamped()
    words = (
        f"{gpu}: {kept.saturating_warps:.1f} warps keep a multiprocessor busy; to begin a tile costs as much as "
        f"{kept.start:.0f} splats, a chunk {kept.chunk:.0f}, the longest unit {kept.tail:.0%} of itself on top; "
        f"a chunk that stops exactly costs {1 + kept.second_walk:.2f} times its splats, for training "
        f"{1 + kept.training_walk:.2f} times."
    )
    for name, value in asdict(found).items():
        if value != getattr(kept, name):
            words += f" Measured {name.replace('_', ' ')} was {value:.3g}, held at {getattr(kept, name):.3g}."
    return words


# ---- From times to numbers -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """Counts the splats in the tiles of a scene."""

    total: int  # splats over all tiles
    heaviest: int
    tiles: int


class Stand(Protocol):
    """Blends scenes and is timed."""

    multiprocessors: int
    workers: int  # K, the blocks that run at once
    warps: int  # warps of a block

    def show(self, ratio: float, share: float = 1.0) -> Shown:
        """Switches to the crowded scene of that imbalance ratio, with a share of its splats."""
        ...

    def blend(self, changes: Changes, training: bool = False) -> tuple[float, int]:
        """Returns (milliseconds, chunks) under the best policy with `changes`."""
        ...


class Calibrator:
    """Asks a stand about scenes, most of them chosen so that one number decides their time."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand

    def measure(self) -> Calibration:
        """Returns all numbers as measured, each from the ones before it.

        Raises InputError for times that cannot be right.
        """
        stand = self._stand
        pace, start, even, whole = self._even()
        split, chunks = self._blend(_ALL | _INEXACT)
        chunk = ((split - whole) * pace + start * even.tiles) / chunks
        slower = self._ms(_LPT, training=True) / whole

        (less, less_ms), (more, more_ms) = self._timed(LESS), self._timed(MORE)
        alone = _rate(more.heaviest - less.heaviest, more_ms - less_ms)  # splats a millisecond of one block
        shared = more_ms - more.heaviest / alone  # ms, while other tiles slow it down
        self._show(MOST)
        second_walk, training_walk = self._walks(shared), self._walks(slower * shared, training=True)

        saturating = pace / alone / stand.multiprocessors  # blocks
        share = min(1.0, saturating * stand.multiprocessors / stand.workers)
        tail = self._tail(pace, share, chunk, start)
        return Calibration(saturating * stand.warps, start, chunk, tail, second_walk, training_walk)

    def _walks(self, shared: float, training: bool = False) -> float:
        """Returns the cost of a chunk with an exact stop beyond its share of the tile.

        It is measured against the same tile whole, in which some pixels end early as well. `shared`, in ms, is the part
        of both times in which other tiles ran.
        """
        whole, split = (self._ms(changes, training) - shared for changes in (_LPT, fixed(*WALK_CHOICE)))
        if whole <= 0:
            raise InputError("A crowded tile took no time of its own; calibrate again while nothing else runs.")
        return WALK_CHOICE[1] * split / whole - 1

    def _even(self) -> tuple[float, float, Shown, float]:
        """Fits a line through times over splats.

        Returns (splats a millisecond of the whole GPU, the start of a tile in splats, the last scene, its ms).
        The number of splats within a tile does not matter, only whole batches of them.
        """
        found = [self._timed(EVEN, share) for share in SHARES]
        totals, times = (
            np.array(column, np.float64) for column in zip(*((s.total, ms) for s, ms in found), strict=True)
        )
        slope, rest = np.polyfit(totals, times, 1)
        pace = _rate(int(totals[-1]), float(slope * totals[-1]))
        even, ms = found[-1]
        return pace, float(rest) * pace / even.tiles, even, ms

    def _timed(self, ratio: float, share: float = 1.0) -> tuple[Shown, float]:
        """Returns a scene and the milliseconds that its tiles take, longest first."""
        shown = self._show(ratio, share)
        return shown, self._ms(_LPT)

    def _tail(self, pace: float, share_of_speed: float, chunk: float, start: float) -> float:
        """Returns beta by least squares, from the part of the times that the rest of the model does not explain."""
        workers = self._stand.workers
        rests, longest_units = [], []
        for ratio in (LESS, MOST):
            shown = self._show(ratio)
            for h, k in TAIL_CHOICES:
                took = self._ms(fixed(h, k) | _INEXACT) * pace / workers
                share = (shown.total + start * shown.tiles + chunk * h * k) / workers
                longest = shown.heaviest / k
                rests.append(took - (1 - share_of_speed) * share - share_of_speed * max(longest, share))
                longest_units.append(share_of_speed * longest)
        rests, longest_units = np.array(rests), np.array(longest_units)
        return float((rests * longest_units).sum() / (longest_units**2).sum())

    def _show(self, ratio: float, share: float = 1.0) -> Shown:
        """Switches to a scene of that ratio, or of a smaller one on a GPU too small for it."""
        shown = self._stand.show(max(EVEN, ratio * min(1.0, self._stand.workers / (4 * MOST))), share)
        if shown.heaviest < 1:
            raise InputError("The calibration's scene drew no splats on this GPU; its numbers would mean nothing.")
        return shown

    def _blend(self, changes: Changes, training: bool = False) -> tuple[float, int]:
        ms, chunks = self._stand.blend(changes, training)
        if not 0 < ms < float("inf") or (changes["schedule.chunk"] != "off" and chunks < 1):
            raise InputError(
                f"Blending was timed at {ms} ms with {chunks} chunks, which cannot be; calibrate again while nothing "
                "else runs on this GPU."
            )
        return ms, chunks

    def _ms(self, changes: Changes, training: bool = False) -> float:
        return self._blend(changes, training)[0]


def _rate(splats: int, ms: float) -> float:
    if splats <= 0 or ms <= 0:
        raise InputError(
            f"{splats:,} more splats took {ms:.4f} ms more, which cannot be; calibrate again while nothing else runs "
            "on this GPU."
        )
    return splats / ms


# ---- A GPU that is asked ---------------------------------------------------------------------------------------------


class GpuStand:
    """Blends scenes with one renderer."""

    def __init__(self, renderer: Renderer, workers: int, warps: int) -> None:
        self._renderer = renderer
        self.multiprocessors, self.workers, self.warps = renderer.memory.multiprocessors, workers, warps
        self._drawn: Any = None

    @staticmethod
    def here() -> GpuStand:
        """Returns the current GPU."""
        bench = ScheduleBench(ScheduleOptions(variants=("grid",)))
        warps = BLEND_THREADS[bench.policies["grid"].blend.map] // 32
        return GpuStand(bench.renderers["grid"], bench.workers(), warps)

    def show(self, ratio: float, share: float = 1.0) -> Shown:
        renderer = self._renderer
        gaussians, camera = crowded_scene(ratio, self.workers, int(share * EVEN_SPLATS))
        renderer.forget()
        self._drawn = renderer.upload(gaussians), camera
        # Not from the plan's record: only some ways to schedule look for the heaviest tile.
        out, _ = renderer.complete(lambda: renderer.forward(*self._drawn, policy=_policy(_LPT)))
        counts = tile_counts(out)
        return Shown(int(counts.sum()), int(counts.max(initial=0)), counts.size)

    def blend(self, changes: Changes, training: bool = False) -> tuple[float, int]:
        renderer, policy = self._renderer, _policy(changes)

        def draw() -> Any:
            return renderer.forward(*self._drawn, policy=policy, training=training)

        renderer.complete(draw)
        for _ in range(WARM_UP):
            draw()
        ms = float(np.median([stage_times(draw, renderer)["blend"] for _ in range(REPEAT)]))
        return ms, decided(renderer).get("chunk_units", 0)


def _policy(changes: Changes) -> Policy:
    return changed(step("best"), changes)
