"""Changes rows of splats and their optimiser moments: clone, split, replace, share, draw, reset, reorder.

Every function returns new tensors on the device of its arguments and leaves the arguments alone. So a run can swap its
state in one assignment and is never half changed. The exception is a state with `live` set: its rows lie on a GPU, with
room for more, and change in place (`steps/device.py`). A strategy decides which rows to change; read
`strategies/base.py` next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from splatscope.kernels.primitive import Primitive
from splatscope.kernels.types import Gaussians


@dataclass(frozen=True, eq=False)
class SplatTensors:
    """Holds `Gaussians` as float32 torch tensors; on the CPU they share memory with NumPy."""

    means: Tensor  # [N, 3] world units
    log_scales: Tensor  # [N, 3]
    quats: Tensor  # [N, 4] (w, x, y, z)
    logit_opacities: Tensor  # [N]
    sh: Tensor  # [N, K, 3]

    @property
    def count(self) -> int:
        return self.means.shape[0]

    def map(self, change: Callable[[Tensor], Tensor]) -> SplatTensors:
        """Applies `change` to each tensor."""
        return SplatTensors(**{f.name: change(getattr(self, f.name)) for f in fields(self)})

    def changed(self, **changes: Tensor) -> SplatTensors:
        """Returns the tensors with some replaced."""
        return replace(self, **changes)

    def with_sh_degree(self, degree: int) -> SplatTensors:
        """Returns tensors with SH rows up to `degree` at least; new rows are zero."""
        missing = (degree + 1) ** 2 - self.sh.shape[1]
        if missing <= 0:
            return self
        return self.changed(sh=torch.nn.functional.pad(self.sh, (0, 0, 0, missing)))


@dataclass(frozen=True, eq=False)
class SplatState:
    """Holds splats with Adam's first and second moments: rows of all three belong together."""

    raw: SplatTensors
    first: SplatTensors
    second: SplatTensors
    live: InPlace | None = field(default=None, kw_only=True)  # the owner of the rows, if they change in place

    @property
    def count(self) -> int:
        return self.raw.count

    @property
    def sh_rows(self) -> int:
        """Returns the number of SH rows, read from the moments: on a GPU those of the splats may cost a copy."""
        return self.first.sh.shape[1]

    def map(self, change: Callable[[Tensor], Tensor]) -> SplatState:
        return SplatState(self.raw.map(change), self.first.map(change), self.second.map(change))


class InPlace(Protocol):
    """Changes rows where they lie. Each method is the function of that name below, on all rows there are.

    A method that fails has changed nothing. The state it returns has new views; earlier views are out of date.
    """

    def replace_rows(self, kept: Tensor, born: SplatTensors) -> SplatState: ...
    def written_rows(self, rows: Tensor, raw: SplatTensors, with_momentum: bool) -> SplatState: ...
    def with_room(self, count: int) -> SplatState: ...
    def raise_sh_degree(self, degree: int) -> SplatState: ...
    def reordered(self, order: Tensor) -> SplatState: ...


