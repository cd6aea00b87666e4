"""Declares the settings of each strategy, with what all of them say: when splats change, and how many there may be.

`config.py` holds these groups; the strategies themselves are in `strategies/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from splatscope.training.setting import Option, setting

_MAX_SPLATS = Option(
    "max_splats",
    "INT",
    more="Splats that a run begins with stay. Unless given: inria, inria2023 and absgrad have no limit; mcmc has a "
    "million; fast and fast_mcmc have as many as the photographs' pixels ask for, at most a million. "
    "fast reaches the number by the middle of a run. mcmc adds a twentieth and fast_mcmc a tenth every 100 iterations, "
    "so a run that is short or begins with few splats may end below it.",
)
_WARM_UP = Option(
    "warmup_length", "INT", more="Unless given: 500; fast and fast_mcmc: 2 to 3% of the length of the run."
)


MOST_BY_PIXELS = 1_000_000  # splats that photographs may ask for; max_splats may be more


def splats_for(pixels: float, splats_per_pixel: float) -> int:
    """Returns the number of splats for a mean photograph with `pixels` covered pixels."""
    return min(round(splats_per_pixel * pixels), MOST_BY_PIXELS)


class StrategySettings:
    """Says for a strategy when it refines and how far it grows; the base of each strategy's group of settings."""

    start: int
    stop: int
    interval: int
    max_splats: int | None
    refines_at_stop: ClassVar[bool] = False

    def refines(self) -> range:
        """Returns the iterations after which splats are added, moved and removed."""
        return range((self.start // self.interval + 1) * self.interval, self.stop + self.refines_at_stop, self.interval)

    def most_splats(self, pixels: float) -> int | None:
        """Returns the splats at which growth ends if every photograph shows something in `pixels` pixels.

        None if no number ends growth.
        """
        return self.max_splats


class PixelBudget(StrategySettings):
    """Takes the number of splats from the photographs unless `max_splats` gives it."""

    splats_per_pixel: float

    def most_splats(self, pixels: float) -> int | None:
        return splats_for(pixels, self.splats_per_pixel) if self.max_splats is None else self.max_splats


@dataclass(frozen=True)
class DensifyConfig(StrategySettings):
    """Sets up the strategy `adaptive`, which adds splats where steps pull (Kerbl, Kopanas et al. 2023, section 5.2)."""

    enabled: bool = setting(
        True,
        "Adds and removes splats while training; off keeps their number, whatever the strategy.",
        label="Densify",
        for_all=True,
    )
    start: int = setting(500, "Iterations before the first splat is added or removed.", 0, option=_WARM_UP)
    stop: int = setting(15_000, "Refines come before this iteration; statistics are gathered from the first step.", 0)
    interval: int = setting(100, "Iterations between refines.", 1)
    gradient_threshold: float = setting(
        2e-4, "Mean gradient of projected positions, in NDC, that clones or splits a splat.", 0
    )
    absgrad: bool = setting(False, "Sums absolute gradients of pixels; these need a threshold of about 8e-4.")
    dense_share: float = setting(0.01, "Share of the extent: smaller splats are cloned, larger ones are split.", 0)
    split_count: int = setting(2, "Number of children that replace a split splat.", 1, 16)
    split_shrink: float = setting(1.6, "Number that the sizes of children are divided by.", 0.01, 100)
    smallest_opacity: float = setting(0.005, "Opacity below which a splat is pruned.", 0, 1)
    large_share: float = setting(
        0.1, "Share of the extent above which splats are pruned, after the first opacity reset.", 0
    )
    reset_interval: int = setting(
        3_000, "Iterations between opacity resets; over white there is also one at densify.start.", 1
    )
    reset_opacity: float = setting(0.01, "Opacity that a reset lowers all splats to.", 1e-4, 0.99)
    max_splats: int | None = setting(
        None,
        "Number of splats at which growth ends; strongest gradients grow first; none: no limit.",
        1,
        main=5,
        option=_MAX_SPLATS,
    )


@dataclass(frozen=True)
class McmcConfig(PixelBudget):
    """Sets up the strategy `mcmc`, which moves splats and grows to a budget (Kheradmand et al. 2024)."""

    start: int = setting(500, "Iterations before the first splat is moved or added.", 0, option=_WARM_UP)
    stop: int = setting(25_000, "Splats are moved and added before this iteration.", 0)
    interval: int = setting(100, "Iterations between refines.", 1)
    max_splats: int | None = setting(
        1_000_000,
        "Splats to grow to; none: from splats_per_pixel, at most a million.",
        1,
        main=6,
        option=_MAX_SPLATS,
    )
    splats_per_pixel: float = setting(
        1.5, "Without max_splats, splats for each pixel that is not background.", 0.001, 1000
    )
    growth: float = setting(0.05, "Share of the splats that each refine adds until max_splats.", 0, 10)
    dead_opacity: float = setting(0.005, "Opacity at or below which splats are moved onto others.", 1e-6, 0.5)
    noise: float = setting(5e5, "Noise added to positions after every step, as a multiple of their rate.", 0, 1e12)
    noise_steepness: float = setting(100.0, "Steepness of the sigmoid that spares opaque splats from noise.", 0, 1e6)
    most_copies: int = setting(51, "Most splats that may share one place in the opacity formula.", 2, 51)
    keeps_momentum: bool = setting(
        True, "Keeps Adam's moments of splats that others move onto; the authors' code does not."
    )


@dataclass(frozen=True)
class BudgetConfig(PixelBudget):
    """Sets up the strategy `budget`, which grows linearly to a number of splats, drawn by pull (after Taming 3DGS and
    LiteGS).

    Opacities can be halved now and then instead of being reset.
    """

    refines_at_stop: ClassVar[bool] = True

    start: int = setting(500, "Iterations before the first splat is added or removed.", 0, option=_WARM_UP)
    stop: int = setting(15_000, "Refines come up to this iteration; the budget is reached at the last one.", 0)
    interval: int = setting(200, "Iterations between refines.", 1)
    max_splats: int | None = setting(
        None,
        "Splats to grow to; none: from splats_per_pixel, at most a million.",
        1,
        main=7,
        option=_MAX_SPLATS,
    )
    splats_per_pixel: float = setting(
        1.5, "Without max_splats, splats for each pixel that is not background.", 0.001, 1000
    )
    dense_share: float = setting(0.01, "Share of the extent: smaller splats are copied, larger ones get children.", 0)
    split: bool = setting(False, "Replaces a large splat by two children; off adds one child next to it.")
    child_shrink: float = setting(1.6, "Number that the sizes of children are divided by.", 0.01, 100)
    smallest_opacity: float = setting(0.005, "Opacity below which a splat is pruned at a refine.", 0, 1)
    halving_interval: int = setting(1_000, "Iterations between halvings of all opacities; 0: never.", 0)
    halvings: int = setting(8, "Most halvings in a run.", 0)
    halving_floor: float = setting(1 / 128, "Opacity below which no splat is halved.", 1e-4, 0.5)
