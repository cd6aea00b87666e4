"""Growth along a budget: the count rises linearly to a given number, new splats where the pull is strongest.

After Taming 3DGS (Mallick et al. 2024) and LiteGS: no threshold decides, a draw weighted by the pull does. A small
parent gains a copy; a large one gains a shrunken child, or is split. Opacities can be halved now and then, so that what
is not needed fades and is pruned. Without a number, the photographs give it: a mean one is to have so many splats for
each pixel that shows something. Read `splats/rows.py` for the row operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from splatscope.training.config import BudgetConfig
from splatscope.training.data.dataset import Color, Photograph, spread
from splatscope.training.events import Densified
from splatscope.training.splats import rows
from splatscope.training.splats.rows import SplatState
from splatscope.training.strategies.base import PullStatistics

LOOKED_AT = 16  # photographs
MOST = 1_000_000  # splats that photographs may ask for; more only if the settings say so


class BudgetedGrowth(PullStatistics):
    """The policy; its statistics are the pulls since the last refine, the count it began with, and its budget."""

    def __init__(self, config: BudgetConfig, count: int, extent: float) -> None:
        super().__init__(count)
        self._config = config
        self._extent = extent
        self._first_count = count
        self._budget = config.max_splats or 0  # 0: not known yet

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
        """Makes that the budget."""
        self._budget = min(self._budget, count)

    @property
    def most(self) -> int | None:
        return self._budget or None

    def due(self, iteration: int) -> bool:
        """Whether a refine or a halving may be due."""
        c = self._config
        halves = c.halving_interval > 0 and iteration % c.halving_interval == 0
        return c.start < iteration <= c.stop and (halves or iteration % c.interval == 0)

    def after_step(
        self, state: SplatState, iteration: int, random: torch.Generator
    ) -> tuple[SplatState, Densified | None]:
        """The state after what is due at this iteration, and what was done."""
        c = self._config
        if not c.start < iteration <= c.stop:
            return state, None
        report = None
        if iteration % c.interval == 0:
            state, report = self._refine(state, iteration, random)
        if c.halving_interval and iteration % c.halving_interval == 0 and self._halvings(iteration) <= c.halvings:
            state = rows.halve_opacity(state, c.halving_floor)
        return state, report

    def allowed(self, iteration: int) -> int:
        """Splats there may be after the refine at `iteration`; the last refine reaches the budget."""
        c = self._config
        last = c.stop - c.stop % c.interval
        share = min(1.0, (iteration - c.start) / max(last - c.start, 1))
        return round(self._first_count + share * max(self._budget - self._first_count, 0))

    def _halvings(self, iteration: int) -> int:
        """How many halvings have been due, with the one at `iteration`."""
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


def budget_for(photographs: Sequence[Photograph], background: Color, splats_per_pixel: float) -> int:
    """As many splats for each pixel of a mean photograph that shows something."""
    return min(max(round(splats_per_pixel * covered_pixels(photographs, background)), 1), MOST)


def covered_pixels(photographs: Sequence[Photograph], background: Color) -> float:
    """Pixels of a mean photograph that show something else than the background it was cut out over."""
    behind = np.round(np.array(background) * 255).astype(np.uint8)
    views = spread(list(photographs), LOOKED_AT)
    shown = [(v.pixels != behind).any(axis=2) if v.coverage is None else v.coverage > 0 for v in views]
    return float(np.mean([pixels.sum() for pixels in shown]))
