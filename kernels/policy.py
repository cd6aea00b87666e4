"""Every run-time toggle, one frozen dataclass a stage.

A toggle is one field: its values, one sentence, the seed step it comes from, what it needs, and its
identity class against the default: B bit-identical image, R rounding only, Q small stated change. The
window, the command line, the benchmark and the tests all iterate over `toggle_table()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args, get_type_hints


@dataclass(frozen=True)
class Toggle:
    """One row of the table: where the field lives and what it says about itself."""

    stage: str  # field of Policy
    name: str  # field of the stage's policy
    values: tuple[str, ...]
    default: str
    sentence: str
    step: str  # seed step that introduced it
    identity: Literal["B", "R", "Q"]


def toggle(default: str, sentence: str, step: str, identity: Literal["B", "R", "Q"]) -> Any:
    """Declares a policy field with what the window and the documents say of it."""
    return field(default=default, metadata={"sentence": sentence, "step": step, "identity": identity})


@dataclass(frozen=True)
class BinPolicy:
    """Which tiles a splat is listed in."""

    bounds: Literal["row_span", "aabb_o", "circle3s"] = toggle(
        "row_span",
        "Tiles a splat is listed in: row_span solves the 1/255 ellipse per tile row, aabb_o takes its bounding box, "
        "circle3s the square around three standard deviations (2023).",
        step="s01b",
        identity="Q",
    )


@dataclass(frozen=True)
class Policy:
    """All toggles of one render; equality is the redraw test."""

    bin: BinPolicy = BinPolicy()

    def with_value(self, stage: str, name: str, value: str) -> Policy:
        """A copy with one toggle set. Raises ValueError naming the allowed values."""
        row = next((t for t in toggle_table() if (t.stage, t.name) == (stage, name)), None)
        if row is None:
            raise ValueError(
                f"There is no toggle {stage}.{name}; toggles are {[f'{t.stage}.{t.name}' for t in toggle_table()]}."
            )
        if value not in row.values:
            raise ValueError(f"{stage}.{name} must be one of {', '.join(row.values)}, got {value!r}.")
        return replace(self, **{stage: replace(getattr(self, stage), **{name: value})})


def toggle_table() -> Iterator[Toggle]:
    """All toggles, stage by stage, in the order they are declared."""
    for stage in fields(Policy):
        policy = getattr(Policy(), stage.name)
        hints = get_type_hints(type(policy))
        for f in fields(policy):
            yield Toggle(stage.name, f.name, get_args(hints[f.name]), getattr(policy, f.name), **f.metadata)
