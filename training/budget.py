"""Growth along a budget: the count rises linearly to a given number, new splats where the pull is strongest.

After Taming 3DGS (Mallick et al. 2024) and LiteGS: no threshold decides, a draw weighted by the pull does; the
parent stays where it is and gains a copy (small) or a shrunken child drawn from it (large). Opacities are halved
now and then, so that what is not needed fades and is pruned. Read `ops.py` for the row operations.
"""

from __future__ import annotations

import torch

from splatscope.training import ops
from splatscope.training.config import BudgetConfig
from splatscope.training.events import Densified
from splatscope.training.ops import SplatState
from splatscope.training.strategy import PullStatistics


class BudgetedGrowth(PullStatistics):
    """The policy; its statistics are the pulls since the last refine, and the count it began with."""

    def __init__(self, config: BudgetConfig, count: int, extent: float) -> None:
        super().__init__(count)
        self._config = config
        self._extent = extent
        self._first_count = count

    def statistics(self) -> dict[str, torch.Tensor]:
        return {**super().statistics(), "first_count": torch.tensor(self._first_count)}

    def restore(self, statistics: dict[str, torch.Tensor]) -> None:
        super().restore(statistics)
        self._first_count = int(statistics["first_count"])

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
            state = ops.halve_opacity(state, c.halving_floor)
        return state, report

    def allowed(self, iteration: int) -> int:
        """Splats there may be after the refine at `iteration`; the last refine reaches the budget."""
        c = self._config
        last = c.stop - c.stop % c.interval
        share = min(1.0, (iteration - c.start) / max(last - c.start, 1))
        return round(self._first_count + share * max(c.max_splats - self._first_count, 0))

    def _halvings(self, iteration: int) -> int:
        """How many halvings have been due, with the one at `iteration`."""
        return iteration // self._config.halving_interval - self._config.start // self._config.halving_interval

    def _refine(self, state: SplatState, iteration: int, random: torch.Generator) -> tuple[SplatState, Densified]:
        c = self._config
        kept = (torch.sigmoid(state.raw.logit_opacities) >= c.smallest_opacity) & ops.finite_rows(state.raw)
        weights = torch.where(kept, self.mean(), 0).nan_to_num(0, 0, 0)
        room = self.allowed(iteration) - int(kept.sum())
        chosen = ops.draw_without_replacement(weights, max(room, 0), random)
        large = ops.largest_scale(state.raw) > c.dense_share * self._extent
        to_copy, to_split = chosen & ~large, chosen & large
        copied, split = int(to_copy.sum()), int(to_split.sum())
        noise = torch.randn((1, split, 3), generator=random, device=random.device)
        children = ops.split_children(state.raw, to_split, noise, c.child_shrink)
        pruned = state.count - int(kept.sum())
        state = ops.replace_rows(state, kept, ops.joined(ops.select(state.raw, to_copy), children))
        self.forget(state.count)
        return state, Densified(iteration, copied, split, pruned, state.count)
