"""How much memory a run takes and will take: foreseen from its splats, its photographs and the heaviest view so far.

An estimate from the sizes of the arrays, not a measurement; what is in use is measured. On a GPU it is the GPU's
memory, and the trainer stops growth by itself where there is no room (`events.GrowthStopped`); else it is the
machine's, of which a system promises more than there is.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splatscope.kernels.constants import SH_COEFFICIENTS
from splatscope.kernels.wording import byte_size, counted
from splatscope.viewer.messages.run import MemoryUse

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.training.trainer import Trainer

_FLOAT = 4
_ROWS = {degree: rows for rows, degree in SH_COEFFICIENTS.items()}
_GEOMETRY = 3 + 3 + 4 + 1  # floats of a splat beside its harmonics
_KINDS = 3  # parameters and both moments
_HARMONICS = 3 * 16  # numbers of a splat on a GPU
_HARMONIC_BYTES = {"f32": 4, "bf16": 2, "split": 4}  # of one, by sh_dtype (kernels/cuda/step/harmonics.py)
_BESIDE = 256 + 12  # bytes a splat of a step's own buffers, and its statistics
# Rows on a GPU: 1.3 times those asked for, and the old ones until they are copied (kernels/cuda/step/splats.py).
_GROWTH = 2.3
_PAIR = 24  # bytes of a (splat, tile) pair, sorted twice over
_PIXEL = 96  # bytes of a training step's images and of the viewport's
_PAIRS = 3.0  # a splat, until views have told
_CONTEXT = 600 << 20  # bytes that CUDA, its kernels and the libraries take
_ON_GPU = 0.25  # share of the free memory that photographs may take there
LOOK_SECONDS = 1.0  # between two looks
PEAK_SECONDS = 20.0  # over which the most that was in use is told


class MemoryWatch:
    """The memory of one run, looked at now and then. In use is the most of the last seconds: what photographs, pictures
    and other programs take comes and goes, and what matters is whether the highest of it fits."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._seen: deque[tuple[float, int]] = deque()  # when, and bytes in use
        self._use: MemoryUse | None = None

    def now(self) -> MemoryUse:
        """Looks if the last look is old."""
        now = time.perf_counter()
        if self._use is not None and now - self._seen[-1][0] < LOOK_SECONDS:
            return self._use
        use = memory_use(self._trainer)
        self._seen.append((now, use.used))
        while now - self._seen[0][0] > PEAK_SECONDS:
            self._seen.popleft()
        self._use = replace(use, used=max(used for _, used in self._seen))
        return self._use


def memory_use(trainer: Trainer) -> MemoryUse:
    """Of a run, begun or not."""
    on_gpu = trainer.backend.trains_on_device
    used, total = _of_gpu() if on_gpu else _of_machine()
    count, pixels = trainer.gaussians.count, _pixels(trainer)
    photographs = 3 * sum(pixels)
    if on_gpu:
        photographs = min(photographs, int(_ON_GPU * total))
    fixed = photographs + _PIXEL * max(pixels, default=0) + (_CONTEXT if on_gpu else 0)
    splat = _FLOAT * (_KINDS + (not on_gpu)) * (_GEOMETRY + 3 * _ROWS[3 if on_gpu else trainer.config.sh_degree])
    splat -= (_FLOAT - _HARMONIC_BYTES[trainer.sh_dtype]) * _HARMONICS
    each = splat + _BESIDE + _PAIR * max(_PAIRS, trainer.pairs / max(count, 1))
    # In words they are copied as float32 for scores, files and density control.
    each += _FLOAT * _HARMONICS if trainer.sh_dtype != "f32" else 0
    each += (_GROWTH - 1) * splat if on_gpu else 0
    least, splats = most_splats(trainer, sum(pixels) / max(len(pixels), 1))
    needed = fixed + each * splats
    fits = int((total - fixed) / each) if total > fixed else 0
    name, ends = "GPU memory" if on_gpu else "Memory", least == splats
    use = MemoryUse(name, used, total, round(needed), splats, ends, fits)
    if not total:
        return use
    text = _foreseen(use, on_gpu) if ends else _expected(use, least, fixed + each * least, on_gpu)
    return replace(use, text=text)


def most_splats(trainer: Trainer, pixels: float) -> tuple[int, int]:
    """Where growth ends, twice; without a number that ends it, the least and the most it is likely to reach with
    photographs of so many pixels. A run keeps the splats that it begins with."""
    from splatscope.training.forecast import expected_splats
    from splatscope.training.strategies.budget import MOST

    config, count = trainer.config, trainer.gaussians.count
    if not config.densify.enabled:
        return count, count
    limits: dict[str, Any] = {"adaptive": config.densify, "mcmc": config.mcmc, "budget": config.budget}
    most = limits[config.strategy].max_splats
    if most is None and config.strategy != "adaptive":  # at most: what photographs do not show asks for none
        most = min(round(limits[config.strategy].splats_per_pixel * pixels), MOST)
    if most is None:
        return expected_splats(config, pixels, count, trainer.iteration)
    return max(most, count), max(most, count)


def _foreseen(use: MemoryUse, stops: bool) -> str:
    """In a sentence, where the end is known; `stops`: growth does so by itself where there is no room."""
    text = f"{byte_size(use.needed)} foreseen for {counted(use.splats, 'splat')}, there are {byte_size(use.total)}"
    if use.needed <= use.total:
        return f"{text}."
    fits = counted(use.fits, "splat")
    end = f"growth will stop at about {fits}" if stops else f"they hold about {fits}"
    return f"{text}: {end}. Lower max_splats, or train smaller pictures."


def _expected(use: MemoryUse, least: int, size: float, stops: bool) -> str:
    """In a sentence, where no number ends growth; `size` is of the least splats, in bytes."""
    text = (
        f"{_roughly(least)} to {_roughly(use.splats)} splats are likely without max_splats, by the photographs' size, "
        f"and take {' to '.join(dict.fromkeys((byte_size(size), byte_size(use.needed))))} of {byte_size(use.total)}; "
        f"about {_roughly(use.fits)} fit"
    )
    if stops:
        text += ", where growth stops by itself, says so, and training goes on"
    advice = " Set max_splats, or train smaller pictures, to stay below." if use.needed > use.total else ""
    return f"{text}.{advice}"


def _roughly(count: int) -> str:
    """Two figures of it: 260,000."""
    unit = 10 ** max(len(str(count)) - 2, 0)
    return f"{round(count / unit) * unit:,}"


def _pixels(trainer: Trainer) -> list[int]:
    """Of each photograph, as trained or scored."""
    from splatscope.training.data.dataset import training_size

    views = (*trainer.dataset.training_views, *trainer.dataset.held_out_views)
    resolution = trainer.config.data.resolution
    sizes = (training_size(view.camera.width, view.camera.height, resolution) for view in views)
    return [width * height for width, height in sizes]


def _of_gpu() -> tuple[int, int]:
    """Bytes in use, by whomever, and bytes there are."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free, total


def _of_machine() -> tuple[int, int]:
    """The same of the machine, (0, 0) where it does not say."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (AttributeError, ValueError, OSError, StopIteration):
        return 0, 0
    return total - available, total
