"""The ladder: each step of the seeds as one policy, and `best`, the default. A table, not files.

A step is the one before it and what it changes. `launch` is no step: all of them replay a graph, so that what differs
is the kernels. Fields: `policy.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy, toggle_table
from splatscope.kernels.toggles import in_present_names


@dataclass(frozen=True)
class Rung:
    """A named policy."""

    name: str
    sentence: str
    policy: Policy


def _baseline() -> dict[str, str]:
    """What the 2023 rasteriser has: the first value of each toggle, so that a new one is in no step before its own.

    As by default in all steps: how kernels are launched, the sort that no host waits for, and what chunks of tiles are
    like, which means nothing before there are any.
    """
    found = {row.key: row.values[0] for row in toggle_table("cuda") if row.stage not in ("launch", "schedule")}
    del found["sort.sorter"]
    return found | {"schedule.sched": "grid", "schedule.chunk": "off"}


_CHANGES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("s00", "As the 2023 rasteriser: square bounds, one 64-bit sort, an atomic for each lane and sum.", _baseline()),
    (
        "s01a",
        "A warp adds a splat's sums by shuffles, and one lane writes them.",
        {"blend_backward.reduce": "butterfly"},
    ),
    ("s01b", "A splat is listed only in tiles that its 1/255 ellipse meets.", {"bin.bounds": "row_span"}),
    (
        "s01c",
        "A warp skips splats that do not meet its own pixels, and a splat is 48 bytes in one piece.",
        {"blend.subtile": "ellipse", "project.layout": "packed48"},
    ),
    ("s01d", "Depth is sorted once a splat, then pairs by tile alone.", {"sort.scheme": "two_stage"}),
    (
        "s01e",
        "Harmonics for the visible only and in wide loads, powers of two, one projected accumulator.",
        {
            "project.sh_gate": "visible",
            "project.sh_load": "float4",
            "blend.exp": "ex2",
            "blend_backward.accum": "projected",
        },
    ),
    ("s01", "The literature: s01a to s01e together.", {}),
    ("s02", "Sums are scattered over lanes, two splats at a time.", {"blend_backward.reduce": "pair"}),
    (
        "s03",
        "Harmonics stream through twelve registers backward, and a warp clears gradients together.",
        {"project_backward.sh_bwd": "stream4", "project_backward.zero": "coop"},
    ),
    (
        "s04",
        "The forward pass hands the backward pass only what was blended.",
        {"blend.compaction": "on", "blend.cmask": "on", "blend_backward.touched": "on"},
    ),
    ("s05", "No branches where a lane misses.", {"blend.branchless": "on"}),
    (
        "s06",
        "Two pixels a thread, a walk of each warp for itself, opacity in the exponent, offsets multiplied in late.",
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
    """Returns a copy with toggles set, as {"blend.subtile": "off"}, by present or earlier names.

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
    """The policy of a step. Raises InputError naming the steps."""
    if name not in STEPS:
        raise InputError(f"There is no step {name!r}; steps are {', '.join(STEPS)}.")
    return STEPS[name].policy
