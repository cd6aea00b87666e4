"""Declares every run-time toggle: a frozen dataclass for each stage, a field for each toggle.

A field declares (`toggles.py` explains the arguments)
- the toggle's values, the oldest first;
- a sentence for people;
- the rung of the ladder that introduced the toggle;
- the backends that honour it, and the toggles it needs;
- how far results may differ.

The window, the command line, the benchmarks and the tests iterate over `toggle_table()`. On a GPU a toggle is a field
of the stage's C++ policy, and its value an enumerator. `ladder.py` lists the rungs; `cuda/plan/passes.py` turns a
policy into kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Literal, get_args, get_type_hints

from splatscope.kernels.errors import InputError
from splatscope.kernels.toggles import ANOTHER_PICTURE, CPU_AND_CUDA, Need, Switch, Toggle, Tolerance, toggle

Filter = Literal["plain", "compensated", "mip"]
Reduction = Literal[
    "atomic", "butterfly", "scatter", "pair", "deferred_pair", "deferred_quad", "transposed", "deterministic"
]
_MASKS = ("aabb", "ellipse")


@dataclass(frozen=True)
class BinPolicy:
    """Selects the tiles in which a splat is listed."""

    bounds: Literal["circle3s", "aabb_o", "row_span"] = toggle(
        "row_span",
        "Lists a splat in the tiles its 1/255 ellipse meets (row_span, the fewest), in its bounding box (aabb_o), or "
        "in the square around three sigma (circle3s, 2023).",
        step="s01b",
        identity=Tolerance(difference=0.02),
        cpp="Bounds",
        backends=CPU_AND_CUDA,
    )


@dataclass(frozen=True)
class ProjectPolicy:
    """Selects how splats are projected and get their colours."""

    filter: Filter = toggle(
        "plain",
        "Widens splats so that none slips between pixels: by 0.3 px² (plain), also lowering their opacity to make up "
        "for it (compensated), or by 0.1 px² and lowering it (mip, Mip-Splatting). A scene looks right under the "
        "filter it was trained with.",
        step="own",
        identity=ANOTHER_PICTURE,
        cpp="Filter",
        backends=CPU_AND_CUDA,
        primitives=("3dgs",),
    )
    sh_gate: Literal["all", "visible"] = toggle(
        "visible",
        "Evaluates the colours of all splats whose sphere reaches the image, or only of those in a tile.",
        step="s01e",
        identity="B",
        cpp="ShGate",
    )
    sh_load: Literal["scalar", "float4", "staged"] = toggle(
        "staged",
        "Reads spherical harmonics one number or four at a time, or lets a warp copy the rows of its splats to shared "
        "memory (staged), which uses memory best.",
        step="s01e",
        identity="B",
        cpp="ShLoad",
    )
    sh_dtype: Literal["f32", "bf16", "split"] = toggle(
        "f32",
        "Keeps harmonics and their gradients in single precision, or in bfloat16 at half the bytes. split also keeps "
        "the lower halves for the optimiser, so that training loses nothing; bf16 drops them and rounds at random, so "
        "that small steps count on average.",
        step="s06_bf16",
        identity=Tolerance(decibels=0.02),
        cpp="ShDtype",
    )
    layout: Literal["soa", "packed48"] = toggle(
        "packed48",
        "Stores projected splats as an array for each number (soa), or as 48 bytes each (packed48): fewer reads.",
        step="s01c",
        identity="B",
        cpp="Layout",
    )


@dataclass(frozen=True)
class SortPolicy:
    """Selects how (splat, tile) pairs are sorted by depth."""

    scheme: Literal["single64", "two_stage"] = toggle(
        "two_stage",
        "Sorts all (splat, tile) pairs once by 64-bit keys of tile and depth, or visible splats by depth and then "
        "pairs by tile alone, which moves fewer bytes.",
        step="s01d",
        identity="B",
        cpp=None,
    )
    sorter: Literal["torch", "onesweep"] = toggle(
        "onesweep",
        "Sorts with torch.sort, for which the host waits to read the counts, or with our one-sweep radix sort, for "
        "which it does not wait.",
        step="s01d",
        identity="B",
        cpp=None,
        needs=(Need("torch", "launch", "mode", ("direct",), "the host reads counts, which a graph cannot"),),
    )


@dataclass(frozen=True)
class SchedulePolicy:
    """Selects the order of tiles, and which tiles several blocks share (Ryu and Yoo 2026)."""

    sched: Literal["grid", "lpt", "lpt_binned", "lpt_reverse", "exact_work"] = toggle(
        "lpt_binned",
        "Hands out tiles row by row (grid), longest first by a sort (lpt) or by coarse bins (lpt_binned, cheaper), "
        "shortest first (lpt_reverse), or by their time in the last frame (exact_work). Longest first leaves less "
        "idle time at the end.",
        step="own",
        identity="B",
        cpp="Sched",
    )
    chunk: Literal["off", "all", "fixed", "catgs", "modelled"] = toggle(
        "modelled",
        "Splits heavy tiles into chunks for several blocks: no tile (off), all into k (all), the h heaviest into k "
        "(fixed), tiles above twice the mean (catgs), or as a cost model decides (modelled). It pays where few tiles "
        "list most splats.",
        step="own",
        identity="R",
        cpp="Chunked",
    )
    chunk_h: Literal["4", "16", "64", "256"] = toggle(
        "16", "Sets how many of the heaviest tiles chunk = fixed splits (h).", step="own", identity="R", cpp=None
    )
    chunk_k: Literal["2", "4", "8", "16", "64"] = toggle(
        "4", "Sets into how many chunks chunk = fixed and all split a tile (k).", step="own", identity="R", cpp=None
    )
    cost_model: Literal["seed", "length"] = toggle(
        "length",
        "Lets the cost model choose how many tiles to split and into how many chunks (seed, as published), or choose "
        "one length for all chunks (length), which suits large GPUs better.",
        step="own",
        identity="R",
        cpp="CostModel",
    )
    plan: Literal["ranges", "apart"] = toggle(
        "ranges",
        "Plans the order of tiles in the kernel that finds their lists (ranges, saves a launch), or in a kernel of its "
        "own (apart).",
        step="own",
        identity="B",
        cpp=None,
    )
    exact_stop: Switch = toggle(
        "on",
        "Tells a chunk how much light earlier chunks let through, so that pixels stop where they would in an unsplit "
        "tile. Training always does this.",
        step="own",
        identity=Tolerance(difference=0.01),
    )
    sat_flag: Switch = toggle(
        "on",
        "Stops a chunk once an earlier one has ended all pixels of its tile, as behind opaque surfaces.",
        step="own",
        identity="B",
    )
    coexec: Literal["off", "streams", "fused", "queue"] = toggle(
        "queue",
        "Runs chunks before the tiles (off), at the same time on another stream (streams), in blocks that begin with "
        "chunks (fused), or from one queue (queue).",
        step="own",
        identity="B",
        cpp="Coexec",
        needs=(Need("fused", "schedule", "take", ("ticket",), "only blocks that stay can take chunks and tiles"),),
    )
    fused_share: Literal["10", "25", "50", "75", "90"] = toggle(
        "50",
        "Sets the percentage of blocks that begin with chunks if coexec = fused.",
        step="own",
        identity="B",
        cpp=None,
        needs=tuple(
            Need(value, "schedule", "coexec", ("fused",), "otherwise all blocks begin with chunks")
            for value in ("10", "25", "75", "90")
        ),
    )
    take: Literal["hardware", "ticket"] = toggle(
        "hardware",
        "Starts a block for each tile or chunk (hardware), or only as many blocks as fit, which draw tickets for more "
        "work (ticket).",
        step="own",
        identity="B",
        cpp="Taking",
    )
    record: Switch = toggle(
        "off",
        "Records where and when each tile or chunk ran, for the schedule panel and its files.",
        step="own",
        identity="B",
        backends=CPU_AND_CUDA,
    )


@dataclass(frozen=True)
class BlendPolicy:
    """Selects how a tile's list becomes pixels. The backward pass shares what decides which pixels a splat reaches."""

    map: Literal["columns_8x4", "columns_8x8", "mixed", "adaptive"] = toggle(
        "adaptive",
        "Gives a warp 8 x 4 pixels (one a thread) or 8 x 8 (two a thread). mixed takes 8 x 4 forward and 8 x 8 "
        "backward. adaptive is mixed, but also takes 8 x 8 forward while no tile is much heavier than the rest, if "
        "tiles are scheduled (not grid without chunks).",
        step="s06",
        identity="B",
        cpp="Map",
    )
    subtile: Literal["off", "aabb", "ellipse"] = toggle(
        "ellipse",
        "Lets a warp visit all splats of its tile, or only those whose bounding box or 1/255 ellipse meets its own "
        "pixels, which skips most of them.",
        step="s01c",
        identity="B",
        cpp="Subtile",
    )
    splat_fetch: Literal["shared", "shuffle"] = toggle(
        "shared",
        "Passes splats to the threads of a warp through shared memory, or by shuffles between them.",
        step="own",
        identity="B",
        cpp="Fetch",
    )
    subtile_list: Literal["ballot", "compacted"] = toggle(
        "compacted",
        "Lets a warp search the bits of 32 staged splats at a time, or first list all splats of a batch that may "
        "reach its pixels and then visit only those.",
        step="own",
        identity="B",
        cpp="SubtileList",
        needs=(Need("compacted", "blend", "subtile", _MASKS, "without masks the list would equal the tile's list"),),
    )
    exp: Literal["expf", "ex2"] = toggle(
        "ex2",
        "Computes a splat's falloff with expf, or with the hardware's power of two, which is faster.",
        step="s01e",
        identity="R",
        cpp="Exponential",
    )
    alpha_cap: Literal["cap99", "cap999", "none"] = toggle(
        "cap99",
        "Limits a splat's alpha at a pixel to 0.99 as in 2023, to 0.999, or to almost 1.",
        step="own",
        identity=Tolerance(difference=0.01),
        cpp="AlphaCap",
        backends=CPU_AND_CUDA,
        needs=tuple(
            Need(value, "blend", "stop", ("inclusive",), "a splat dropped at the end could be a tenth of the pixel")
            for value in ("cap999", "none")
        ),
    )
    stop: Literal["exclusive", "inclusive"] = toggle(
        "exclusive",
        "Leaves out the splat that would take a pixel's transmittance below 1e-4, or blends it as the last one.",
        step="own",
        identity=Tolerance(difference=0.01),
        cpp="Stop",
        backends=CPU_AND_CUDA,
    )
    log2_opacity: Switch = toggle(
        "on",
        "Adds the logarithm of the opacity to the exponent, which saves a multiplication for each pixel.",
        step="s06",
        identity="R",
        needs=(Need("on", "blend", "exp", ("ex2",), "it is an exponent of 2"),),
    )
    branchless: Switch = toggle(
        "on",
        "Blends splats with alpha 0 into pixels they miss, which is faster than a branch.",
        step="s05",
        identity="B",
        needs=(Need("on", "blend", "subtile", _MASKS, "without masks most lanes would work for nothing"),),
    )
    sign_T: Switch = toggle(
        "off",
        "Marks a finished pixel by the sign of its transmittance, which saves a flag.",
        step="s06",
        identity="B",
        needs=(Need("on", "blend", "branchless", ("on",), "it replaces the flag of the branchless loop"),),
    )
    running_T: Switch = toggle(
        "on",
        "Lets transmittance fall further after a pixel has stopped and keeps the value at the stop separately, which "
        "needs no flag.",
        step="own",
        identity="R",
        needs=(
            Need("on", "blend", "branchless", ("on",), "it replaces the flag of the branchless loop"),
            Need("on", "blend", "sign_T", ("off",), "both mark finished pixels"),
        ),
    )
    compaction: Switch = toggle(
        "on",
        "Shortens each tile's list in training to the splats it blended, for the backward pass.",
        step="s04",
        identity="B",
        needs=(Need("on", "blend", "subtile", _MASKS, "it needs the bits of the warps' masks"),),
    )
    cmask: Switch = toggle(
        "on",
        "Notes in each entry of the shortened list which warps blended it, so that the other warps skip it in the "
        "backward pass.",
        step="s04",
        identity="B/R",
        needs=(Need("on", "blend", "compaction", ("on",), "the bits are stored by compaction"),),
    )


