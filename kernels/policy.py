"""Every run-time toggle, one frozen dataclass a stage.

A toggle is one field: its values, the oldest first, one sentence, the seed step it comes from, the backends that honour
it, what it needs, and its identity class against the default, for class Q the tolerance (`toggles.py`). The window, the
command line, the benchmark and the tests all iterate over `toggle_table()`; on a GPU a field is a field of the stage's
C++ policy, and a value the name of its enumerator. The ladder as policies: `ladder.py`. How a policy becomes kernels:
`cuda/plan/passes.py`.
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
    """Which tiles a splat is listed in."""

    bounds: Literal["circle3s", "aabb_o", "row_span"] = toggle(
        "row_span",
        "Tiles a splat is listed in: row_span solves the 1/255 ellipse per tile row, aabb_o takes its bounding box, "
        "circle3s the square around three standard deviations (2023).",
        step="s01b",
        identity=Tolerance(difference=0.02),
        cpp="Bounds",
        backends=CPU_AND_CUDA,
    )


@dataclass(frozen=True)
class ProjectPolicy:
    """How splats come to the image plane and get their colour."""

    filter: Filter = toggle(
        "plain",
        "How splats are kept from slipping between pixels: widened by 0.3 px²; likewise, their opacity lowered by as "
        "much as they grew; or by 0.1 px² and lowered (Mip-Splatting). A scene looks right under the one it was "
        "trained with.",
        step="own",
        identity=ANOTHER_PICTURE,
        cpp="Filter",
        backends=CPU_AND_CUDA,
    )
    sh_gate: Literal["all", "visible"] = toggle(
        "visible",
        "Splats whose harmonics are evaluated: all whose sphere reaches the image, or only those that reach a tile.",
        step="s01e",
        identity="B",
        cpp="ShGate",
    )
    sh_load: Literal["scalar", "float4", "staged"] = toggle(
        "staged",
        "Harmonics are read one number or four at a time, or a warp brings the rows of its splats to shared memory.",
        step="s01e",
        identity="B",
        cpp="ShLoad",
    )
    sh_dtype: Literal["f32", "bf16", "split"] = toggle(
        "f32",
        "Harmonics and their gradients in single precision, or in bfloat16 at half the bytes; split keeps the lower "
        "halves of the numbers in an array of their own, so that an optimiser loses nothing. Training with bf16 keeps "
        "no more than that, and rounds at random so that small steps are not lost.",
        step="s06_bf16",
        identity=Tolerance(decibels=0.02),
        cpp="ShDtype",
    )
    layout: Literal["soa", "packed48"] = toggle(
        "packed48",
        "How splats on the image plane lie in memory: each number in an array of its own, or 48 bytes a splat.",
        step="s01c",
        identity="B",
        cpp="Layout",
    )


@dataclass(frozen=True)
class SortPolicy:
    """How (splat, tile) pairs come into depth order."""

    scheme: Literal["single64", "two_stage"] = toggle(
        "two_stage",
        "One sort of all pairs by 64-bit keys of tile and depth, or a sort of the visible by depth and then of the "
        "pairs by as many bits as tiles need.",
        step="s01d",
        identity="B",
        cpp=None,
    )
    sorter: Literal["torch", "onesweep"] = toggle(
        "onesweep",
        "torch.sort, which waits for the host to read the counts, or our own one-sweep radix sort, which does not.",
        step="s01d",
        identity="B",
        cpp=None,
        needs=(Need("torch", "launch", "mode", ("direct",), "the host reads counts, which a graph cannot"),),
    )


@dataclass(frozen=True)
class SchedulePolicy:
    """In which order tiles are blended, and which of them by several blocks (Ryu and Yoo 2026)."""

    sched: Literal["grid", "lpt", "lpt_binned", "lpt_reverse", "exact_work"] = toggle(
        "lpt_binned",
        "Tiles are handed out as they lie, longest first by a sort or by bins of an eighth of an octave, shortest "
        "first, or by what each took in the frame before.",
        step="own",
        identity="B",
        cpp="Sched",
    )
    chunk: Literal["off", "all", "fixed", "catgs", "modelled"] = toggle(
        "modelled",
        "Tiles split into chunks of depth for several blocks: none, all into k, the h heaviest into k, those above "
        "twice the mean into parts of the mean, or what a cost model says each frame.",
        step="own",
        identity="R",
        cpp="Chunked",
    )
    chunk_h: Literal["4", "16", "64", "256"] = toggle("16", "h of fixed chunks.", step="own", identity="R", cpp=None)
    chunk_k: Literal["2", "4", "8", "16", "64"] = toggle("4", "k of fixed chunks.", step="own", identity="R", cpp=None)
    cost_model: Literal["seed", "length"] = toggle(
        "length",
        "The cost model chooses how many tiles and into how many parts each, as published, or one length of chunks.",
        step="own",
        identity="R",
        cpp="CostModel",
    )
    plan: Literal["ranges", "apart"] = toggle(
        "ranges",
        "What is handed out is decided by the block that comes last of those which find where tiles begin, or by a "
        "kernel of its own.",
        step="own",
        identity="B",
        cpp=None,
    )
    exact_stop: Switch = toggle(
        "on",
        "A chunk learns what is left of its pixels before it, so that they stop where they would in one walk; training "
        "always does.",
        step="own",
        identity=Tolerance(difference=0.01),
    )
    sat_flag: Switch = toggle(
        "on", "A chunk stops once an earlier one has ended all pixels of its tile.", step="own", identity="B"
    )
    coexec: Literal["off", "streams", "fused", "queue"] = toggle(
        "queue",
        "Chunks are launched before the tiles, or beside them on a stream of their own, or with them: some of the "
        "blocks begin with chunks, or one queue has both.",
        step="own",
        identity="B",
        cpp="Coexec",
        needs=(Need("fused", "schedule", "take", ("ticket",), "only blocks that stay can help each other out"),),
    )
    fused_share: Literal["10", "25", "50", "75", "90"] = toggle(
        "50",
        "Percent of the blocks that begin with chunks where coexec is fused.",
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
        "The hardware starts a block for each tile or chunk, or as many blocks as fit stay and count on.",
        step="own",
        identity="B",
        cpp="Taking",
    )
    record: Switch = toggle(
        "off",
        "Pictures come with what ran when: each block or thread writes down what it blended, where and how long.",
        step="own",
        identity="B",
        backends=CPU_AND_CUDA,
    )


@dataclass(frozen=True)
class BlendPolicy:
    """How a tile's list becomes pixels. The backward pass shares what decides which pixel a splat reaches."""

    map: Literal["columns_8x4", "columns_8x8", "mixed", "adaptive"] = toggle(
        "adaptive",
        "Pixels of a warp: 8 x 4, one a thread in blocks of 256, or 8 x 8, two a thread in blocks of 128; mixed takes "
        "the first forward and the second backward; adaptive is mixed, but 8 x 8 forward where earlier frames had no "
        "tile that stands out. Without a plan (grid, no chunks) it stays mixed.",
        step="s06",
        identity="B",
        cpp="Map",
    )
    subtile: Literal["off", "aabb", "ellipse"] = toggle(
        "ellipse",
        "Splats a warp goes through: all of the tile, those whose bounding box meets its pixels, or those whose "
        "1/255 ellipse does.",
        step="s01c",
        identity="B",
        cpp="Subtile",
    )
    splat_fetch: Literal["shared", "shuffle"] = toggle(
        "shared",
        "Where lanes find the splat whose turn it is: in shared memory, or in the lane that holds it.",
        step="own",
        identity="B",
        cpp="Fetch",
    )
    subtile_list: Literal["ballot", "compacted"] = toggle(
        "compacted",
        "A warp goes forward through the bits of 32 staged splats at a time, or lists what may reach its pixels, a "
        "whole batch at once.",
        step="own",
        identity="B",
        cpp="SubtileList",
        needs=(Need("compacted", "blend", "subtile", _MASKS, "without masks the list would be the tile's own"),),
    )
    exp: Literal["expf", "ex2"] = toggle(
        "ex2",
        "The falloff by expf, or by the hardware's power of two on a conic scaled beforehand.",
        step="s01e",
        identity="R",
        cpp="Exponential",
    )
    alpha_cap: Literal["cap99", "cap999", "none"] = toggle(
        "cap99",
        "The largest alpha of a splat at a pixel: 0.99 as in 2023, 0.999, or as good as 1.",
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
        "The splat that takes a pixel's transmittance below 1e-4 is left out, or blended as the last one.",
        step="own",
        identity=Tolerance(difference=0.01),
        cpp="Stop",
        backends=CPU_AND_CUDA,
    )
    log2_opacity: Switch = toggle(
        "on",
        "Opacity enters the exponent instead of being multiplied.",
        step="s06",
        identity="R",
        needs=(Need("on", "blend", "exp", ("ex2",), "it is an exponent of 2"),),
    )
    branchless: Switch = toggle(
        "on",
        "Pixels that a splat misses go through the motions with alpha 0 instead of branching.",
        step="s05",
        identity="B",
        needs=(Need("on", "blend", "subtile", _MASKS, "without masks most lanes would work for nothing"),),
    )
    sign_T: Switch = toggle(
        "off",
        "The sign of the transmittance says that a pixel is done, instead of a flag of its own.",
        step="s06",
        identity="B",
        needs=(Need("on", "blend", "branchless", ("on",), "it replaces the flag of the branchless loop"),),
    )
    running_T: Switch = toggle(
        "on",
        "Transmittance runs on below the stop, beside what is left for the background: a weight is what that lost, and "
        "no flag is needed.",
        step="own",
        identity="R",
        needs=(
            Need("on", "blend", "branchless", ("on",), "it replaces the flag of the branchless loop"),
            Need("on", "blend", "sign_T", ("off",), "both say when a pixel is done"),
        ),
    )
    compaction: Switch = toggle(
        "on",
        "The forward pass of training leaves each tile a list of only those splats that were blended.",
        step="s04",
        identity="B",
        needs=(Need("on", "blend", "subtile", _MASKS, "it works on the bits of the warps' masks"),),
    )
    cmask: Switch = toggle(
        "on",
        "Each entry of the compacted list says which warps blended it.",
        step="s04",
        identity="B/R",
        needs=(Need("on", "blend", "compaction", ("on",), "the bits are stored by compaction"),),
    )


