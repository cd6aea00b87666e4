"""The loss of a training step: its two kernels, and how an image is divided among their blocks
(cuda/source/loss.cuh)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from splatscope.kernels.cuda.launch.arguments import read_constant
from splatscope.kernels.cuda.plan.passes import source


@dataclass(frozen=True)
class LossGrid:
    """Blocks for an image. `loss_gradient` has one more than `loss_sums`."""

    threads: int  # a block
    blocks: int  # of loss_sums, which leaves a pair of sums for each
    derivatives: tuple[int, ...]  # shape of what the first kernel leaves for the second, float32


def loss_kernels(coverage: bool, weights: bool) -> list[str]:
    """The instantiations for photographs of a kind: sums, then gradient."""
    policy = f"LossPolicy{{.coverage = {str(coverage).lower()}, .weights = {str(weights).lower()}}}"
    return [f"{name}<{policy}>" for name in ("loss_sums", "loss_gradient")]


def loss_grid(width: int, height: int) -> LossGrid:
    """For an image of so many px."""
    threads, tile_width, tile_height = _constants()
    across, down = -(-width // tile_width), -(-height // tile_height)
    return LossGrid(threads, across * down, (across, height, 9 * tile_width))


@cache
def _constants() -> tuple[int, ...]:
    text = source("loss.cuh").text
    return tuple(read_constant(text, name) for name in ("LOSS_THREADS", "LOSS_WIDTH", "LOSS_HEIGHT"))