@dataclass(frozen=True)
class BlendBackwardPolicy:
    """Selects how gradients of pixels become sums for each splat."""

    reduce: Reduction = toggle(
        "deferred_quad",
        "Adds up a splat's nine sums over a warp: an atomic for each thread; 45 shuffles (butterfly); 12 (scatter), "
        "10 (pair), 7.5 or 7 (deferred) by sharing the work; through shared memory (transposed); or in integers, so "
        "that every run gives the same bits (deterministic).",
        step="s01a",
        identity="B/R",
        cpp="Reduce",
    )
    accum: Literal["rgb", "projected"] = toggle(
        "projected",
        "Carries light from behind as three colours, or as one product with the image gradient: fewer registers.",
        step="s01e",
        identity="B/R",
        cpp="Accumulate",
    )
    bwd_sync: Literal["block", "warp"] = toggle(
        "warp",
        "Stages splats for the whole block with barriers, or lets each warp stage its own, so that no warp waits.",
        step="s06",
        identity="B/R",
        cpp="Walk",
        needs=(Need("warp", "blend", "cmask", ("on",), "a lone warp must find in the list which splats it blended"),),
    )
    row_combine: Switch = toggle(
        "on",
        "Shares the products of a thread's two pixel rows when it adds up their moments.",
        step="s06",
        identity="B/R",
        needs=(Need("on", "blend", "map", ("columns_8x8", "mixed", "adaptive"), "only they give a thread two rows"),),
        primitives=("3dgs",),
    )
    touched: Switch = toggle(
        "on",
        "Marks splats that have gradients, so that the others skip the chain rule.",
        step="s04",
        identity="B",
        needs=(Need("on", "blend", "compaction", ("on",), "it marks the splats that compaction kept"),),
    )
    ablate: Literal["off", "no_atomics", "no_reductions", "loop_floor"] = toggle(
        "off",
        "Leaves out a part to measure its cost, with wrong gradients: atomics (no_atomics), also sums over a warp "
        "(no_reductions), or all but the walk (loop_floor).",
        step="ablation",
        identity="B",
        cpp="Ablate",
    )


