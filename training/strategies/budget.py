"""Grows along a budget: the count rises linearly to a given number, with new splats where the pull is strongest.

After Taming 3DGS (Mallick et al. 2024) and LiteGS:
- No threshold decides, but a draw weighted by the pull.
- A small parent gains a copy; a large one gains a shrunken child, or is split.
- Opacities can be halved now and then, so that splats that are not needed fade and are pruned.
- Without a given number, the photographs give it (`pixel_budget.py`).
Read `splats/rows.py` for the row operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from splatscope.training.config import BudgetConfig, TrainConfig
from splatscope.training.data.dataset import Color, Photograph
from splatscope.training.events import Densified
from splatscope.training.splats import rows
from splatscope.training.splats.rows import SplatState
from splatscope.training.strategies.base import PullStatistics, Removals
from splatscope.training.strategies.pixel_budget import budget_for


class BudgetedGrowth(PullStatistics):
    """Grows along a budget; keeps the pulls since the last refine, the count it began with, and the budget."""

    removals: ClassVar[Removals | None] = Removals(
        smallest_opacity="budget.smallest_opacity",
        fading={
            "budget.smallest_opacity": 1,
            "budget.halving_interval": -1,
            "budget.halvings": 1,
            "budget.halving_floor": -1,
            "opacity_penalty": 1,
            "initial.opacity": -1,
            "rates.opacity": 1,
        },
    )

    @classmethod
    def of_run(cls, config: TrainConfig, count: int, extent: float, white_background: bool) -> BudgetedGrowth:
        return cls(config.budget, count, extent)

    def __init__(self, config: BudgetConfig, count: int, extent: float) -> None:
        super().__init__(count)
        self._config = config
        self._extent = extent
        self._first_count = count
        self._budget = config.max_splats or 0  # splats; 0: not known yet

    def aim(self, photographs: Sequence[Photograph], background: Color) -> None:
        """Takes the budget from the training views, unless settings or an earlier part of the run give one."""
        if self._budget == 0:
            self._budget = budget_for(photographs, background, self._config.splats_per_pixel)

    def statistics(self) -> dict[str, torch.Tensor]:
        own = {"first_count": torch.tensor(self._first_count), "budget": torch.tensor(self._budget)}
        return {**super().statistics(), **own}

    def restore(self, statistics: dict[str, torch.Tensor]) -> None:
        super().restore(statistics)
        self._first_count = int(statistics["first_count"])
        self._budget = self._config.max_splats or int(statistics["budget"])

    def stop_growing(self, count: int) -> None:
        """Makes `count` the budget if it is less."""
        self._budget = min(self._budget, count)

    @property
    def most(self) -> int | None:
        return self._budget or None

    def due(self, iteration: int) -> bool:
        """Returns True if a refine or a halving may be due."""
        c = self._config
        halves = c.halving_interval > 0 and iteration % c.halving_interval == 0
        return iteration in c.refines() or (halves and c.start < iteration <= c.stop)

    def after_step(
        self, state: SplatState, iteration: int, random: torch.Generator
    ) -> tuple[SplatState, Densified | None]:
        """Returns the state after what is due at this iteration, and a report."""
        c = self._config
        if not c.start < iteration <= c.stop:
            return state, None
        report = None
        if iteration in c.refines():
            state, report = self._refine(state, iteration, random)
        if c.halving_interval and iteration % c.halving_interval == 0 and self._halvings(iteration) <= c.halvings:
            state = rows.halve_opacity(state, c.halving_floor)
        return state, report

    def allowed(self, iteration: int) -> int:
        """Returns the splats allowed after the refine at `iteration`; the last refine reaches the budget."""
        c = self._config
        last = c.stop - c.stop % c.interval
        share = min(1.0, (iteration - c.start) / max(last - c.start, 1))
        return round(self._first_count + share * max(self._budget - self._first_count, 0))

    def _halvings(self, iteration: int) -> int:
        """Returns the number of halvings due up to and at `iteration`."""
        return iteration // self._config.halving_interval - self._config.start // self._config.halving_interval

    def _refine(self, state: SplatState, iteration: int, random: torch.Generator) -> tuple[SplatState, Densified]:
        c = self._config
        kept = (torch.sigmoid(state.raw.logit_opacities) >= c.smallest_opacity) & rows.finite_rows(state.raw)
        weights = torch.where(kept, self.mean(), 0).nan_to_num(0, 0, 0)
        room = self.allowed(iteration) - int(kept.sum())
        chosen = rows.draw_without_replacement(weights, max(room, 0), random)
        large = rows.largest_scale(state.raw) > c.dense_share * self._extent
        to_copy, to_split = chosen & ~large, chosen & large
        copied, split = int(to_copy.sum()), int(to_split.sum())
        noise = torch.randn((2 if c.split else 1, split, 3), generator=random, device=random.device)
        children = rows.split_children(state.raw, to_split, noise, c.child_shrink)
        pruned = state.count - int(kept.sum())
        kept &= ~(to_split & c.split)
        state = rows.replace_rows(state, kept, rows.joined(rows.select(state.raw, to_copy), children))
        self.forget(state.count)
        return state, Densified(iteration, copied, split, pruned, state.count)
