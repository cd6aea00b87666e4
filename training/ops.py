"""Pure row operations on splats and their optimiser moments: clone, split, replace, reset.

Every function returns new tensors and leaves its arguments alone, so a run can swap its state in one
assignment and is never half changed. Which rows are concerned is decided in `strategy.py`; read it next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from splatscope.kernels.types import Gaussians


@dataclass(frozen=True, eq=False)
class SplatTensors:
    """`Gaussians` as float32 torch tensors; on the CPU they share memory with NumPy."""

    means: Tensor  # [N, 3] world units
    log_scales: Tensor  # [N, 3]
    quats: Tensor  # [N, 4] (w, x, y, z)
    logit_opacities: Tensor  # [N]
    sh: Tensor  # [N, K, 3]

    @property
    def count(self) -> int:
        return self.means.shape[0]

    def map(self, change: Callable[[Tensor], Tensor]) -> SplatTensors:
        """`change` applied to each tensor."""
        return SplatTensors(**{f.name: change(getattr(self, f.name)) for f in fields(self)})

    def with_sh_degree(self, degree: int) -> SplatTensors:
        """SH rows up to `degree` at least; new rows are zero."""
        missing = (degree + 1) ** 2 - self.sh.shape[1]
        if missing <= 0:
            return self
        return replace(self, sh=torch.nn.functional.pad(self.sh, (0, 0, 0, missing)))


@dataclass(frozen=True, eq=False)
class SplatState:
    """Splats with Adam's first and second moments: rows of all three belong together."""

    raw: SplatTensors
    first: SplatTensors
    second: SplatTensors

    @property
    def count(self) -> int:
        return self.raw.count

    def map(self, change: Callable[[Tensor], Tensor]) -> SplatState:
        return SplatState(self.raw.map(change), self.first.map(change), self.second.map(change))


@contextmanager
def one_thread() -> Iterator[None]:
    """Keeps torch on the calling thread: copying rows is bound by memory, and a second pool of threads would
    fight the kernels' pool for the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def from_gaussians(gaussians: Gaussians) -> SplatState:
    """A fresh state: copies of the arrays and zero moments."""
    raw = SplatTensors(**{f.name: torch.from_numpy(np.array(getattr(gaussians, f.name))) for f in fields(SplatTensors)})
    return SplatState(raw, raw.map(torch.zeros_like), raw.map(torch.zeros_like))


def as_gaussians(tensors: SplatTensors) -> Gaussians:
    """NumPy views on CPU tensors, without a copy."""
    return Gaussians(**{f.name: getattr(tensors, f.name).numpy() for f in fields(tensors)})


def replace_rows(state: SplatState, kept: Tensor, born: SplatTensors) -> SplatState:
    """The rows where the mask `kept` [N] is true, then `born` with zero moments. Each number is copied once."""
    rows = kept.nonzero()[:, 0]

    def rebuilt(old: Tensor, new: Tensor | None, count: int) -> Tensor:
        out = old.new_empty((len(rows) + count, *old.shape[1:]))
        torch.index_select(old, 0, rows, out=out[: len(rows)])
        out[len(rows) :] = 0 if new is None else new
        return out

    def all_rebuilt(old: SplatTensors, new: SplatTensors | None) -> SplatTensors:
        pairs = {f.name: (getattr(old, f.name), getattr(new, f.name, None)) for f in fields(old)}
        return SplatTensors(**{name: rebuilt(*pair, born.count) for name, pair in pairs.items()})

    return SplatState(all_rebuilt(state.raw, born), all_rebuilt(state.first, None), all_rebuilt(state.second, None))


def select(raw: SplatTensors, mask: Tensor) -> SplatTensors:
    """Copies of the rows where `mask` [N] is true."""
    rows = mask.nonzero()[:, 0]
    return raw.map(lambda tensor: tensor[rows])


def joined(a: SplatTensors, b: SplatTensors) -> SplatTensors:
    """The rows of `a`, then those of `b`."""
    return SplatTensors(**{f.name: torch.cat((getattr(a, f.name), getattr(b, f.name))) for f in fields(a)})


def split_children(raw: SplatTensors, mask: Tensor, noise: Tensor, shrink: float) -> SplatTensors:
    """Children of the M rows where `mask` is true: positions drawn from the parent, scales divided by `shrink`.

    `noise` [C, M, 3] is standard normal; the C M children come generation by generation.
    """
    children = noise.shape[0]
    parents = select(raw, mask).map(lambda tensor: tensor.repeat(children, *(1,) * (tensor.ndim - 1)))
    offset = noise.reshape(-1, 3) * parents.log_scales.exp()
    rotation = rotation_matrices(parents.quats)
    means = parents.means + (rotation @ offset[:, :, None])[:, :, 0]
    return replace(parents, means=means, log_scales=parents.log_scales - float(np.log(shrink)))


def rotation_matrices(quats: Tensor) -> Tensor:
    """[N, 4] (w, x, y, z) of any length -> rotations [N, 3, 3]."""
    w, x, y, z = torch.nn.functional.normalize(quats, dim=1).unbind(1)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)


def lower_opacity(state: SplatState, ceiling: float) -> SplatState:
    """Opacities above `ceiling` brought down to it, and all opacity moments cleared."""
    lowered = state.raw.logit_opacities.clamp(max=float(np.log(ceiling / (1 - ceiling))))
    zeros = torch.zeros_like(lowered)
    return SplatState(
        replace(state.raw, logit_opacities=lowered),
        replace(state.first, logit_opacities=zeros),
        replace(state.second, logit_opacities=zeros.clone()),
    )


def raise_sh_degree(state: SplatState, degree: int) -> SplatState:
    """SH rows up to `degree`; new rows and their moments are zero. The same object if it has them."""
    if state.raw.sh.shape[1] >= (degree + 1) ** 2:
        return state
    parts = (state.raw, state.first, state.second)
    return SplatState(*(part.with_sh_degree(degree) for part in parts))
