"""The ladder's presets as a person chooses among them, and policies in words. No GUI; `panels/toggles.py` shows them.

A backend honours some toggles only, and policies that agree in those are the same to it. A preset says nothing about
the filter: that is the scene's own, or what a person asked for, and stays when a preset is chosen.
"""

from __future__ import annotations

from splatscope.kernels.ladder import STEPS, Rung
from splatscope.kernels.policy import Policy, toggle_table

DEFAULT = "best"
SPELLED_OUT = 2  # toggles that differ from a preset, at most, for a policy to be told as that preset with changes


def presets(backend: str) -> dict[str, Rung]:
    """Steps that differ for this backend, in the ladder's order; of equal ones the first, but always the default."""
    found: dict[tuple[str, ...], Rung] = {}
    for step in STEPS.values():
        values = _values(step.policy, backend)
        if values not in found or step.name == DEFAULT:
            found[values] = step
    return {step.name: step for step in found.values()}


def filtered_as(policy: Policy, other: Policy) -> Policy:
    """A policy with the filter of another one."""
    return policy.with_value("project", "filter", other.project.filter)


def preset_of(policy: Policy, backend: str) -> str | None:
    """The name of the preset that a policy is, under whichever filter."""
    values = _values(policy, backend)
    known = presets(backend).items()
    return next((name for name, step in known if _values(filtered_as(step.policy, policy), backend) == values), None)


def describe(policy: Policy, backend: str) -> str:
    """A preset's name, "best, exp = expf" where little differs from one, else how much does."""
    known = presets(backend)
    near = min(reversed(known), key=lambda name: len(_differences(policy, known[name].policy, backend)))
    changes = _differences(policy, known[near].policy, backend)
    if not changes:
        return near
    if len(changes) > SPELLED_OUT:
        return f"{near} with {len(changes)} changes"
    return ", ".join([near, *_assignments(changes)])


def settle(policy: Policy, backend: str, keep: str) -> tuple[Policy, tuple[str, ...]]:
    """A policy without unmet needs, and which toggles were set for it as "cmask = off".

    Those that need what is not there are set to their first value that works; `keep`, the toggle a person has just
    set, only if nothing else helps.
    """
    changes: dict[str, str] = {}
    for is_last_resort in (False, True):
        # Setting one may leave another without what it needs; each pass settles at least one, for good.
        for _ in range(len(_values(policy, backend))):
            for row in toggle_table(backend):
                value = policy.value(row.stage, row.name)
                if policy.unmet(row, value) is None or (row.key == keep and not is_last_resort):
                    continue
                works = next((v for v in row.values if policy.unmet(row, v) is None), None)
                if works is not None:
                    policy = policy.with_value(row.stage, row.name, works)
                    changes[row.key] = works
    return policy, tuple(_assignments(changes))


def _assignments(changes: dict[str, str]) -> list[str]:
    """["exp = expf"] of {"blend.exp": "expf"}."""
    return [f"{key.partition('.')[2].replace('_', ' ')} = {value}" for key, value in changes.items()]


def _values(policy: Policy, backend: str) -> tuple[str, ...]:
    return tuple(policy.value(row.stage, row.name) for row in toggle_table(backend))


def _differences(policy: Policy, other: Policy, backend: str) -> dict[str, str]:
    """toggle -> value in `policy`, where the two differ."""
    rows = toggle_table(backend)
    values = {row.key: (policy.value(row.stage, row.name), other.value(row.stage, row.name)) for row in rows}
    return {key: mine for key, (mine, theirs) in values.items() if mine != theirs}
