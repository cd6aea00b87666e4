"""Why a refine would leave no splat: which rule removes them, and which settings make it do so.

The refine is not carried out then; the state before it is saved, and the remedy named here lets a run go on from it.
Read `adaptive.py` and `budget.py` for the rules themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from splatscope.kernels.wording import counted
from splatscope.training.config import TrainConfig
from splatscope.training.errors import NoSplatsLeftError
from splatscope.training.splats import rows
from splatscope.training.splats.rows import SplatTensors

_KEPT = 0.75  # share of the splats that each value of a remedy spares
# Settings that make splats fainter or larger the more they are above (1) or below (-1) their usual values.
_FADING = {
    "densify": {
        "densify.smallest_opacity": 1,
        "densify.reset_opacity": -1,
        "densify.reset_interval": -1,
        "opacity_penalty": 1,
        "initial.opacity": -1,
        "rates.opacity": 1,
    },
    "budget": {
        "budget.smallest_opacity": 1,
        "budget.halving_interval": -1,
        "budget.halvings": 1,
        "budget.halving_floor": -1,
        "opacity_penalty": 1,
        "initial.opacity": -1,
        "rates.opacity": 1,
    },
}
_SWELLING = {"densify.large_share": -1, "rates.log_scales": 1, "initial.scale_factor": 1}
_USUAL = TrainConfig()


def no_splats_left(raw: SplatTensors, config: TrainConfig, iteration: int, extent: float) -> NoSplatsLeftError:
    """The error about splats, those before the refine, of which none would be left; `extent` in world units."""
    finite = rows.finite_rows(raw)
    opacities, sizes = torch.sigmoid(raw.logit_opacities), rows.largest_scale(raw) / extent
    group = "budget" if config.strategy == "budget" else "densify"
    least, most = _value(config, f"{group}.smallest_opacity"), config.densify.large_share
    faint = finite & (opacities < least)
    sizes_count = group == "densify" and iteration > config.densify.reset_interval
    large = finite & ~faint & (sizes > most) & sizes_count
    counts = int(faint.sum()), int(large.sum()), raw.count - int(finite.sum())
    reasons, suspects, remedy = [], {}, []
    if counts[0]:
        reasons.append(f"{counts[0]:,} {_are(counts[0])} fainter than {group}.smallest_opacity = {least:g}")
        suspects |= _unusual(config, _FADING[group])
        spared = min(_quantile(opacities[finite], 1 - _KEPT) / 2, _value(_USUAL, f"{group}.smallest_opacity"))
        if spared < least:  # else the other rule is what leaves none
            remedy.append(f"{group}.smallest_opacity={spared:.1g}")
    if counts[1]:
        reasons.append(f"{counts[1]:,} {_are(counts[1])} larger than densify.large_share = {most:g} of the scene")
        suspects |= _unusual(config, _SWELLING)
        spared = max(2 * _quantile(sizes[finite], _KEPT), _value(_USUAL, "densify.large_share"))
        remedy.append(f"densify.large_share={min(spared, 1e9):.1g}")
    if counts[2]:
        reasons.append(f"{counts[2]:,} {'has' if counts[2] == 1 else 'have'} a number that is not finite")
    set_already = {assignment.partition("=")[0] for assignment in remedy}
    remedy += [f"{name}={usual:g}" for name, (_, usual) in suspects.items() if name not in set_already]
    advice = "Check that the photographs show something and that their cameras belong to them."
    if suspects:
        named = (f"{name} = {value:g} (usually {usual:g})" for name, (value, usual) in suspects.items())
        advice = f"What bears on that and is not as usual: {', '.join(named)}."
    sentence = (
        f"Training stopped at iteration {iteration}: a refine would remove every one of {counted(raw.count, 'splat')}, "
        f"so it was not carried out; {' and '.join(reasons)}. {advice}"
    )
    return NoSplatsLeftError(sentence, iteration, tuple(remedy) if int(finite.sum()) else ())


def _unusual(config: TrainConfig, directions: dict[str, int]) -> dict[str, tuple[float, float]]:
    """Value and usual value of the settings that differ in the harmful direction; zero means none where less is more
    often."""
    pairs = {name: (_value(config, name), _value(_USUAL, name)) for name in directions}
    return {
        name: (value, usual)
        for name, (value, usual) in pairs.items()
        if directions[name] * (value - usual) > 0 and not (name.endswith("_interval") and value == 0)
    }


def _quantile(values: Tensor, share: float) -> float:
    """The value [N] that so many lie below; torch's own takes no more than 2^24."""
    return values.kthvalue(max(1, round(share * len(values)))).values.item()


def _value(config: Any, name: str) -> float:
    for part in name.split("."):
        config = getattr(config, part)
    return float(config)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
