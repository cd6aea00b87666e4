"""Forecasts the memory of a run from its splats, its photographs and the heaviest view so far.

The forecast is an estimate from the sizes of the arrays; the memory in use is measured. On a GPU both are the GPU's
memory, and the trainer stops growth by itself where there is no room (`events.GrowthStopped`). Otherwise they are the
machine's memory, of which a system promises more than there is.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from splatscope.kernels.constants import SH_COEFFICIENTS
from splatscope.kernels.cuda.step.photographs import PHOTOGRAPH_SHARE
from splatscope.kernels.cuda.step.splats import ROW_GROWTH
from splatscope.kernels.wording import byte_size, counted
from splatscope.viewer.messages.run import MemoryUse

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.training.trainer import Trainer

_FLOAT = 4
_ROWS = {degree: rows for rows, degree in SH_COEFFICIENTS.items()}
_GEOMETRY = 3 + 3 + 4 + 1  # floats of a splat without its harmonics
_KINDS = 3  # copies of each number: the parameter and both moments
_HARMONICS = 3 * 16  # numbers of a splat on a GPU
_HARMONIC_BYTES = {"f32": 4, "bf16": 2, "split": 4}  # bytes of one number, by sh_dtype (kernels/cuda/step/harmonics.py)
_BUFFERS = 256 + 12  # bytes for each splat in a step's own buffers, and in its statistics
_GROWTH = 1 + ROW_GROWTH  # rows on a GPU: the old ones stay until they are copied (kernels/cuda/step/splats.py)
_PAIR = 24  # bytes of a (splat, tile) pair, sorted twice over
_PIXEL = 96  # bytes of a training step's images and of the viewport's
_PAIRS = 3.0  # pairs of a splat, until views have been drawn
_CONTEXT = 600 << 20  # bytes that CUDA, its kernels and the libraries take
LOOK_SECONDS = 1.0  # pause between two measurements
PEAK_SECONDS = 20.0  # time over which the peak of the memory in use is taken


class MemoryWatch:
    """Measures the memory of one run now and then; the memory in use is the peak of the last seconds.

    Photographs, pictures and other programs take memory and free it again, and what matters is that the peak fits.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._seen: deque[tuple[float, int]] = deque()  # (time, bytes in use) of each measurement
        self._use: MemoryUse | None = None

    def now(self) -> MemoryUse:
        """Returns the memory use, measured at most once a second."""
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
    """Returns the memory use of a run, begun or not."""
    on_gpu = trainer.backend.trains_on_device
    used, total = _of_gpu() if on_gpu else _of_machine()
    count, pixels = trainer.gaussians.count, _pixels(trainer)
    photographs = 3 * sum(pixels)
    if on_gpu:
        photographs = min(photographs, int(PHOTOGRAPH_SHARE * total))
    fixed = photographs + _PIXEL * max(pixels, default=0) + (_CONTEXT if on_gpu else 0)
    splat = _FLOAT * (_KINDS + (not on_gpu)) * (_GEOMETRY + 3 * _ROWS[3 if on_gpu else trainer.config.sh_degree])
    splat -= (_FLOAT - _HARMONIC_BYTES[trainer.sh_dtype]) * _HARMONICS
    each = splat + _BUFFERS + _PAIR * max(_PAIRS, trainer.pairs / max(count, 1))
    # Harmonics kept as 16-bit words are copied as float32 for scores, files and density control.
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
    """Returns the least and the most splats that a run will have, with photographs of `pixels` pixels on average.

    They are equal if a number ends growth. A run keeps the splats that it begins with.
    """
    from splatscope.training.forecast import expected_splats

    config, count = trainer.config, trainer.gaussians.count
    if not config.densify.enabled:
        return count, count
    most = config.strategy_settings.most_splats(pixels)  # an upper limit: pixels of the background get no splats
    if most is None:
        return expected_splats(config, pixels, count, trainer.iteration)
    return max(most, count), max(most, count)


def _foreseen(use: MemoryUse, stops: bool) -> str:
    """Returns the forecast as a sentence if a number ends growth; `stops`: growth stops by itself without room."""
    text = f"{byte_size(use.needed)} foreseen for {counted(use.splats, 'splat')}, there are {byte_size(use.total)}"
    if use.needed <= use.total:
        return f"{text}."
    fits = counted(use.fits, "splat")
    end = f"growth will stop at about {fits}" if stops else f"they hold about {fits}"
    return f"{text}: {end}. Lower max_splats, or train smaller pictures."


def _expected(use: MemoryUse, least: int, size: float, stops: bool) -> str:
    """Returns the forecast as a sentence if no number ends growth; `size` is that of the `least` splats, in bytes."""
    text = (
        f"{_roughly(least)} to {_roughly(use.splats)} splats are likely without max_splats, by the photographs' size, "
        f"and take {' to '.join(dict.fromkeys((byte_size(size), byte_size(use.needed))))} of {byte_size(use.total)}; "
        f"about {_roughly(use.fits)} fit"
    )
    if stops:
        text += ", where growth stops by itself with a message, and training continues"
    advice = " Set max_splats, or train smaller pictures, to stay below." if use.needed > use.total else ""
    return f"{text}.{advice}"


def _roughly(count: int) -> str:
    """Returns the count rounded to two figures: 260,000."""
    unit = 10 ** max(len(str(count)) - 2, 0)
    return f"{round(count / unit) * unit:,}"


def _pixels(trainer: Trainer) -> list[int]:
    """Returns the pixels of each photograph at the size it is trained or scored at."""
    from splatscope.training.data.dataset import training_size

    views = (*trainer.dataset.training_views, *trainer.dataset.held_out_views)
    resolution = trainer.config.data.resolution
    sizes = (training_size(view.camera.width, view.camera.height, resolution) for view in views)
    return [width * height for width, height in sizes]


def _of_gpu() -> tuple[int, int]:
    """Returns the bytes of GPU memory in use by all programs, and all its bytes."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free, total


def _of_machine() -> tuple[int, int]:
    """Returns the bytes of the machine's memory in use, and all its bytes; (0, 0) if the system does not say."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (AttributeError, ValueError, OSError, StopIteration):
        return 0, 0
    return total - available, total
