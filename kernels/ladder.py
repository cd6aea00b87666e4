"""Lists the ladder: rungs, which are named policies that follow the papers, and `best`, the default.

Each rung is the rung before it with some toggles changed. All rungs launch kernels by replaying a graph, so that only
the kernels differ. The toggles are declared in `policy.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy, toggle_table
from splatscope.kernels.toggles import in_present_names


@dataclass(frozen=True)
class Rung:
    """Holds a policy with its name and a sentence about what it changes."""

    name: str
    sentence: str
    policy: Policy


def _baseline() -> dict[str, str]:
    """Returns the toggles of the 2023 rasteriser: the first value of each, so that a new toggle changes no earlier
    rung.

    Some toggles have their default in all rungs: how kernels are launched, which sorter is used, and the shape of
    chunks, which matters only once tiles are split.
    """
    found = {row.key: row.values[0] for row in toggle_table("cuda") if row.stage not in ("launch", "schedule")}
    del found["sort.sorter"]
    return found | {"schedule.sched": "grid", "schedule.chunk": "off"}


_CHANGES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("s00", "As the 2023 rasteriser: square bounds, one 64-bit sort, an atomic for each lane and sum.", _baseline()),
    (
        "s01a",
        "A warp adds up a splat's sums by shuffles, and one thread writes them.",
        {"blend_backward.reduce": "butterfly"},
    ),
    ("s01b", "A splat is listed only in tiles that its 1/255 ellipse meets.", {"bin.bounds": "row_span"}),
    (
        "s01c",
        "A warp skips splats that miss its own pixels, and a projected splat is 48 bytes in one piece.",
        {"blend.subtile": "ellipse", "project.layout": "packed48"},
    ),
    ("s01d", "Splats are sorted by depth once, then pairs by tile alone.", {"sort.scheme": "two_stage"}),
    (
        "s01e",
        "Harmonics of visible splats only and in wide loads, powers of two, one projected accumulator.",
        {
            "project.sh_gate": "visible",
            "project.sh_load": "float4",
            "blend.exp": "ex2",
            "blend_backward.accum": "projected",
        },
    ),
    ("s01", "The literature: s01a to s01e together.", {}),
    ("s02", "Sums are scattered over the threads of a warp, two splats at a time.", {"blend_backward.reduce": "pair"}),
    (
        "s03",
        "The backward pass takes harmonics through twelve registers, and a warp clears gradients together.",
        {"project_backward.sh_bwd": "stream4", "project_backward.zero": "coop"},
    ),
    (
        "s04",
        "The forward pass hands only blended splats to the backward pass.",
        {"blend.compaction": "on", "blend.cmask": "on", "blend_backward.touched": "on"},
    ),
    ("s05", "Splats that miss a pixel are blended with alpha 0, without a branch.", {"blend.branchless": "on"}),
    (
        "s06",
        "Two pixels a thread, each warp walks its list alone, opacity in the exponent, offsets multiplied in late.",
        {
            "blend.map": "columns_8x8",
            "blend.log2_opacity": "on",
            "blend.sign_T": "on",
            "blend_backward.reduce": "deferred_pair",
            "blend_backward.bwd_sync": "warp",
            "blend_backward.row_combine": "on",
        },
    ),
    ("s06_bf16", "s06 with harmonics and their gradients in bfloat16.", {"project.sh_dtype": "bf16"}),
)


def changed(policy: Policy, changes: dict[str, str]) -> Policy:
    """Returns a copy with the toggles in `changes` set, as {"blend.subtile": "off"}, by present or earlier names.

    Raises ValueError for an unknown name or value.
    """
    for key, value in changes.items():
        key, _, value = in_present_names(f"{key}={value}").partition("=")
        stage, _, name = key.partition(".")
        policy = policy.with_value(stage, name, value)
    return policy


def _ladder() -> dict[str, Rung]:
    steps, policy = {}, Policy()
    for name, sentence, changes in _CHANGES:
        policy = changed(policy, changes)
        steps[name] = Rung(name, sentence, policy)
    steps["best"] = Rung("best", "The fastest combination that keeps the picture: the default.", Policy())
    return steps


STEPS = _ladder()


def step(name: str) -> Policy:
    """Returns the policy of a rung by its name. Raises InputError, which lists the rungs, for an unknown name."""
    if name not in STEPS:
        raise InputError(f"There is no step {name!r}; steps are {', '.join(STEPS)}.")
    return STEPS[name].policy
