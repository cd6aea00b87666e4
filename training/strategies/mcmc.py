"""Moves a budget of splats: 3D Gaussian splatting as Markov chain Monte Carlo (Kheradmand et al. 2024).

Nothing is split or reset.
- Splats that became transparent jump onto opaque ones, which share opacity and extent with them, so that the picture
  hardly changes.
- The count grows by a few percent at each refine until the cap.
- Every training step ends with a random move of each mean, large where a splat is faint.
The penalties that make splats faint and small are `TrainConfig.opacity_penalty` and `scale_penalty`. Read
`splats/rows.py` for the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from splatscope.kernels.noise import Noise
from splatscope.kernels.types import Camera, Gradients
from splatscope.training.config import McmcConfig, RateConfig, TrainConfig
from splatscope.training.data.dataset import Color, Photograph
from splatscope.training.events import Densified
from splatscope.training.splats import rows
from splatscope.training.splats.optimizer import mean_rate
from splatscope.training.splats.rows import SplatState
from splatscope.training.strategies.base import Removals
from splatscope.training.strategies.pixel_budget import budget_for


class Mcmc:
    """Moves dead splats and grows. It keeps no statistics: opacities decide everything."""

    removals: ClassVar[Removals | None] = None  # splats are moved, never removed

    @classmethod
    def of_run(cls, config: TrainConfig, count: int, extent: float, white_background: bool) -> Mcmc:
        return cls(config.mcmc, config.rates, extent)

    def __init__(self, config: McmcConfig, rates: RateConfig, extent: float) -> None:
        self._config = config
        self._rates = rates
        self._extent = extent

    def aim(self, photographs: Sequence[Photograph], background: Color) -> None:
        """Takes the cap from the training views, unless settings give one."""
        c = self._config
        if c.max_splats is None:
            self._config = replace(c, max_splats=budget_for(photographs, background, c.splats_per_pixel))

    def observe(self, gradients: Gradients, camera: Camera) -> None:
        """Does nothing: the strategy needs no gradients."""

    @property
    def absolute(self) -> bool:
        return False

    def gathers(self, iteration: int) -> bool:
        return False

    @property
    def pulls(self) -> None:
        return None

    def noise(self, iteration: int, seed: int) -> Noise | None:
        """Returns noise in proportion to the means' rate, to the end of the run."""
        c = self._config
        amount = c.noise * mean_rate(self._rates, iteration) * self._extent
        return Noise(amount, c.dead_opacity, c.noise_steepness, seed, iteration) if amount > 0 else None

    def stop_growing(self, count: int) -> None:
        """Keeps moving splats, of which there are `count` from now on."""
        self._config = replace(self._config, max_splats=count)

    @property
    def most(self) -> int | None:
        return self._config.max_splats

    def due(self, iteration: int) -> bool:
        """Returns True if splats are relocated and added."""
        return iteration in self._config.refines()

    def forget(self, count: int) -> None:
        """Does nothing: there are no statistics."""

    def statistics(self) -> dict[str, Tensor]:
        return {}

    def restore(self, statistics: dict[str, Tensor]) -> None:
        """Does nothing: there are no statistics."""

    def after_step(
        self, state: SplatState, iteration: int, random: torch.Generator
    ) -> tuple[SplatState, Densified | None]:
        """Returns the state after what is due at this iteration, and a report."""
        if not self.due(iteration):
            return state, None
        state, moved = self._relocate(state, random)
        state, added = self._grow(state, random)
        return state, Densified(iteration, added, 0, 0, state.count, moved)

    def _relocate(self, state: SplatState, random: torch.Generator) -> tuple[SplatState, int]:
        """Moves dead splats onto places drawn among the living by opacity; returns the state and how many moved.

        Both keep Adam's moments, unless `keeps_momentum` is off: then the living ones lose theirs. Splats with numbers
        that are not finite lose them in any case.
        """
        opacities, finite = torch.sigmoid(state.raw.logit_opacities), rows.finite_rows(state.raw)
        alive = (opacities > self._config.dead_opacity) & finite
        dead = (~alive).nonzero()[:, 0]
        if len(dead) == 0 or not alive.any():
            return state, 0
        places = rows.draw_with_replacement(torch.where(alive, opacities, 0), len(dead), random)
        shared = self._shared(state, places).map(lambda tensor: tensor.repeat(2, *(1,) * (tensor.ndim - 1)))
        state = rows.written_rows(state, torch.cat((places, dead)), shared, with_momentum=True)
        bare = (~finite).nonzero()[:, 0]
        if not self._config.keeps_momentum:
            bare = torch.cat((places, bare))
        if len(bare):
            state = rows.written_rows(state, bare, state.raw.map(lambda tensor: tensor[bare]), with_momentum=False)
        return state, len(dead)

    def _grow(self, state: SplatState, random: torch.Generator) -> tuple[SplatState, int]:
        """Adds splats on places drawn by opacity; only the new ones begin without Adam's moments."""
        assert self._config.max_splats is not None, "aim comes first"
        added = min(self._config.max_splats, int((1 + self._config.growth) * state.count)) - state.count
        if added <= 0:
            return state, 0
        state = rows.with_room(state, state.count + added)
        places = rows.draw_with_replacement(torch.sigmoid(state.raw.logit_opacities).nan_to_num(0), added, random)
        born = self._shared(state, places)
        state = rows.written_rows(state, places, born, with_momentum=True)
        kept = torch.ones(state.count, dtype=torch.bool, device=places.device)
        return rows.replace_rows(state, kept, born), added

    def _shared(self, state: SplatState, places: Tensor) -> rows.SplatTensors:
        """Returns the splats at `places`, with opacity and extent shared among the original and its copies."""
        copies = 1 + torch.bincount(places, minlength=state.count).clamp(max=self._config.most_copies - 1)
        shared = rows.shared_opacity(state.raw, copies, self._config.dead_opacity)
        return shared.map(lambda tensor: tensor[places])