@dataclass(frozen=True)
class ProjectBackwardPolicy:
    """Selects how the sums of a splat become gradients of its parameters."""

    sh_bwd: Literal["regs", "stream4", "staged"] = toggle(
        "staged",
        "Keeps all harmonics of a splat in registers (regs), takes four rows at a time (stream4), or lets a warp copy "
        "its rows to shared memory and write their gradients as one run (staged, the fastest).",
        step="s03",
        identity="B/R",
        cpp="ShBackward",
        needs=(
            Need(
                "staged",
                "project_backward",
                "zero",
                ("coop",),
                "a warp writes rows of unseen splats too",
            ),
        ),
    )
    zero: Literal["memset", "coop"] = toggle(
        "coop",
        "Clears gradients with a memset beforehand, or only those of unseen splats in the same kernel.",
        step="s03",
        identity="B",
        cpp="Zero",
    )
    by_slot: Switch = toggle(
        "off",
        "Starts a thread for each visible splat, or (off) for each splat of the scene.",
        step="own",
        identity="B",
        needs=(Need("on", "project_backward", "zero", ("memset",), "nothing else clears gradients of unseen splats"),),
    )


_FUSED = ("fused", "lazy_sh", "sparse")
_WHOLE_ROWS = "a warp must have whole rows of gradients"


