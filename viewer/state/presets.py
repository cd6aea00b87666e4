"""Offers the ladder's rungs as presets, describes policies in words, and settles toggles that need others. No GUI.

A backend honours only some toggles; policies that agree in those are the same for it. A preset does not change the
filter: the filter is the scene's own, or the user's choice.
"""

from __future__ import annotations

from splatscope.kernels.ladder import STEPS, Rung
from splatscope.kernels.policy import Policy, toggle_table

DEFAULT = "best"
SPELLED_OUT = 2  # differences from a preset that a name lists, at most


def presets(backend: str) -> dict[str, Rung]:
    """Returns the rungs that differ for this backend, in order; of equal ones, the default or the first."""
    found: dict[tuple[str, ...], Rung] = {}
    for rung in STEPS.values():
        values = _values(rung.policy, backend)
        if values not in found or rung.name == DEFAULT:
            found[values] = rung
    return {rung.name: rung for rung in found.values()}


def with_filter_of(policy: Policy, other: Policy) -> Policy:
    """Returns `policy` with the filter of `other`."""
    return policy.with_value("project", "filter", other.project.filter)


def preset_of(policy: Policy, backend: str) -> str | None:
    """Returns the name of the preset that a policy equals under any filter; None if there is none."""
    values = _values(policy, backend)
    known = presets(backend).items()
    return next((name for name, rung in known if _values(with_filter_of(rung.policy, policy), backend) == values), None)


def describe(policy: Policy, backend: str) -> str:
    """Returns a preset's name, or "best, exp = expf", or "best with 5 changes" for more than SPELLED_OUT."""
    known = presets(backend)
    near = min(reversed(known), key=lambda name: len(_differences(policy, known[name].policy, backend)))
    changes = _differences(policy, known[near].policy, backend)
    if not changes:
        return near
    if len(changes) > SPELLED_OUT:
        return f"{near} with {len(changes)} changes"
    return ", ".join([near, *_assignments(changes)])


def settle(policy: Policy, backend: str, keep: str) -> tuple[Policy, tuple[str, ...]]:
    """Returns a policy without unmet needs, and the toggles set for that as "cmask = off".

    A toggle with an unmet need gets its first value that works. The toggle `keep`, which the user has just set, is
    changed only if nothing else helps.
    """
    changes: dict[str, str] = {}
    for is_last_resort in (False, True):
        # Setting a toggle may break the need of another; each pass settles at least one toggle for good.
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
    """Returns ["exp = expf"] for {"blend.exp": "expf"}."""
    return [f"{key.partition('.')[2].replace('_', ' ')} = {value}" for key, value in changes.items()]


def _values(policy: Policy, backend: str) -> tuple[str, ...]:
    return tuple(policy.value(row.stage, row.name) for row in toggle_table(backend))


def _differences(policy: Policy, other: Policy, backend: str) -> dict[str, str]:
    """Returns toggle -> value in `policy` for all toggles in which the two differ."""
    rows = toggle_table(backend)
    values = {row.key: (policy.value(row.stage, row.name), other.value(row.stage, row.name)) for row in rows}
    return {key: mine for key, (mine, theirs) in values.items() if mine != theirs}
