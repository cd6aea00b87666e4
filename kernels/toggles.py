"""What a toggle is: a field of a policy with its values, a sentence, an identity class, and what it needs.

Identity classes say what pictures and gradients have in common with those of the default: B the same bits, B/R the
picture the same bits and gradients that differ by rounding, R rounding in both, Q a change within a stated tolerance.
Gradients come of sums in single precision that repeat only but for rounding; bits are those of sums of integers
(blend_backward.reduce = deterministic). The toggles themselves: `policy.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Identity = Literal["B", "B/R", "R", "Q"]
Switch = Literal["off", "on"]
CPU_AND_CUDA, CUDA = ("cpu", "cuda"), ("cuda",)
_CLASSES = {
    "B": "B: the same picture bit for bit.",
    "B/R": "B/R: the same picture bit for bit; gradients differ by rounding.",
    "R": "R: the picture differs by rounding only.",
}

# Names that earlier versions wrote to results of the benchmark and to command lines.
RENAMED = {"sort.sort": "sort.scheme", "launch.launch": "launch.mode", "schedule.policy": "schedule.cost_model"}
RENAMED_VALUES = {("schedule.chunk", "policy"): "modelled"}  # (toggle, its value of before) -> value
_ASSIGNMENT = re.compile(r"\b([a-z_]+\.[a-zA-Z0-9_]+)( ?= ?)(\w+)")


def in_present_names(text: str) -> str:
    """Translates toggles and values of earlier versions: "sort.sort = single64" becomes "sort.scheme = single64".

    Every STAGE.FIELD=VALUE in the text is translated, with or without spaces; all other words stay.
    """
    return _ASSIGNMENT.sub(lambda found: found[2].join(_present(found[1], found[3])), text)


def _present(key: str, value: str) -> tuple[str, str]:
    """Returns a toggle and its value as this version calls them."""
    key = RENAMED.get(key, key)
    return key, RENAMED_VALUES.get((key, value), value)


@dataclass(frozen=True)
class Tolerance:
    """How far another value of a toggle of class Q may take the picture from the default's."""

    difference: float | None = None  # of a pixel, as a share of the brightest colour of a splat
    decibels: float | None = None  # of the PSNR of a picture against its photograph

    @property
    def sentence(self) -> str:
        """For the window."""
        if self.difference is not None:
            return f"Q: the picture changes, by at most {self.difference:.0%} of its brightest colour."
        if self.decibels is not None:
            return f"Q: the picture changes, its PSNR by at most {self.decibels:g} dB."
        return "Q: another picture."


ANOTHER_PICTURE = Tolerance()


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
    values: tuple[str, ...]  # the first is what the 2023 rasteriser has (ladder.py)
    default: str
    sentence: str
    step: str  # seed step that introduced it
    identity: Identity
    tolerance: Tolerance | None  # of class Q
    backends: tuple[str, ...]
    needs: tuple[Need, ...]
    cpp: str | None  # C++ type of the field; None where Python alone acts on it

    @property
    def key(self) -> str:
        """blend.subtile"""
        return f"{self.stage}.{self.name}"

    @property
    def class_sentence(self) -> str:
        """What its identity class says."""
        return _CLASSES[self.identity] if self.tolerance is None else self.tolerance.sentence

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
    identity: Literal["B", "B/R", "R"] | Tolerance,
    cpp: str | None = "bool",
    needs: tuple[Need, ...] = (),
    backends: tuple[str, ...] = CUDA,
) -> Any:
    """Declares a policy field with what the window and the documents say of it; a tolerance stands for class Q."""
    is_stated = isinstance(identity, Tolerance)
    row = {"sentence": sentence, "step": step, "cpp": cpp, "needs": needs, "backends": backends}
    row |= {"identity": "Q" if is_stated else identity, "tolerance": identity if is_stated else None}
    return field(default=default, metadata=row)
