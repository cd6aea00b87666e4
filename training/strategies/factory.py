"""Makes the strategy that the settings name: one row a strategy."""

from __future__ import annotations

from splatscope.kernels.wording import counted
from splatscope.training.config import StrategyName, TrainConfig
from splatscope.training.strategies.adaptive import AdaptiveDensity
from splatscope.training.strategies.base import Strategy
from splatscope.training.strategies.budget import BudgetedGrowth
from splatscope.training.strategies.mcmc import Mcmc

STRATEGIES: dict[StrategyName, type[Strategy]] = {
    "adaptive": AdaptiveDensity,
    "mcmc": Mcmc,
    "budget": BudgetedGrowth,
}


def make_strategy(config: TrainConfig, count: int, extent: float, white_background: bool) -> Strategy:
    """Makes the strategy that `config` names, for `count` splats in a scene of `extent` world units.

    With densify.enabled off it is the adaptive one, which then leaves all splats alone.
    """
    kind = STRATEGIES[config.strategy] if config.densify.enabled else AdaptiveDensity
    return kind.of_run(config, count, extent, white_background)


def cannot_grow(strategy: Strategy, count: int) -> tuple[str, ...]:
    """Returns a sentence if a run begins with more splats than growth may reach."""
    most = strategy.most
    if most is None or most >= count:
        return ()
    begins = f"The run begins with {counted(count, 'splat')}"
    return (f"{begins}, more than the {most:,} that growth may reach, so none will be added.",)