@dataclass(frozen=True)
class BlendBackwardPolicy:
    """How the gradients of pixels become sums of splats."""

    reduce: Reduction = toggle(
        "deferred_quad",
        "How a warp adds up a splat's nine sums: an atomic a lane, 45 shuffles, 12 by scattering sums over lanes, 10 "
        "by pairs of splats, 7.5 with the horizontal offset multiplied in later, 7 by fours; transposed goes through "
        "shared memory; deterministic adds integers, so that every run gives the same bits.",
        step="s01a",
        identity="B/R",
        cpp="Reduce",
    )
    accum: Literal["rgb", "projected"] = toggle(
        "projected",
        "Light from behind is carried as three colours, or as one product with the image gradient.",
        step="s01e",
        identity="B/R",
        cpp="Accumulate",
    )
    bwd_sync: Literal["block", "warp"] = toggle(
        "warp",
        "The block stages splats together with barriers, or each warp stages its own and never waits.",
        step="s06",
        identity="B/R",
        cpp="Walk",
        needs=(Need("warp", "blend", "cmask", ("on",), "a warp alone must know from the list what it blended"),),
    )
    row_combine: Switch = toggle(
        "on",
        "The moments of a thread's two rows come from one product each.",
        step="s06",
        identity="B/R",
        needs=(Need("on", "blend", "map", ("columns_8x8", "mixed", "adaptive"), "only there a thread has two rows"),),
    )
    touched: Switch = toggle(
        "on",
        "The backward pass marks the splats it reached, and the others skip their chain rule.",
        step="s04",
        identity="B",
        needs=(Need("on", "blend", "compaction", ("on",), "it marks what compaction kept"),),
    )
    ablate: Literal["off", "no_atomics", "no_reductions", "loop_floor"] = toggle(
        "off",
        "Left out to see what it costs, with wrong gradients: atomics; sums over a warp as well; all but the walk.",
        step="ablation",
        identity="B",
        cpp="Ablate",
    )


