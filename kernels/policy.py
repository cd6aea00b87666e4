"""Every run-time toggle, one frozen dataclass a stage.

A toggle is one field: its values, one sentence, the seed step it comes from, the backends that honour it, what it
needs, and its identity class against the default: B bit-identical image, R rounding only, Q small stated change. The
window, the command line, the benchmark and the tests all iterate over `toggle_table()`; on a GPU a field is a field of
the stage's C++ policy, and a value the name of its enumerator. The ladder as policies: `steps.py`. How a policy
becomes kernels: `passes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_type_hints

from splatscope.kernels.errors import InputError

Identity = Literal["B", "R", "Q"]
Switch = Literal["off", "on"]
Reduction = Literal[
    "atomic", "butterfly", "scatter", "pair", "deferred_pair", "deferred_quad", "transposed", "deterministic"
]
CPU_AND_CUDA, CUDA = ("cpu", "cuda"), ("cuda",)


@dataclass(frozen=True)
class Need:
    """One value of a toggle that works only while another toggle has one of some values."""

    value: str
    stage: str
    name: str
    allowed: tuple[str, ...]
    reason: str  # completes "blend.cmask = on needs blend.compaction = on: …"

    def sentence(self, owner: str) -> str:
        """What to switch on first; `owner` is the toggle, as stage.name."""
        allowed = " or ".join(self.allowed)
        return (
            f"{owner} = {self.value} needs {self.stage}.{self.name} = {allowed}: {self.reason}; "
            f"set {self.stage}.{self.name} to {allowed} first."
        )


@dataclass(frozen=True)
class Toggle:
    """One row of the table: where the field lives and what it says about itself."""

    stage: str  # field of Policy
    name: str  # field of the stage's policy
    values: tuple[str, ...]
    default: str
    sentence: str
    step: str  # seed step that introduced it
    identity: Identity
    backends: tuple[str, ...]
    needs: tuple[Need, ...]
    cpp: str | None  # C++ type of the field; None where Python alone acts on it

    @property
    def key(self) -> str:
        """blend.subtile"""
        return f"{self.stage}.{self.name}"

    @property
    def is_switch(self) -> bool:
        """True for off and on: a checkbox rather than a choice."""
        return self.values == get_args(Switch)

    def spelled(self, value: str) -> str:
        """The value as C++ has it: true, Subtile::ellipse."""
        return {"off": "false", "on": "true"}[value] if self.cpp == "bool" else f"{self.cpp}::{value}"


def toggle(
    default: str,
    sentence: str,
    step: str,
    identity: Identity,
    cpp: str | None = "bool",
    needs: tuple[Need, ...] = (),
    backends: tuple[str, ...] = CUDA,
) -> Any:
    """Declares a policy field with what the window and the documents say of it."""
    row = {"sentence": sentence, "step": step, "identity": identity, "cpp": cpp, "needs": needs, "backends": backends}
    return field(default=default, metadata=row)


_MASKS = ("aabb", "ellipse")


@dataclass(frozen=True)
class BinPolicy:
    """Which tiles a splat is listed in."""

    bounds: Literal["row_span", "aabb_o", "circle3s"] = toggle(
        "row_span",
        "Tiles a splat is listed in: row_span solves the 1/255 ellipse per tile row, aabb_o takes its bounding box, "
        "circle3s the square around three standard deviations (2023).",
        step="s01b",
        identity="Q",
        cpp="Bounds",
        backends=CPU_AND_CUDA,
    )


@dataclass(frozen=True)
class ProjectPolicy:
    """How splats come to the image plane and get their colour."""

    sh_gate: Literal["all", "visible"] = toggle(
        "visible",
        "Splats whose harmonics are evaluated: all in front of the culls, or only those that reach a tile.",
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
    sh_dtype: Literal["f32", "bf16"] = toggle(
        "f32",
        "Harmonics and their gradients in single precision, or in bfloat16 at half the bytes.",
        step="s06_bf16",
        identity="Q",
        cpp="ShDtype",
    )


@dataclass(frozen=True)
class SortPolicy:
    """How (splat, tile) pairs come into depth order."""

    sort: Literal["single64", "two_stage"] = toggle(
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
        needs=(Need("torch", "launch", "launch", ("direct",), "the host reads counts, which a graph cannot"),),
    )


@dataclass(frozen=True)
class BlendPolicy:
    """How a tile's list becomes pixels. The backward pass shares what decides which pixel a splat reaches."""

    map: Literal["columns_8x4", "columns_8x8"] = toggle(
        "columns_8x8",
        "Pixels of a warp: 8 x 4, one a thread in blocks of 256, or 8 x 8, two a thread in blocks of 128.",
        step="s06",
        identity="R",
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
    exp: Literal["expf", "ex2"] = toggle(
        "ex2",
        "The falloff by expf, or by the hardware's power of two on a conic scaled beforehand.",
        step="s01e",
        identity="R",
        cpp="Exponential",
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
        "on",
        "The sign of the transmittance says that a pixel is done, instead of a flag of its own.",
        step="s06",
        identity="B",
        needs=(Need("on", "blend", "branchless", ("on",), "it replaces the flag of the branchless loop"),),
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
        identity="B",
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
        identity="B",
        cpp="Reduce",
    )
    accum: Literal["rgb", "projected"] = toggle(
        "projected",
        "Light from behind is carried as three colours, or as one product with the image gradient.",
        step="s01e",
        identity="B",
        cpp="Accumulate",
    )
    bwd_sync: Literal["block", "warp"] = toggle(
        "warp",
        "The block stages splats together with barriers, or each warp stages its own and never waits.",
        step="s06",
        identity="B",
        cpp="Walk",
        needs=(Need("warp", "blend", "cmask", ("on",), "a warp alone must know from the list what it blended"),),
    )
    row_combine: Switch = toggle(
        "on",
        "The moments of a thread's two rows come from one product each.",
        step="s06",
        identity="B",
        needs=(Need("on", "blend", "map", ("columns_8x8",), "only there a thread has two rows"),),
    )
    touched: Switch = toggle(
        "on",
        "The backward pass marks the splats it reached, and the others skip their chain rule.",
        step="s04",
        identity="B",
        needs=(Need("on", "blend", "cmask", ("on",), "it marks what compaction kept"),),
    )


@dataclass(frozen=True)
class ProjectBackwardPolicy:
    """How sums of splats become gradients of their parameters."""

    sh_bwd: Literal["regs", "stream4", "staged"] = toggle(
        "staged",
        "All harmonics of a splat in registers at once, or four rows at a time, or a warp brings its rows to shared "
        "memory and writes their gradients as one run.",
        step="s03",
        identity="B",
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


@dataclass(frozen=True)
class LaunchPolicy:
    """How kernels are started."""

    launch: Literal["direct", "graph"] = toggle(
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
    blend: BlendPolicy = BlendPolicy()
    blend_backward: BlendBackwardPolicy = BlendBackwardPolicy()
    project_backward: ProjectBackwardPolicy = ProjectBackwardPolicy()
    launch: LaunchPolicy = LaunchPolicy()

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


def toggle_table(backend: str = "cpu") -> Iterator[Toggle]:
    """The toggles that a backend honours, stage by stage, in the order they are declared."""
    return (row for row in _rows() if backend in row.backends)


@cache
def _rows() -> tuple[Toggle, ...]:
    rows = []
    for stage in fields(Policy):
        policy = getattr(Policy(), stage.name)
        hints = get_type_hints(type(policy))
        for f in fields(policy):
            rows.append(Toggle(stage.name, f.name, get_args(hints[f.name]), getattr(policy, f.name), **f.metadata))
    return tuple(rows)
