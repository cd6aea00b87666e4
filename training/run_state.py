"""Keeps the state of a run in one place: everything that its steps change, and that its checkpoints hold.

`trainer.py` moves it from iteration to iteration; `files/run_record.py` writes it into a checkpoint and reads it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from splatscope.training.errors import NotFiniteError
from splatscope.training.scores.scorer import Scores
from splatscope.training.splats.rows import SplatState
from splatscope.training.steps.exposure import Exposures
from splatscope.training.steps.protocol import Stepper
from splatscope.training.stopwatch import Stopwatch
from splatscope.training.strategies.base import Strategy


@dataclass(eq=False)
class RunState:
    """Holds one run after `iteration`."""

    splats: SplatState
    strategy: Strategy
    exposures: Exposures
    scores: Scores
    watch: Stopwatch
    rng: np.random.Generator  # draws the first splats, the order of views, and backgrounds
    random: torch.Generator  # the strategy draws from it, on the device of the splats
    iteration: int = 0
    settled: int = 0  # iteration after which density control has done its part
    moments_since: int = 0  # iteration after which Adam's moments were zero
    epoch: list[int] = field(default_factory=list)  # training views still to come in this epoch, last first
    losses: list[float] = field(default_factory=list)  # loss of each iteration after `moments_since`

    def next_view(self, count: int) -> int:
        """Returns the index of the next of `count` training views, in random order, each once an epoch."""
        if not self.epoch:
            self.epoch = self.rng.permutation(count).tolist()
        return self.epoch.pop()

    def settle(self, stepper: Stepper) -> None:
        """Waits until all steps taken are over. Raises NotFiniteError after going back to the iteration it names."""
        with self.going_back():
            stepper.settle(self.strategy)
        self.note_losses(stepper.losses())

    @contextmanager
    def going_back(self) -> Iterator[None]:
        """Goes back to the iteration that a NotFiniteError names, and lets it pass."""
        try:
            yield
        except NotFiniteError as error:
            self.iteration = error.reached
            raise

    def begin_iteration(self, iteration: int, loss: float) -> None:
        """Notes that the step of this iteration was taken. `loss` is a stand-in until its own loss is known."""
        self.iteration = iteration
        del self.losses[iteration - 1 - self.moments_since :]  # losses of steps that had to be taken back
        self.note_losses([(iteration, loss)])

    def note_losses(self, losses: list[tuple[int, float]]) -> None:
        """Notes the loss of iterations. Iterations in between that have none, because their steps were on their way
        when an error came, get the same loss."""
        for iteration, loss in losses:
            place = iteration - 1 - self.moments_since
            self.losses += [loss] * (place + 1 - len(self.losses))
            self.losses[place] = loss
