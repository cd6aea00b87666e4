"""Decides which tiles of a frame are split, and in what order the GPU takes them; measures how uneven they are.

Takes tile counts; uses plain NumPy, no GPU. Computes
- the imbalance of a frame;
- the order in which tiles are handed out;
- which tiles are split into chunks of depth, by fixed rules or by two rules with a cost model.

The kernels decide the same on the GPU (cuda/source/schedule.cuh); tests compare both. `simulator.py` estimates how
long the resulting units of work take on a machine.

Ryu and Yoo, "Mitigating SM-level load imbalance in 3D Gaussian splatting on GPUs" (2026); Graham (1969) for the order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.errors import InputError

Int64 = NDArray[np.int64]

BINS_PER_OCTAVE, BINS = 8, 256
CHUNK_STEP = 32  # splats; lengths of chunks are multiples of this
SEED_CHUNKS = (2, 4, 8, 16)  # numbers of chunks that the published model tries
# Splats in the lightest tile that is split; also the end of a bin. In lighter tiles, chunks cost more by waiting than
# they gain.
LEAST_CUT = 1024
# The share of a frame that another order must gain, as the model predicts it. The model overrates orders: of predicted
# 10%, half was measured.
ORDER_GAIN = 0.03
ORDERS = ("grid", "lpt", "lpt_binned", "lpt_reverse")
VARIANTS = ("grid", "lpt", "lpt_binned", "lpt_reverse", "all", "fixed", "catgs", "seed", "length")


# ---- Machines and what things cost -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """Describes a GPU as a scheduler sees it."""

    multiprocessors: int
    blocks_each: int = 8  # resident blocks of a multiprocessor, limited by the kernel's registers and shared memory
    # Number of blocks that keep a multiprocessor busy. Fewer resident blocks run at full speed each; more share the
    # speed. None: as many as fit, so that each always runs at full speed (the model of the paper).
    saturated_by: float | None = None

    def __post_init__(self) -> None:
        if self.multiprocessors < 1 or self.blocks_each < 1 or not (self.saturated_by is None or self.saturated_by > 0):
            raise InputError(
                f"A machine has at least one multiprocessor and one block on each, and is saturated by more than 0 "
                f"blocks; got {self.multiprocessors}, {self.blocks_each} and {self.saturated_by}."
            )

    @property
    def workers(self) -> int:
        """Returns K, the number of blocks that run at once."""
        return self.multiprocessors * self.blocks_each

    @property
    def pace(self) -> float:
        """Returns the speed of a block on a full multiprocessor, relative to a block alone."""
        return min(1.0, (self.saturated_by or self.blocks_each) / self.blocks_each)

    @property
    def speed(self) -> float:
        """Returns the work that the whole machine does while a block alone does 1."""
        return self.workers * self.pace


MACHINES = {
    "A100": Machine(108),
    "H200": Machine(132),
    "RTX A6000": Machine(84),
    "GB10": Machine(48),
}


@dataclass(frozen=True)
class CostModel:
    """Holds costs in units of one splat in one tile."""

    chunk: float = 32.0  # lambda: cost of writing and adding up a chunk's pixels
    tail: float = 0.1  # beta: cost that the longest unit adds, as a share of that unit's cost
    least_gain: float = 0.1  # epsilon: no tile is split to save a smaller share of the frame
    second_pass: float = 0.0  # extra cost of a split tile, as a share of the tile's cost; an exact stop costs up to 1
    start: float = 0.0  # cost of beginning a whole tile that is not empty; `chunk` includes the cost for a chunk
    least_cut: int = LEAST_CUT  # splats; `length` leaves lighter tiles whole


# ---- Figures of a frame ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Imbalance:
    """Measures how uneven the tiles of a frame are. All numbers are 0 for a frame without splats."""

    total: int  # N_total, splats over all tiles
    heaviest: int  # N_1, splats of the heaviest tile
    share: float  # N_total / K, an even share for each block
    ratio: float  # N_1 / share; above 1 the heaviest tile outlasts the others
    max_over_mean: float
    gini: float  # 0: all tiles alike … 1: all splats in one tile
    idle_area: float  # share of the machine's time that stays idle in the best order of whole tiles


def imbalance(counts: Any, machine: Machine) -> Imbalance:
    """Returns the imbalance of tile counts [T] or [Ty, Tx]. Raises InputError for values that cannot be counts."""
    counts = _checked(counts)
    total, heaviest, workers = int(counts.sum()), int(counts.max(initial=0)), machine.workers
    if total == 0:
        return Imbalance(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    ranks = np.arange(1, counts.size + 1)
    gini = float(2 * (ranks * np.sort(counts)).sum() / (counts.size * total) - (counts.size + 1) / counts.size)
    return Imbalance(
        total,
        heaviest,
        total / workers,
        heaviest * workers / total,
        heaviest * counts.size / total,
        gini,
        1 - total / (workers * max(heaviest, total / workers)),
    )


def _checked(counts: Any) -> Int64:
    array = np.asarray(counts)
    if array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        raise InputError(f"Tile counts must be whole numbers from 0 on, got {array.dtype} {array.min(initial=0)}.")
    return array.astype(np.int64).ravel()


# ---- Orders of tiles -------------------------------------------------------------------------------------------------


def work_bin(counts: Any) -> Int64:
    """Returns the logarithmic bin of each count, as on the GPU: eight bins an octave, bin 0 for an empty tile."""
    bits = np.asarray(counts, np.float32).view(np.int32).astype(np.int64)
    return np.where(bits == 0, 0, np.minimum((bits >> 20) - 127 * BINS_PER_OCTAVE + 1, BINS - 2))


def tile_order(counts: Any, order: str) -> Int64:
    """Returns tile numbers [T] in the order in which blocks take them. Tiles of equal count (or bin) keep the grid's
    order."""
    counts = _checked(counts)
    if order == "grid":
        return np.arange(counts.size)
    if order == "lpt":
        return np.argsort(-counts, kind="stable")
    if order == "lpt_binned":
        return np.argsort(-work_bin(counts), kind="stable")
    if order == "lpt_reverse":
        return np.argsort(work_bin(counts), kind="stable")
    raise InputError(f"order must be one of {', '.join(ORDERS)}, got {order!r}.")


# ---- Which tiles are split -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Split:
    """Holds the number of chunks of each tile, and the frame's cost by the model."""

    chunks: Int64  # [T] 1 for a tile that stays whole
    cost: float  # cost of the frame by the model, in splats
    cost_whole: float  # cost of the frame without chunks

    @property
    def tiles(self) -> int:
        """Returns h, the number of split tiles."""
        return int((self.chunks > 1).sum())


