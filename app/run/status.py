"""Which part of its schedules a run is in, from its settings and what it has told: nothing is measured."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from splatscope.training import events
from splatscope.training.config import BudgetConfig, DensifyConfig, McmcConfig, StrategyName, TrainConfig
from splatscope.viewer.messages.run import Phase, Refined

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.training.trainer import Trainer


def phase_of(trainer: Trainer, prepared: events.Prepared | None, refined: Refined | None) -> Phase:
    """Returns the phase of a run, begun or not."""
    config, divisor = trainer.config, trainer.divisor
    width, height = (prepared.width, prepared.height) if prepared else (0, 0)
    due = refines(config)
    at = trainer.iteration + (refined is not None and refined.iteration == trainer.iteration)
    return Phase(
        sh_degree=trainer.sh_degree,
        sh_highest=config.sh_degree,
        width=round(width / divisor),
        height=round(height / divisor),
        divisor=divisor,
        refined=refined,
        next_refine=due[bisect_left(due, at)] if due and at <= due[-1] else 0,
        last_refine=due[-1] if due else 0,
        seconds=sum(trainer.seconds.values()),
    )


def refines(config: TrainConfig) -> range:
    """The iterations after which density control adds, moves and removes splats: those of its strategy, as far as a
    step follows."""
    groups: dict[StrategyName, DensifyConfig | McmcConfig | BudgetConfig]
    groups = {"adaptive": config.densify, "mcmc": config.mcmc, "budget": config.budget}
    c = groups[config.strategy]
    if not config.densify.enabled:
        return range(0)
    first = (c.start // c.interval + 1) * c.interval
    end = c.stop + 1 if config.strategy == "budget" else c.stop
    return range(first, min(end, config.iterations), c.interval)


def refined(event: events.Densified) -> Refined:
    """What the window shows of it."""
    return Refined(event.iteration, event.cloned, event.split, event.pruned, event.moved)