@dataclass(frozen=True)
class ProjectBackwardPolicy:
    """How sums of splats become gradients of their parameters."""

    sh_bwd: Literal["regs", "stream4", "staged"] = toggle(
        "staged",
        "All harmonics of a splat in registers at once, or four rows at a time, or a warp brings its rows to shared "
        "memory and writes their gradients as one run.",
        step="s03",
        identity="B/R",
        cpp="ShBackward",
        needs=(Need("staged", "project_backward", "zero", ("coop",), "a warp writes the unseen rows among its own"),),
    )
    zero: Literal["memset", "coop"] = toggle(
        "coop",
        "Gradients of splats without any are cleared beforehand, or by this kernel, a warp together.",
        step="s03",
        identity="B",
        cpp="Zero",
    )
    by_slot: Switch = toggle(
        "off",
        "A thread a visible splat instead of a thread a splat of the scene.",
        step="own",
        identity="B",
        needs=(Need("on", "project_backward", "zero", ("memset",), "nobody else clears the unseen"),),
    )


_FUSED = ("fused", "lazy_sh", "sparse")
_WHOLE_ROWS = "a warp must have whole rows of gradients"


@dataclass(frozen=True)
class OptimizerPolicy:
    """How a training step on the GPU moves the parameters. Pictures and gradients do not depend on it."""

    adam: Literal["separate", "fused", "lazy_sh", "sparse", "auto"] = toggle(
        "auto",
        "Adam goes over arrays of gradients in a launch of its own, or takes each gradient where the backward pass has "
        "it, so that no array holds them; lazy_sh leaves harmonics alone while their splat has no gradient and catches "
        "them up, exactly, before it is seen; auto is lazy_sh where the other toggles allow it, else fused, else "
        "separate; sparse moves seen splats only: another outcome (-0.1 to -0.2 dB).",
        step="own",
        identity="B",
        cpp=None,
        needs=(
            *(Need(value, "project_backward", "sh_bwd", ("staged",), _WHOLE_ROWS) for value in _FUSED),
            Need("lazy_sh", "project", "sh_load", ("staged",), "rows are caught up where a warp has them together"),
            Need("lazy_sh", "project", "sh_dtype", ("f32",), "rows are caught up whole, and others hold halves"),
        ),
    )