@dataclass(frozen=True)
class OptimizerPolicy:
    """Selects how a training step on the GPU moves parameters. Pictures and gradients do not depend on it."""

    adam: Literal["separate", "fused", "lazy_sh", "sparse", "auto"] = toggle(
        "auto",
        "Runs Adam over arrays of gradients (separate), or inside the backward pass without such arrays (fused). "
        "lazy_sh also skips harmonics without a gradient and catches them up exactly before they are seen; auto takes "
        "the first that the other toggles allow of lazy_sh, fused, separate. sparse moves seen splats only: another "
        "result (-0.1 to -0.2 dB).",
        step="own",
        identity="B",
        cpp=None,
        needs=(
            *(Need(value, "project_backward", "sh_bwd", ("staged",), _WHOLE_ROWS) for value in _FUSED),
            Need("lazy_sh", "project", "sh_load", ("staged",), "rows are caught up in the warp's shared memory"),
            Need("lazy_sh", "project", "sh_dtype", ("f32",), "it needs harmonics in single precision"),
        ),
    )


@dataclass(frozen=True)
class LaunchPolicy:
    """Selects how kernels are launched."""

    mode: Literal["direct", "graph"] = toggle(
        "graph",
        "Launches kernels one by one, or replays them as a CUDA graph, which costs the host less time.",
        step="own",
        identity="B",
        cpp=None,
    )


