"""How much memory a run takes and will take: foreseen from its splats, its photographs and the heaviest view so far.

An estimate from the sizes of the arrays, not a measurement; what is in use is measured. On a GPU it is the GPU's
memory, else the machine's. The trainer stops growth by itself where there is no room (`events.GrowthStopped`).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from splatscope.kernels.constants import SH_COEFFICIENTS
from splatscope.kernels.words import counted
from splatscope.viewer.messages import MemoryUse

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.training.trainer import Trainer

_FLOAT = 4
_ROWS = {degree: rows for rows, degree in SH_COEFFICIENTS.items()}
_GEOMETRY = 3 + 3 + 4 + 1  # floats of a splat beside its harmonics
_KINDS = 3  # parameters and both moments
_HARMONICS = 3 * 16  # numbers of a splat on a GPU
_HARMONIC_BYTES = {"f32": 4, "bf16": 2, "split": 4}  # of one, by sh_dtype (kernels/sh_words.py)
_BESIDE = 256 + 12  # bytes a splat of a step's own buffers, and its statistics
_GROWTH = 2.3  # rows on a GPU: 1.3 times those asked for, and the old ones until they are copied (splat_buffers.py)
_PAIR = 24  # bytes of a (splat, tile) pair, sorted twice over
_PIXEL = 96  # bytes of a training step's images and of the viewport's
_PAIRS = 3.0  # a splat, until views have told
_CONTEXT = 600 << 20  # bytes that CUDA, its kernels and the libraries take
_ON_GPU = 0.25  # share of the free memory that photographs may take there
GIB = 2**30


def memory_use(trainer: Trainer) -> MemoryUse:
    """Of a run, begun or not."""
    on_gpu = trainer.backend.name == "cuda"
    used, total = _of_gpu() if on_gpu else _of_machine()
    count, most = trainer.gaussians.count, most_splats(trainer)
    photographs = _photographs(trainer)
    if on_gpu:
        photographs = min(photographs, int(_ON_GPU * total))
    views = (*trainer.dataset.training_views, *trainer.dataset.held_out_views)
    pixels = max((view.camera.width * view.camera.height for view in views), default=0)
    fixed = photographs + _PIXEL * pixels + (_CONTEXT if on_gpu else 0)
    splat = _FLOAT * (_KINDS + (not on_gpu)) * (_GEOMETRY + 3 * _ROWS[3 if on_gpu else trainer.config.sh_degree])
    splat -= (_FLOAT - _HARMONIC_BYTES[trainer.sh_dtype]) * _HARMONICS
    each = splat + _BESIDE + _PAIR * max(_PAIRS, trainer.pairs / max(count, 1))
    # In words they are copied as float32 for scores, files and density control.
    each += _FLOAT * _HARMONICS if trainer.sh_dtype != "f32" else 0
    each += (_GROWTH - 1) * splat if on_gpu else 0
    splats = max(most or 0, count)  # a run keeps those that it begins with
    needed = fixed + each * splats
    fits = int((total - fixed) / each) if total > fixed else 0
    use = MemoryUse("GPU memory" if on_gpu else "Memory", used, total, round(needed), splats, most is not None, fits)
    return replace(use, text=forecast_sentence(use))


def most_splats(trainer: Trainer) -> int | None:
    """Where growth ends; None if no number is given."""
    config = trainer.config
    if not config.densify.enabled and config.strategy == "adaptive":
        return trainer.gaussians.count
    limits = {"adaptive": config.densify, "mcmc": config.mcmc, "budget": config.budget}
    return limits[config.strategy].max_splats


def forecast_sentence(use: MemoryUse) -> str:
    """What is foreseen, for people; says so where there will be no room."""
    if not use.total:
        return ""
    if not use.ends and use.needed <= use.total:
        return (
            f"{use.needed / GIB:.1f} GiB for {counted(use.splats, 'splat')}; {use.total / GIB:.1f} hold "
            f"about {use.fits:,}."
        )
    text = f"{use.needed / GIB:.1f} GiB foreseen for {counted(use.splats, 'splat')}, there are {use.total / GIB:.1f}"
    if use.needed > use.total:
        return (
            f"{text}: growth will stop at about {counted(use.fits, 'splat')}. Lower max_splats, or train "
            "smaller pictures."
        )
    return f"{text}."


def _photographs(trainer: Trainer) -> int:
    from splatscope.training.dataset import training_size

    views = (*trainer.dataset.training_views, *trainer.dataset.held_out_views)
    resolution = trainer.config.data.resolution
    sizes = (training_size(view.camera.width, view.camera.height, resolution) for view in views)
    return sum(3 * width * height for width, height in sizes)


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