@dataclass(frozen=True)
class LaunchPolicy:
    """How kernels are started."""

    mode: Literal["direct", "graph"] = toggle(
        "graph",
        "Kernels are launched one by one, or captured once and replayed as one CUDA graph.",
        step="own",
        identity="B",
        cpp=None,
    )


@dataclass(frozen=True)
class Policy:
    """All toggles of one render; equality is the redraw test."""

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
        """What `optimizer.adam` comes to: auto is never the answer."""
        wanted = self.optimizer.adam
        if wanted != "auto":
            return wanted
        if self.project_backward.sh_bwd != "staged":
            return "separate"
        has_whole_rows = self.project.sh_load == "staged" and self.project.sh_dtype == "f32"
        return "lazy_sh" if has_whole_rows else "fused"

    def value(self, stage: str, name: str) -> str:
        """The value of one toggle."""
        return getattr(getattr(self, stage), name)

    def with_value(self, stage: str, name: str, value: str) -> Policy:
        """A copy with one toggle set. Raises ValueError naming the allowed values."""
        row = next((t for t in _rows() if (t.stage, t.name) == (stage, name)), None)
        if row is None:
            raise ValueError(f"There is no toggle {stage}.{name}; toggles are {[t.key for t in _rows()]}.")
        if value not in row.values:
            raise ValueError(f"{stage}.{name} must be one of {', '.join(row.values)}, got {value!r}.")
        return replace(self, **{stage: replace(getattr(self, stage), **{name: value})})

    def unmet(self, row: Toggle, value: str) -> str | None:
        """Why `row` cannot have `value` while the other toggles stay: a sentence naming what to set first, or None."""
        for need in row.needs:
            if need.value == value and self.value(need.stage, need.name) not in need.allowed:
                return need.sentence(row.key)
        return None

    def problems(self, backend: str = "cuda") -> list[str]:
        """A sentence for each toggle of this backend whose needs are not met."""
        rows = ((row, self.value(row.stage, row.name)) for row in toggle_table(backend))
        return [sentence for row, value in rows if (sentence := self.unmet(row, value))]

    def check(self, backend: str = "cuda") -> None:
        """Raises InputError unless the toggles of this backend go together."""
        if problems := self.problems(backend):
            raise InputError(" ".join(problems))


def toggle_table(backend: str = "cpu", ablations: bool = False) -> Iterator[Toggle]:
    """The toggles that a backend honours, stage by stage, in the order they are declared; ablations if asked for."""
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