def chunk_length(count: int, chunks: int) -> int:
    """Returns the splats in each chunk of a tile of `count` splats split into `chunks`; the last chunk has the rest."""
    return CHUNK_STEP * -(-count // (chunks * CHUNK_STEP))


def _cost(total: Any, longest: Any, workers: float, pace: float, model: CostModel) -> Any:
    """Returns the cost of a frame: first all blocks are busy, then only the longest unit, which runs faster.

    With a pace of 1 this is the paper's equation 6, max(total / K, longest) + beta longest.
    """
    share = total / workers
    return (1.0 - pace) * share + pace * (np.maximum(longest, share) + model.tail * longest)


def unsplit(counts: Any, machine: Machine, model: CostModel) -> Split:
    """Returns a split in which all tiles stay whole."""
    counts = _checked(counts)
    cost = float(_cost(counts.sum(), counts.max(initial=0), machine.workers, machine.pace, model))
    return Split(np.ones_like(counts), cost, cost)


def seed_policy(counts: Any, machine: Machine, model: CostModel, tries: tuple[int, ...] = SEED_CHUNKS) -> Split:
    """Splits the h heaviest tiles into k chunks each; the published cost model finds h and k. Splits none if the gain
    is below epsilon."""
    counts, machine = _checked(counts), replace(machine, saturated_by=None)
    whole = unsplit(counts, machine, model)
    order = np.argsort(-counts, kind="stable")
    ranked = np.append(counts[order], 0)  # N_1 >= N_2 >= …, and 0 after the last
    best_cost, best = whole.cost, (0, 1)
    split = np.arange(counts.size + 1)
    for k in tries:
        longest = np.maximum(np.where(split > 0, ranked[0] / k, ranked[0]), ranked)
        average = counts.sum() + model.chunk * split * k + model.second_pass * np.append(0, ranked[:-1].cumsum())
        costs = _cost(average, longest, machine.workers, 1.0, model)
        h = int(costs.argmin())
        if costs[h] < best_cost:
            best_cost, best = float(costs[h]), (h, k)
    chunks = np.ones_like(counts)
    if best_cost > (1 - model.least_gain) * whole.cost:
        return whole
    chunks[order[: best[0]]] = best[1]
    return Split(chunks, best_cost, whole.cost)


def length_policy(counts: Any, machine: Machine, model: CostModel, room: int = 1 << 31) -> Split:
    """Splits all tiles above a cut into chunks of one length, at most `room` in all. The cost model finds the cut.

    With one number of chunks for all tiles (`seed_policy`), a tile far heavier than the next still makes chunks that
    are too long for a large GPU. One length avoids that. Chunks that are walked twice are shorter in proportion, so
    that they take no longer than the tiles that stay whole. Cuts are the ends of logarithmic bins, so that a histogram
    is all the data needed.
    """
    counts = _checked(counts)
    whole, share = unsplit(counts, machine, model), counts.sum() / machine.workers
    best_cost, best_cut = whole.cost, 0.0
    for cut in bin_ends():
        heavy = counts[counts >= cut]
        length = cut_length(cut, model)
        if cut < max(model.least_cut, share / 4) or not heavy.size or heavy.sum() / length + heavy.size > room:
            continue
        chunks = heavy.sum() / length + 0.5 * heavy.size
        total = counts.sum() + model.chunk * chunks + model.second_pass * heavy.sum()
        cost = float(_cost(total, cut, machine.workers, machine.pace, model))
        if cost < best_cost:
            best_cost, best_cut = cost, cut
    if best_cut == 0 or best_cost > (1 - model.least_gain) * whole.cost:
        return whole
    chunks = np.where(counts >= best_cut, -(-counts // cut_length(best_cut, model)), 1)
    return Split(chunks, best_cost, whole.cost)


def keeps_grid(counts: Any, machine: Machine, model: CostModel) -> bool:
    """Returns true if `length_policy` keeps the grid order: no split can pay, and no order gains `ORDER_GAIN`.

    In grid order, each tile is assumed to begin when the workers have shared the tiles before it evenly. No order ends
    before its heaviest tile, nor before every worker has done an even share.
    """
    counts, workers = _checked(counts), machine.workers
    total, heaviest = int(counts.sum()), int(counts.max(initial=0))
    enough = (1 - model.least_gain) * unsplit(counts, machine, model).cost
    if total / workers < enough and heaviest >= model.least_cut:
        return False
    reach = int((counts.cumsum() - counts + workers * counts).max(initial=0))
    return machine.pace * (reach - max(heaviest * workers, total)) <= ORDER_GAIN * total


def bin_ends() -> list[float]:
    """Returns the least count above each bin, for bin 1 and later ones."""
    bits = ((127 * BINS_PER_OCTAVE + np.arange(1, BINS - 1)) << 20).astype(np.int32)
    return bits.view(np.float32).astype(np.float64).tolist()


def cut_length(cut: float, model: CostModel) -> int:
    """Returns the splats of a chunk that takes as long as a whole tile of `cut` splats."""
    return max(CHUNK_STEP, int(cut / (1 + model.second_pass)) // CHUNK_STEP * CHUNK_STEP)


# ---- Units of work ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Units:
    """Holds the units of work that blocks of a GPU take, in order. A unit is a whole tile or a chunk."""

    tile: Int64  # [U]
    chunk: Int64  # [U] number of the chunk within its tile, from the front
    work: NDArray[np.float64]  # [U] cost in splats, overheads included

    def __len__(self) -> int:
        return len(self.tile)


def units_of(counts: Any, split: Split, order: str, model: CostModel, chunks_last: bool = False) -> Units:
    """Returns the units of split tiles (all first chunks, then all second chunks, and so on), then of whole tiles.

    `order` orders the whole tiles. `chunks_last` puts the whole tiles before the chunks.
    """
    counts = _checked(counts)
    whole = tile_order(counts, order)
    whole = whole[split.chunks[whole] <= 1]
    tiles, numbers, work = [], [], []
    for tile in np.flatnonzero(split.chunks > 1):
        length = chunk_length(int(counts[tile]), int(split.chunks[tile]))
        begins = np.arange(0, counts[tile], length)
        tiles.append(np.full(begins.size, tile))
        numbers.append(np.arange(begins.size))
        work.append((1 + model.second_pass) * np.minimum(length, counts[tile] - begins) + model.chunk)
    tile, chunk = (np.concatenate([*parts, np.zeros(0, np.int64)]).astype(np.int64) for parts in (tiles, numbers))
    chunk_work = np.concatenate([*work, np.zeros(0)])
    by_number = np.argsort(chunk, kind="stable")
    parts = [
        (tile[by_number], chunk[by_number], chunk_work[by_number]),
        (whole, np.zeros_like(whole), counts[whole] + model.start * (counts[whole] > 0)),
    ]
    if chunks_last:
        parts.reverse()
    return Units(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def variant(
    name: str, counts: Any, machine: Machine, model: CostModel | None = None, h: int = 16, k: int = 16
) -> Units:
    """Returns the units of a named schedule. `all` and `fixed` take k chunks; `fixed` splits the h heaviest tiles."""
    counts, model = _checked(counts), model or CostModel()
    whole = unsplit(counts, machine, model)
    if name in ORDERS:
        return units_of(counts, whole, name, model)
    if name == "catgs":  # tiles above twice the mean become chunks as long as the mean, taken last (Zhang et al. 2026)
        mean = max(counts.mean() if counts.size else 0.0, 1.0)
        chunks = np.where(counts > 2 * mean, np.ceil(counts / mean).astype(np.int64), 1)
        return units_of(counts, Split(chunks, whole.cost, whole.cost), "grid", model, chunks_last=True)
    if name == "all":
        return units_of(counts, Split(np.where(counts > 0, k, 1), whole.cost, whole.cost), "lpt", model)
    if name == "fixed":
        chunks = np.ones_like(counts)
        chunks[tile_order(counts, "lpt")[:h]] = k
        return units_of(counts, Split(np.where(counts > 0, chunks, 1), whole.cost, whole.cost), "lpt", model)
    if name in ("seed", "length"):
        if name == "length" and keeps_grid(counts, machine, model):
            return units_of(counts, whole, "grid", model)
        policy = seed_policy if name == "seed" else length_policy
        return units_of(counts, policy(counts, machine, model), "lpt_binned", model)
    raise InputError(f"A schedule is one of {', '.join(VARIANTS)}, got {name!r}.")