@dataclass(frozen=True)
class Policy:
    """Holds all toggles of a picture. The window redraws when the policy is not equal to the last one."""

    bin: BinPolicy = BinPolicy()
    project: ProjectPolicy = ProjectPolicy()
    sort: SortPolicy = SortPolicy()
    schedule: SchedulePolicy = SchedulePolicy()
    blend: BlendPolicy = BlendPolicy()
    blend_backward: BlendBackwardPolicy = BlendBackwardPolicy()
    project_backward: ProjectBackwardPolicy = ProjectBackwardPolicy()
    optimizer: OptimizerPolicy = OptimizerPolicy()
    launch: LaunchPolicy = LaunchPolicy()

    @property
    def adam(self) -> str:
        """Returns the value of `optimizer.adam`, with `auto` resolved by the other toggles."""
        wanted = self.optimizer.adam
        if wanted != "auto":
            return wanted
        if self.project_backward.sh_bwd != "staged":
            return "separate"
        has_whole_rows = self.project.sh_load == "staged" and self.project.sh_dtype == "f32"
        return "lazy_sh" if has_whole_rows else "fused"

    def value(self, stage: str, name: str) -> str:
        """Returns the value of one toggle."""
        return getattr(getattr(self, stage), name)

    def with_value(self, stage: str, name: str, value: str) -> Policy:
        """Returns a copy with one toggle set. Raises ValueError, which names the allowed values."""
        row = next((t for t in _rows() if (t.stage, t.name) == (stage, name)), None)
        if row is None:
            raise ValueError(f"There is no toggle {stage}.{name}; toggles are {[t.key for t in _rows()]}.")
        if value not in row.values:
            raise ValueError(f"{stage}.{name} must be one of {', '.join(row.values)}, got {value!r}.")
        return replace(self, **{stage: replace(getattr(self, stage), **{name: value})})

    def unmet(self, row: Toggle, value: str) -> str | None:
        """Returns why the other toggles do not allow `row` to have `value`, and what to set first, or None."""
        for need in row.needs:
            if need.value == value and self.value(need.stage, need.name) not in need.allowed:
                return need.sentence(row.key)
        return None

    def problems(self, backend: str = "cuda") -> list[str]:
        """Returns a sentence for each toggle of this backend whose needs are not met."""
        rows = ((row, self.value(row.stage, row.name)) for row in toggle_table(backend))
        return [sentence for row, value in rows if (sentence := self.unmet(row, value))]

    def check(self, backend: str = "cuda") -> None:
        """Raises InputError if toggles of this backend need others that are not set."""
        if problems := self.problems(backend):
            raise InputError(" ".join(problems))


def toggle_table(backend: str = "cpu", ablations: bool = False) -> Iterator[Toggle]:
    """Lists the toggles that a backend honours, in the order of their declaration; ablations only if asked for."""
    return (row for row in _rows() if backend in row.backends and (ablations or not row.is_ablation))


@cache
def _rows() -> tuple[Toggle, ...]:
    rows = []
    for stage in fields(Policy):
        policy = getattr(Policy(), stage.name)
        hints = get_type_hints(type(policy))
        for f in fields(policy):
            rows.append(Toggle(stage.name, f.name, get_args(hints[f.name]), getattr(policy, f.name), **f.metadata))
    return tuple(rows)
