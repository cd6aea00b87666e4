"""Makes the named recipes, which are whole sets of training settings, and reads single settings from text.

Each recipe is a change to the defaults of `config.py`, where every setting is declared. Read `strategies/base.py` next.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal

from splatscope.kernels.errors import InputError
from splatscope.training.config import (
    BudgetConfig,
    DensifyConfig,
    ExposureConfig,
    InitialConfig,
    McmcConfig,
    PlateauConfig,
    RateConfig,
    ResolutionConfig,
    TrainConfig,
    config_from_dict,
)
from splatscope.training.setting import shown

FAST_ITERATIONS = 18_000


def _inria(iterations: int | None) -> TrainConfig:
    return replace(TrainConfig(), iterations=iterations or 30_000)


def _inria2023(iterations: int | None) -> TrainConfig:
    return replace(_inria(iterations), rates=RateConfig(opacity=0.05))


def _absgrad(iterations: int | None) -> TrainConfig:
    """Returns the recipe of Ye et al. 2024, with the threshold in wide use."""
    return replace(_inria(iterations), densify=DensifyConfig(absgrad=True, gradient_threshold=8e-4))


def _mcmc(iterations: int | None) -> TrainConfig:
    """Returns the recipe of Kheradmand et al. 2024, with the constants of their code but for `mcmc.keeps_momentum`."""
    return replace(
        _inria(iterations),
        strategy="mcmc",
        opacity_penalty=0.01,
        scale_penalty=0.01,
        initial=InitialConfig(opacity=0.5, scale_factor=0.1),
        rates=RateConfig(opacity=0.05),
        plateau=PlateauConfig(after=25_000),
    )


def _fast(iterations: int | None) -> TrainConfig:
    """Returns a short recipe whose splats grow along a budget in the first half, each chosen one split in two."""
    steps = iterations or FAST_ITERATIONS
    start, stop, interval = (_at(share, steps) for share in (0.02, 0.5, 0.02))
    return replace(
        _quick(steps),
        strategy="budget",
        budget=BudgetConfig(
            start=start, stop=stop, interval=max(100, interval), dense_share=0, split=True, halving_interval=0
        ),
    )


def _fast_mcmc(iterations: int | None) -> TrainConfig:
    """Returns a short recipe with the splats of `mcmc`, as many as in `fast`, growing by a tenth at a time."""
    steps, slow = iterations or FAST_ITERATIONS, _mcmc(None)
    quick = _quick(steps)
    return replace(
        quick,
        strategy="mcmc",
        opacity_penalty=slow.opacity_penalty,
        scale_penalty=slow.scale_penalty,
        initial=replace(slow.initial, carve=quick.initial.carve),
        rates=replace(quick.rates, opacity=slow.rates.opacity),
        mcmc=McmcConfig(start=_at(0.028, steps), stop=_at(0.78, steps), max_splats=None, growth=0.1),
    )


def _quick(steps: int) -> TrainConfig:
    """Returns what the short recipes share; everything scales with the number of steps.

    Pictures reach full resolution at 0.4 of the run, harmonics their full degree at 0.09. Colours have higher rates.
    All rates fall to a tenth in the second half; the means' rate also falls to a tenth over the whole run.
    """
    return TrainConfig(
        iterations=steps,
        sh_interval=_at(0.03, steps),
        save_iterations=(),
        initial=InitialConfig(carve=True),
        rates=RateConfig(
            means_end=1.6e-5, means_steps=steps, late_after=_at(0.5, steps), sh_constant=5e-3, sh_rest_share=0.1
        ),
        resolution=ResolutionConfig(schedule="frequency", until=_at(0.4, steps)),
        exposure=ExposureConfig(delay_steps=_at(1 / 6, steps)),
        plateau=PlateauConfig(after=_at(0.8, steps)),
    )


def _at(share: float, steps: int) -> int:
    return max(1, round(share * steps))


def _disks(iterations: int | None) -> TrainConfig:
    """Returns the recipe of Huang et al. 2024 without its losses of normals and distortion."""
    return replace(_inria2023(iterations), primitive="2dgs", densify=DensifyConfig(smallest_opacity=0.05))


def _rays(iterations: int | None) -> TrainConfig:
    """Returns the adaptive recipe of Wu et al. 2025, with a refine every 300 iterations."""
    return replace(_inria2023(iterations), primitive="3dgut", densify=DensifyConfig(interval=300))


PresetName = Literal["inria", "inria2023", "absgrad", "mcmc", "fast", "fast_mcmc", "2dgs", "3dgut"]
PRESETS: dict[str, Callable[[int | None], TrainConfig]] = {
    "inria": _inria,
    "inria2023": _inria2023,
    "absgrad": _absgrad,
    "mcmc": _mcmc,
    "fast": _fast,
    "fast_mcmc": _fast_mcmc,
    "2dgs": _disks,
    "3dgut": _rays,
}


def preset(name: str, iterations: int | None = None) -> TrainConfig:
    """Returns the named recipe for `iterations`, or for its own number. Raises InputError that lists the names."""
    if name not in PRESETS:
        raise InputError(f"There is no training preset {name!r}; presets are {', '.join(PRESETS)}.")
    return PRESETS[name](iterations)


def schedules_in_words(config: TrainConfig) -> str:
    """Returns a note listing the schedules that finish after the run ends; empty if none do."""
    sizes = config.resolution
    small = sizes.until if sizes.schedule == "frequency" else sizes.num_downscales * sizes.interval
    ends = {
        "growth ends": config.strategy_settings.stop if config.densify.enabled else 0,
        "photographs have their full size": small,
        f"harmonics reach degree {config.sh_degree}": config.sh_degree * config.sh_interval,
        "the rate of the means has fallen": config.rates.means_steps,
        "exposures learn at their full rate": config.exposure.delay_steps if config.exposure.enabled else 0,
    }
    later = [f"{what} at {end:,}" for what, end in ends.items() if end > config.iterations]
    if not later:
        return ""
    words = f"The run ends at iteration {config.iterations:,}, before its schedules do: {', '.join(later)}."
    if max(ends["growth ends"], ends["the rate of the means has fallen"]) <= config.iterations:
        return words  # a recipe that fits any length, with a setting of one's own
    return (
        f"{words} The recipes fast and fast_mcmc fit theirs to the length of a run, the others keep those of 30,000 "
        f"iterations."
    )


def with_settings(config: TrainConfig, assignments: Iterable[str]) -> TrainConfig:
    """Returns `config` changed by texts such as "densify.interval=50".

    Raises InputError for a wrong name or value, and for a name with two values.
    """
    given: dict[str, str] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set takes NAME=VALUE, for example densify.interval=50, got {shown(text)}.")
        if given.setdefault(name.strip(), value) != value:
            raise InputError(f"--set sets {name.strip()} twice, to {given[name.strip()]} and to {value}; give it once.")
        try:
            changes = json.loads(value)
        except (ValueError, RecursionError):
            changes = {"True": True, "False": False, "None": None}.get(value, value)  # a word needs no quotes
        for part in reversed(name.strip().split(".")):
            changes = {part: changes}
        config = config_from_dict(changes, config)
    return config
