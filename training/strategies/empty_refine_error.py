"""Explains a refine that would leave no splat: by which rule, because of which settings, with what remedy.

Such a refine is not carried out. The state before it is saved, and the remedy lets a run continue from it.
Each strategy names its rules in `removals`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from splatscope.kernels.wording import counted
from splatscope.training.config import TrainConfig
from splatscope.training.errors import NoSplatsLeftError
from splatscope.training.splats import rows
from splatscope.training.splats.rows import SplatTensors
from splatscope.training.strategies.factory import STRATEGIES

_KEPT = 0.75  # share of the splats that each value of a remedy spares
_USUAL = TrainConfig()


def no_splats_left(raw: SplatTensors, config: TrainConfig, iteration: int, extent: float) -> NoSplatsLeftError:
    """Returns the error about a refine that would leave none of `raw`, the splats before it.

    `extent` is that of the scene in world units.
    """
    rules = STRATEGIES[config.strategy].removals
    finite = rows.finite_rows(raw)
    reasons, suspects, remedy = [], {}, []
    faint = torch.zeros_like(finite)
    if rules is not None:
        opacities, least = torch.sigmoid(raw.logit_opacities), _value(config, rules.smallest_opacity)
        faint = finite & (opacities < least)
        if count := int(faint.sum()):
            reasons.append(f"{count:,} {_are(count)} fainter than {rules.smallest_opacity} = {least:g}")
            suspects |= _unusual(config, rules.fading)
            spared = min(_quantile(opacities[finite], 1 - _KEPT) / 2, _value(_USUAL, rules.smallest_opacity))
            if spared < least:  # else the other rule is what leaves none
                remedy.append(f"{rules.smallest_opacity}={spared:.1g}")
    if rules is not None and rules.large_share and iteration > _value(config, rules.large_after):
        sizes, most = rows.largest_scale(raw) / extent, _value(config, rules.large_share)
        if count := int((finite & ~faint & (sizes > most)).sum()):
            reasons.append(f"{count:,} {_are(count)} larger than {rules.large_share} = {most:g} of the scene")
            suspects |= _unusual(config, rules.swelling)
            spared = max(2 * _quantile(sizes[finite], _KEPT), _value(_USUAL, rules.large_share))
            remedy.append(f"{rules.large_share}={min(spared, 1e9):.1g}")
    if count := raw.count - int(finite.sum()):
        reasons.append(f"{count:,} {'has' if count == 1 else 'have'} a number that is not finite")
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


def _unusual(config: TrainConfig, directions: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    """Returns value and usual value of the settings that differ in the harmful direction.

    An interval of 0 means never, so it does no harm by being below its usual value.
    """
    pairs = {name: (_value(config, name), _value(_USUAL, name)) for name in directions}
    return {
        name: (value, usual)
        for name, (value, usual) in pairs.items()
        if directions[name] * (value - usual) > 0 and not (name.endswith("_interval") and value == 0)
    }


def _quantile(values: Tensor, share: float) -> float:
    """Returns the value that the given share of `values` [N] lies below; torch.quantile takes at most 2^24 values."""
    return values.kthvalue(max(1, round(share * len(values)))).values.item()


def _value(config: Any, name: str) -> float:
    for part in name.split("."):
        config = getattr(config, part)
    return float(config)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
