"""Plans the loss of a training step: its two launches, and how an image is divided among their blocks.

Kernels: cuda/source/loss.cuh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from splatscope.kernels.cuda.launch.buffers import Buffers, DeviceArray
from splatscope.kernels.cuda.launch.compiler import Kernel
from splatscope.kernels.cuda.plan.operations import Launch
from splatscope.kernels.cuda.plan.passes import constant
from splatscope.kernels.cuda.plan.planner import Provider


@dataclass(frozen=True)
class LossGrid:
    """Holds the blocks for an image. `loss_gradient` has one block more than `loss_sums`."""

    threads: int  # of a block
    blocks: int  # of loss_sums, which leaves a pair of sums for each block
    derivatives: tuple[int, ...]  # shape of the float32 array that the first kernel leaves for the second


def loss_kernels(coverage: bool, weights: bool) -> list[str]:
    """Returns the instantiations for photographs of a kind: sums, then gradient."""
    policy = f"LossPolicy{{.coverage = {str(coverage).lower()}, .weights = {str(weights).lower()}}}"
    return [f"{name}<{policy}>" for name in ("loss_sums", "loss_gradient")]


def loss_grid(width: int, height: int) -> LossGrid:
    """Returns the blocks for an image of width x height pixels."""
    threads, tile_width, tile_height = (
        constant("loss.cuh", name) for name in ("LOSS_THREADS", "LOSS_WIDTH", "LOSS_HEIGHT")
    )
    across, down = -(-width // tile_width), -(-height // tile_height)
    return LossGrid(threads, across * down, (across, height, 9 * tile_width))


def pack_loss(
    kernels: Mapping[str, Kernel],
    kind: tuple[bool, bool],
    grid: LossGrid,
    shared: Mapping[str, Any],
    own: Mapping[str, Any],
) -> list[Launch]:
    """Returns the two launches of the loss, sums and gradient.

    - `kind`: the photograph has coverage, has weights.
    - `shared`: arguments of both kernels: frame, inputs, image, derivatives, sums.
    - `own`: further arguments of the second one: state, results, reach, gradient.
    """
    names, counts = loss_kernels(*kind), (grid.blocks, grid.blocks + 1)
    arguments = (shared, {**shared, **own, "sum_count": grid.blocks})
    return [
        Launch("loss", kernels[name], (count,), (grid.threads,), kernels[name].arguments.pack(**values))
        for name, count, values in zip(names, counts, arguments, strict=True)
    ]


def measure_loss(
    provide: Provider,
    buffers: Buffers,
    shared: Mapping[str, Any],
    own: Mapping[str, Any],
    image: DeviceArray,
    kind: tuple[bool, bool],
) -> list[Launch]:
    """Returns the launches that compare `image` [H, W, 3] with a photograph of a kind, as `pack_loss` takes it.

    `shared` are the step's frame and inputs, `own` the gradient to fill and the records that the second kernel writes.
    """
    height, width, _ = image.shape
    grid = loss_grid(width, height)
    kernels = provide("loss.cuh", loss_kernels(*kind))
    compared = {
        **shared,
        "image": image,
        "derivatives": buffers.take("loss derivatives", grid.derivatives, "f4"),
        "sums": buffers.take("loss sums", (grid.blocks, 2), "f4"),
    }
    return pack_loss(kernels, kind, grid, compared, own)
