"""Makes the strategy that the settings name."""

from __future__ import annotations

from splatscope.kernels.wording import counted
from splatscope.training.config import TrainConfig
from splatscope.training.strategies.base import Strategy


def cannot_grow(strategy: Strategy, count: int) -> tuple[str, ...]:
    """A sentence if a run begins with more splats than growth is to end with."""
    most = strategy.most
    if most is None or most >= count:
        return ()
    begins = f"The run begins with {counted(count, 'splat')}"
    return (f"{begins}, more than the {most:,} that growth may reach, so none will be added.",)


def make_strategy(config: TrainConfig, count: int, extent: float, white_background: bool) -> Strategy:
    """The strategy that `config` names, for `count` splats in a scene of that extent (world units)."""
    from splatscope.training.strategies.adaptive import AdaptiveDensity
    from splatscope.training.strategies.budget import BudgetedGrowth
    from splatscope.training.strategies.mcmc import Mcmc

    if config.strategy == "mcmc" and config.densify.enabled:
        return Mcmc(config.mcmc, config.rates, extent)
    if config.strategy == "budget" and config.densify.enabled:
        return BudgetedGrowth(config.budget, count, extent)
    return AdaptiveDensity(config.densify, count, extent, white_background)
