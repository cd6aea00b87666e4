"""Defines what a toggle declares: values, a sentence, an identity class, and what it needs. `policy.py` lists them.

The identity class tells how pictures and gradients compare with those of the default value:

- B: the same bits.
- B/R: the same picture bit for bit; gradients differ by rounding.
- R: picture and gradients differ by rounding.
- Q: the picture changes within a stated tolerance.

Gradients are sums in single precision, whose order varies from run to run. "The same bits" is therefore tested with
sums of integers (blend_backward.reduce = deterministic).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from splatscope.kernels.primitive import PRIMITIVES, Primitive

Identity = Literal["B", "B/R", "R", "Q"]
Switch = Literal["off", "on"]
CPU_AND_CUDA, CUDA = ("cpu", "cuda"), ("cuda",)
_CLASSES = {
    "B": "B: the same picture bit for bit.",
    "B/R": "B/R: the same picture bit for bit; gradients differ by rounding.",
    "R": "R: the picture differs by rounding only.",
}

# Earlier names, still found in benchmark results and command lines -> present names.
RENAMED = {"sort.sort": "sort.scheme", "launch.launch": "launch.mode", "schedule.policy": "schedule.cost_model"}
RENAMED_VALUES = {("schedule.chunk", "policy"): "modelled"}  # (toggle, earlier value) -> present value
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
    """Limits how far a toggle of class Q may change the picture from the default's."""

    difference: float | None = None  # largest change of a pixel, as a share of the brightest colour of any splat
    decibels: float | None = None  # largest change of the PSNR of a picture against its photograph

    @property
    def sentence(self) -> str:
        """Returns the tolerance as a sentence for the window."""
        if self.difference is not None:
            return f"Q: the picture changes, by at most {self.difference:.0%} of its brightest colour."
        if self.decibels is not None:
            return f"Q: the picture changes, its PSNR by at most {self.decibels:g} dB."
        return "Q: another picture."


ANOTHER_PICTURE = Tolerance()


@dataclass(frozen=True)
class Need:
    """States that a value of a toggle works only while another toggle has one of the `allowed` values."""

    value: str
    stage: str
    name: str
    allowed: tuple[str, ...]
    reason: str  # completes "blend.cmask = on needs blend.compaction = on: …"

    def sentence(self, owner: str) -> str:
        """Returns the sentence that tells what to set first; `owner` is the toggle, as stage.name."""
        allowed = " or ".join(self.allowed)
        return (
            f"{owner} = {self.value} needs {self.stage}.{self.name} = {allowed}: {self.reason}; "
            f"set {self.stage}.{self.name} to {allowed} first."
        )


@dataclass(frozen=True)
class Toggle:
    """Holds one toggle: its place in the policy, and its declaration."""

    stage: str  # field of Policy
    name: str  # field of the stage's policy
    values: tuple[str, ...]  # the first is the 2023 rasteriser's (ladder.py)
    default: str
    sentence: str
    step: str  # name of the ladder's rung that introduced the toggle, "own" or "ablation"
    identity: Identity
    tolerance: Tolerance | None  # for class Q
    backends: tuple[str, ...]
    needs: tuple[Need, ...]
    primitives: tuple[Primitive, ...]  # kinds of splats for which the values differ
    cpp: str | None  # C++ type of the field; None where Python alone acts on it

    @property
    def key(self) -> str:
        """Returns stage and name, as "blend.subtile"."""
        return f"{self.stage}.{self.name}"

    @property
    def class_sentence(self) -> str:
        """Returns a sentence that explains the toggle's identity class."""
        return _CLASSES[self.identity] if self.tolerance is None else self.tolerance.sentence

    @property
    def is_switch(self) -> bool:
        """Returns True if the values are off and on: the window shows a checkbox."""
        return self.values == get_args(Switch)

    @property
    def is_ablation(self) -> bool:
        """Returns True if only benchmarks set the toggle: it makes results wrong, and no table lists it."""
        return self.step == "ablation"

    def idle(self, primitive: Primitive) -> str:
        """Returns a sentence if all values mean the same for a primitive; empty otherwise."""
        if primitive in self.primitives:
            return ""
        return f"{self.key} means nothing for {primitive} splats, only for {' and '.join(self.primitives)}."

    def spelled(self, value: str) -> str:
        """Returns the value as C++ spells it: true, Subtile::ellipse."""
        return {"off": "false", "on": "true"}[value] if self.cpp == "bool" else f"{self.cpp}::{value}"


def toggle(
    default: str,
    sentence: str,
    step: str,
    identity: Literal["B", "B/R", "R"] | Tolerance,
    cpp: str | None = "bool",
    needs: tuple[Need, ...] = (),
    backends: tuple[str, ...] = CUDA,
    primitives: tuple[Primitive, ...] = PRIMITIVES,
) -> Any:
    """Declares a policy field. A `Tolerance` as `identity` means class Q."""
    is_stated = isinstance(identity, Tolerance)
    row = {"sentence": sentence, "step": step, "cpp": cpp, "needs": needs, "backends": backends}
    row |= {"primitives": primitives}
    row |= {"identity": "Q" if is_stated else identity, "tolerance": identity if is_stated else None}
    return field(default=default, metadata=row)
