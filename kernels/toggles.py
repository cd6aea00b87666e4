"""What a toggle is: a field of a policy with its values, a sentence, an identity class, and what it needs.

The toggles themselves: `policy.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Identity = Literal["B", "R", "Q"]
Switch = Literal["off", "on"]
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

    @property
    def is_ablation(self) -> bool:
        """True for what only a benchmark sets: results are wrong, and no table lists it."""
        return self.step == "ablation"

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
