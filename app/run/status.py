"""Tells which phase of its settings a run is in: degree, picture size, refines. Nothing is measured."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from splatscope.training import events
from splatscope.viewer.messages.run import Phase, Refined

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.training.trainer import Trainer


def phase_of(trainer: Trainer, prepared: events.Prepared | None, refined: Refined | None) -> Phase:
    """Returns the phase of a run, begun or not."""
    config, divisor = trainer.config, trainer.divisor
    width, height = (prepared.width, prepared.height) if prepared else (0, 0)
    due = config.refines()
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


def refined(event: events.Densified) -> Refined:
    """Returns what the window shows of a refine."""
    return Refined(event.iteration, event.cloned, event.split, event.pruned, event.moved)
