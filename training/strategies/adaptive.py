"""Controls density adaptively (Kerbl, Kopanas et al. 2023, section 5.2).

- A splat whose projected mean keeps being pulled is cloned if small and split if large.
- Faint splats are pruned, and, after the first opacity reset, over-large ones too.
- Opacities are lowered now and then, so that only needed splats recover.
The row operations are in `splats/rows.py`. Read `trainer.py` next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from splatscope.training.config import DensifyConfig, TrainConfig
from splatscope.training.events import Densified
from splatscope.training.splats import rows
from splatscope.training.splats.rows import SplatState, SplatTensors
from splatscope.training.strategies.base import PullStatistics, Removals


class AdaptiveDensity(PullStatistics):
    """Clones, splits and prunes; keeps the pulls since the last refine."""

    removals: ClassVar[Removals | None] = Removals(
        smallest_opacity="densify.smallest_opacity",
        fading={
            "densify.smallest_opacity": 1,
            "densify.reset_opacity": -1,
            "densify.reset_interval": -1,
            "opacity_penalty": 1,
            "initial.opacity": -1,
            "rates.opacity": 1,
        },
        large_share="densify.large_share",
        large_after="densify.reset_interval",
        swelling={"densify.large_share": -1, "rates.log_scales": 1, "initial.scale_factor": 1},
    )

    @classmethod
    def of_run(cls, config: TrainConfig, count: int, extent: float, white_background: bool) -> AdaptiveDensity:
        return cls(config.densify, count, extent, white_background)

    def __init__(self, config: DensifyConfig, count: int, extent: float, white_background: bool) -> None:
        super().__init__(count)
        self._config = config
        self._extent = extent
        self._white_background = white_background

    def due(self, iteration: int) -> bool:
        """Returns True if a refine or a reset is due."""
        c = self._config
        return c.enabled and (iteration in c.refines() or self._resets(iteration))

    @property
    def absolute(self) -> bool:
        """Returns True for AbsGrad (Ye et al. 2024), which adds up pulls of pixels that would cancel."""
        return self._config.absgrad and self._config.enabled

    def gathers(self, iteration: int) -> bool:
        """Returns True while refines are to come."""
        return self._config.enabled and iteration < self._config.stop

    def stop_growing(self, count: int) -> None:
        """Lets refines continue with at most `count` splats."""
        self._config = replace(self._config, max_splats=count)

    @property
    def most(self) -> int | None:
        return self._config.max_splats if self._config.enabled else None

    def after_step(
        self, state: SplatState, iteration: int, random: torch.Generator
    ) -> tuple[SplatState, Densified | None]:
        """Returns the state after what is due at this iteration, and a report."""
        c = self._config
        if not c.enabled:
            return state, None
        report = None
        if iteration in c.refines():
            state, report = self._refine(state, iteration, random)
        if self._resets(iteration):
            state = rows.lower_opacity(state, c.reset_opacity)
        return state, report

    def _resets(self, iteration: int) -> bool:
        """Returns True if opacities are lowered after `iteration`."""
        c = self._config
        is_at_start = self._white_background and iteration == c.start
        return 0 < iteration < c.stop and (iteration % c.reset_interval == 0 or is_at_start)

    def _refine(self, state: SplatState, iteration: int, random: torch.Generator) -> tuple[SplatState, Densified]:
        c = self._config
        pulled = self._pulled(state.count)
        large = rows.largest_scale(state.raw) > c.dense_share * self._extent
        to_clone, to_split = pulled & ~large, pulled & large
        cloned, split = int(to_clone.sum()), int(to_split.sum())
        grown = state.count + cloned + split * (c.split_count - 1)
        noise = torch.randn((c.split_count, split, 3), generator=random, device=random.device)
        children = rows.split_children(state.raw, to_split, noise, c.split_shrink)
        children = rows.select(children, self._worth_keeping(children, iteration))
        kept = self._worth_keeping(state.raw, iteration)
        born = rows.joined(rows.select(state.raw, to_clone & kept), children)
        state = rows.replace_rows(state, kept & ~to_split, born)
        self.forget(state.count)
        return state, Densified(iteration, cloned, split, grown - state.count, state.count)

    def _pulled(self, count: int) -> Tensor:
        """Returns the mask [N] of splats whose mean pull reaches the threshold; the strongest if room is short."""
        mean_pull = self.mean()
        mask = mean_pull >= self._config.gradient_threshold
        limit = self._config.max_splats
        added = max(1, self._config.split_count - 1)  # new rows for one pulled splat, at most
        if limit is not None and count + added * int(mask.sum()) > limit:
            room = max(limit - count, 0) // added
            strongest = torch.argsort(mean_pull, descending=True, stable=True)[:room]
            mask = torch.zeros_like(mask)
            mask[strongest] = True
        return mask

    def _worth_keeping(self, raw: SplatTensors, iteration: int) -> Tensor:
        """Returns the mask [N] of splats that are opaque enough, finite and, after the first reset, not too large."""
        c = self._config
        kept = (torch.sigmoid(raw.logit_opacities) >= c.smallest_opacity) & rows.finite_rows(raw)
        if iteration > c.reset_interval:
            kept &= rows.largest_scale(raw) <= c.large_share * self._extent
        return kept