@contextmanager
def one_thread() -> Iterator[None]:
    """Keeps torch on the calling thread: copying rows is bound by memory bandwidth, and a second pool of threads would
    compete with the kernels' pool for the cores."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def from_gaussians(gaussians: Gaussians) -> SplatState:
    """Returns a fresh state: copies of the arrays and zero moments."""
    raw = SplatTensors(**{f.name: torch.from_numpy(np.array(getattr(gaussians, f.name))) for f in fields(SplatTensors)})
    return SplatState(raw, raw.map(torch.zeros_like), raw.map(torch.zeros_like))


def as_gaussians(tensors: SplatTensors, primitive: Primitive) -> Gaussians:
    """Returns NumPy views on CPU tensors, without a copy."""
    return Gaussians(**{f.name: getattr(tensors, f.name).numpy() for f in fields(tensors)}, primitive=primitive)


def replace_rows(state: SplatState, kept: Tensor, born: SplatTensors) -> SplatState:
    """Returns the rows where the mask `kept` [N] is true, then `born` with zero moments. Copies each number once.

    In place, only the rows that must move do, and the order differs.
    """
    rows = kept.nonzero()[:, 0]
    if state.live is not None and len(rows) + born.count > 0:
        return state.live.replace_rows(kept, born)

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
    """Returns copies of the rows where `mask` [N] is true."""
    rows = mask.nonzero()[:, 0]
    return raw.map(lambda tensor: tensor[rows])


def joined(a: SplatTensors, b: SplatTensors) -> SplatTensors:
    """Returns the rows of `a`, then the rows of `b`."""
    return SplatTensors(**{f.name: torch.cat((getattr(a, f.name), getattr(b, f.name))) for f in fields(a)})


def split_children(raw: SplatTensors, mask: Tensor, noise: Tensor, shrink: float) -> SplatTensors:
    """Returns children of the M rows where `mask` is true: positions drawn from the parent, scales divided by `shrink`.

    `noise` [C, M, 3] is standard normal; the C M children come generation by generation.
    """
    children = noise.shape[0]
    parents = select(raw, mask).map(lambda tensor: tensor.repeat(children, *(1,) * (tensor.ndim - 1)))
    offset = noise.reshape(-1, 3) * parents.log_scales.exp()
    rotation = rotation_matrices(parents.quats)
    means = parents.means + (rotation @ offset[:, :, None])[:, :, 0]
    return replace(parents, means=means, log_scales=parents.log_scales - float(np.log(shrink)))


def rotation_matrices(quats: Tensor) -> Tensor:
    """Returns the rotations [N, 3, 3] of quaternions [N, 4] (w, x, y, z) of any length."""
    w, x, y, z = torch.nn.functional.normalize(quats, dim=1).unbind(1)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)


def largest_scale(raw: SplatTensors) -> Tensor:
    """Returns the longest half axis of each splat [N], world units."""
    return raw.log_scales.amax(dim=1).exp()


def finite_rows(raw: SplatTensors) -> Tensor:
    """Returns the mask [N] of splats without a NaN or infinite number; an infinite opacity logit is a valid 0 or 1."""
    finite = ~raw.logit_opacities.isnan()
    for tensor in (raw.means, raw.log_scales, raw.quats, raw.sh.flatten(1)):
        finite &= torch.isfinite(tensor.sum(dim=1))
    return finite


def written_rows(state: SplatState, rows: Tensor, raw: SplatTensors, with_momentum: bool) -> SplatState:
    """Writes other splats to the given rows [M]; a row given twice has the same splat twice. Moments stay or are
    cleared."""
    if state.live is not None:
        return state.live.written_rows(rows, raw, with_momentum)
    pairs = {f.name: (getattr(state.raw, f.name), getattr(raw, f.name)) for f in fields(raw)}
    written = SplatTensors(**{name: old.index_copy(0, rows, new) for name, (old, new) in pairs.items()})
    if with_momentum:
        return SplatState(written, state.first, state.second)
    first, second = (part.map(lambda tensor: tensor.index_fill(0, rows, 0)) for part in (state.first, state.second))
    return SplatState(written, first, second)


def with_room(state: SplatState, count: int) -> SplatState:
    """Returns the same splats, with room for `count` if their rows change in place. Raises NoRoomError."""
    return state if state.live is None else state.live.with_room(count)


def in_order(state: SplatState, share: float) -> SplatState:
    """Returns the same splats along a Morton curve, so that neighbours in space are neighbours in memory.

    Changes nothing if no more than `share` of them are out of order. Order within 2^-8 of the box's sides does not
    count, because splats move a little.
    """
    codes = morton_codes(state.raw.means)
    cells = codes >> 3 * (MORTON_BITS - 8)
    # In random order, every other splat comes behind one that belongs later.
    if 2 * int((cells[1:] < cells[:-1]).sum()) <= share * state.count:
        return state
    return reordered(state, torch.sort(codes, stable=True).indices)


MORTON_BITS = 21  # an axis


def morton_codes(means: Tensor) -> Tensor:
    """Returns int64 places [N] along a Morton curve through the box of the means."""
    finite = means.nan_to_num(0, 0, 0).double()
    low, high = finite.amin(0), finite.amax(0)
    cells = ((finite - low) / (high - low).clamp(min=1e-30) * (2**MORTON_BITS - 1)).long()  # [N, 3]
    for shift, mask in _SPREADS:
        cells = (cells | cells << shift) & mask
    return cells[:, 0] | cells[:, 1] << 1 | cells[:, 2] << 2


# Bits are moved apart, ever smaller groups of them, until two zeros lie between neighbours.
_SPREADS = (
    (32, 0x1F00000000FFFF),
    (16, 0x1F0000FF0000FF),
    (8, 0x100F00F00F00F00F),
    (4, 0x10C30C30C30C30C3),
    (2, 0x1249249249249249),
)


def reordered(state: SplatState, order: Tensor) -> SplatState:
    """Returns the same splats, row i from row order[i]."""
    return state.map(lambda tensor: tensor[order]) if state.live is None else state.live.reordered(order)


def draw_with_replacement(weights: Tensor, count: int, random: torch.Generator) -> Tensor:
    """Draws rows [count] in proportion to `weights` [N], with repetition. Some weight must be positive."""
    # Not torch.multinomial, which takes no more than 2^24 rows.
    heights = weights.double().cumsum(0)
    drawn = torch.rand(count, dtype=torch.float64, generator=random, device=random.device) * heights[-1]
    return torch.searchsorted(heights, drawn, right=True).clamp(max=len(weights) - 1)


def draw_without_replacement(weights: Tensor, count: int, random: torch.Generator) -> Tensor:
    """Draws at most `count` rows in proportion to `weights` [N], as a mask [N]; never rows of weight zero.

    The largest of log(u) / weight win (Efraimidis and Spirakis 2006).
    """
    uniform = 1 - torch.rand(len(weights), dtype=torch.float64, generator=random, device=random.device)
    keys = torch.where(weights > 0, uniform.log() / weights.double(), -torch.inf)
    rows = keys.topk(min(count, int((weights > 0).sum()))).indices
    return torch.zeros_like(weights, dtype=torch.bool).index_fill(0, rows, True)


def shared_opacity(raw: SplatTensors, copies: Tensor, smallest: float) -> SplatTensors:
    """Returns the splats that copies are made of: `copies` [N], at most 51, will replace each one. They are fainter and
    of another extent, so that the copies together blend like the original (Kheradmand et al. 2024, equation 9). Rows of
    one copy stay as they are; opacities do not fall below `smallest`.

    With o' = 1 - (1 - o)^(1/n), the scale is multiplied by o / sum over j = 1..n of C(n, j) (-1)^(j+1) o'^j / sqrt j:
    the double sum of the paper, its inner one carried out.
    """
    rows = (copies > 1).nonzero()[:, 0]
    opacity = torch.sigmoid(raw.logit_opacities[rows].double())
    n = copies[rows]
    shared = 1 - (1 - opacity) ** (1 / n)
    order = torch.arange(1, MOST_COPIES + 1, dtype=torch.float64, device=rows.device)
    signed = _signed_binomials().to(rows.device)[n] / order.sqrt()  # [M, 51]; zero beyond n
    factor = opacity / (signed * shared[:, None] ** order).sum(dim=1)
    kept = shared.clamp(smallest, 1 - 1e-6)
    logits = torch.log(kept / (1 - kept)).float()
    scales = raw.log_scales[rows] + factor.log().float()[:, None]
    return raw.changed(
        logit_opacities=raw.logit_opacities.index_copy(0, rows, logits),
        log_scales=raw.log_scales.index_copy(0, rows, scales),
    )


MOST_COPIES = 51


@cache
def _signed_binomials() -> Tensor:
    """Returns C(n, j) (-1)^(j+1) at [n, j - 1], n up to 51."""
    rows = [[math.comb(n, j) * (-1) ** (j + 1) for j in range(1, MOST_COPIES + 1)] for n in range(MOST_COPIES + 1)]
    return torch.tensor(rows, dtype=torch.float64)


def shaken_means(raw: SplatTensors, noise: Tensor, amount: float, centre: float, steepness: float) -> Tensor:
    """Returns means [N, 3] after a random step along each splat's covariance, damped where the splat is opaque.

    `noise` [N, 3] is standard normal; the step is covariance @ noise times `amount` times
    sigmoid(-steepness (opacity - centre)). A splat whose extent overflows stays where it is.
    """
    damping = torch.sigmoid(-steepness * (torch.sigmoid(raw.logit_opacities) - centre)) * amount
    rotation = rotation_matrices(raw.quats)
    along_axes = (rotation.transpose(1, 2) @ noise[:, :, None])[:, :, 0] * (2 * raw.log_scales).exp()
    step = (rotation @ along_axes[:, :, None])[:, :, 0] * damping[:, None]
    return raw.means + torch.where(step.isfinite(), step, 0)


def penalty_gradients(raw: SplatTensors, opacity_penalty: float, scale_penalty: float) -> tuple[Tensor, Tensor]:
    """Returns the gradients of opacity_penalty times the mean opacity, with respect to the logits [N], and of
    scale_penalty times the mean half axis, with respect to the log scales [N, 3]."""
    opacity = torch.sigmoid(raw.logit_opacities)
    by_logit = opacity * (1 - opacity) * (opacity_penalty / max(raw.count, 1))
    return by_logit, raw.log_scales.exp() * (scale_penalty / max(3 * raw.count, 1))


def halve_opacity(state: SplatState, floor: float) -> SplatState:
    """Halves opacities above `floor`, but not below it, and clears all opacity moments."""
    opacity = torch.sigmoid(state.raw.logit_opacities)
    halved = torch.where(opacity > floor, (0.5 * opacity).clamp(min=floor), opacity)
    logits = torch.where(opacity > floor, torch.log(halved / (1 - halved)), state.raw.logit_opacities)
    return _with_fresh_opacity(state, logits)


def lower_opacity(state: SplatState, ceiling: float) -> SplatState:
    """Lowers opacities above `ceiling` to it, and clears all opacity moments."""
    return _with_fresh_opacity(state, state.raw.logit_opacities.clamp(max=float(np.log(ceiling / (1 - ceiling)))))


def _with_fresh_opacity(state: SplatState, logits: Tensor) -> SplatState:
    """Replaces opacities [N]; their moments begin at zero."""
    return SplatState(
        state.raw.changed(logit_opacities=logits),
        state.first.changed(logit_opacities=torch.zeros_like(logits)),
        state.second.changed(logit_opacities=torch.zeros_like(logits)),
    )


def raise_sh_degree(state: SplatState, degree: int) -> SplatState:
    """Returns splats with SH rows up to `degree`; new rows and their moments are zero. The same object if it has
    them."""
    if state.sh_rows >= (degree + 1) ** 2:
        return state
    if state.live is not None:
        return state.live.raise_sh_degree(degree)
    parts = (state.raw, state.first, state.second)
    return SplatState(*(part.with_sh_degree(degree) for part in parts))
