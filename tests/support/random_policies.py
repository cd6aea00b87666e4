"""Makes policies one toggle away from a given one, and random policies whose toggles go together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from splatscope.kernels.policy import Policy, Toggle, toggle_table


def mended(policy: Policy, keep: str = "") -> Policy:
    """Returns the nearest policy that goes together: a toggle whose need is not met takes the first value that needs
    nothing.

    The toggle `keep` stays; what it needs is set instead.
    """
    for row in toggle_table("cuda"):
        for need in row.needs:
            wanted = row.key == keep and need.value == policy.value(row.stage, row.name)
            if wanted and policy.value(need.stage, need.name) not in need.allowed:
                policy = mended(policy.with_value(need.stage, need.name, need.allowed[0]), f"{need.stage}.{need.name}")
    while unmet := next((r for r in toggle_table("cuda") if policy.unmet(r, policy.value(r.stage, r.name))), None):
        value = next(v for v in unmet.values if policy.unmet(unmet, v) is None)
        policy = policy.with_value(unmet.stage, unmet.name, value)
    return policy


def with_each_toggle(base: Policy) -> Iterator[tuple[Toggle, str, Policy]]:
    """Yields (toggle, value, policy) for each value of each toggle that `base` does not have, needs and all."""
    for row in toggle_table("cuda"):
        for value in row.values:
            if value != base.value(row.stage, row.name):
                yield row, value, mended(base.with_value(row.stage, row.name, value), row.key)


def changed_policies(keys: tuple[str, ...], backend: str) -> dict[str, Policy]:
    """Returns the default policy with each other value of some toggles that the backend honours, by name."""
    rows = [row for row in toggle_table(backend) if row.key in keys]
    return {
        f"{row.key} = {value}": Policy().with_value(row.stage, row.name, value)
        for row in rows
        for value in row.values
        if value != row.default
    }


def random_policy(random: np.random.Generator) -> Policy:
    """Returns a policy with each toggle at random, mended."""
    policy = Policy()
    for row in toggle_table("cuda"):
        policy = policy.with_value(row.stage, row.name, str(random.choice(row.values)))
    return mended(policy)
