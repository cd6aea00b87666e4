"""3D Gaussian splatting as Markov chain Monte Carlo (Kheradmand et al. 2024): a budget of splats that moves.

Nothing is split or reset. Splats that became transparent jump onto opaque ones, which share their opacity and
extent so that the picture hardly changes; the count grows by a few percent until the cap; and every step ends with a
random step of each mean, large where a splat is faint. The penalties that make splats faint and small are
`TrainConfig.opacity_penalty` and `scale_penalty`. Read `splats/rows.py` for the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from splatscope.kernels.noise import Noise
from splatscope.kernels.types import Camera, Gradients
from splatscope.training.config import McmcConfig, RateConfig
from splatscope.training.data.dataset import Color, Photograph
from splatscope.training.events import Densified
from splatscope.training.splats import rows
from splatscope.training.splats.optimizer import mean_rate
from splatscope.training.splats.rows import SplatState
from splatscope.training.strategies.budget import budget_for


class Mcmc:
    """The policy. It keeps no statistics: opacities decide everything."""

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
        """Nothing of a step is needed."""

    @property
    def absolute(self) -> bool:
        return False

    def gathers(self, iteration: int) -> bool:
        return False

    @property
    def pulls(self) -> None:
        return None

    def noise(self, iteration: int, seed: int) -> Noise | None:
        """As large as the rate of the means, to the end of the run."""
        c = self._config
        amount = c.noise * mean_rate(self._rates, iteration) * self._extent
        return Noise(amount, c.dead_opacity, c.noise_steepness, seed, iteration) if amount > 0 else None

    def stop_growing(self, count: int) -> None:
        """Relocation goes on, with so many splats."""
        self._config = replace(self._config, max_splats=count)

    @property
    def most(self) -> int | None:
        return self._config.max_splats

    def due(self, iteration: int) -> bool:
        """Whether splats are relocated and added."""
        c = self._config
        return c.start < iteration < c.stop and iteration % c.interval == 0

    def forget(self, count: int) -> None:
        """There is nothing to forget."""

    def statistics(self) -> dict[str, Tensor]:
        return {}

    def restore(self, statistics: dict[str, Tensor]) -> None:
        """There is nothing to restore."""

    def after_step(
        self, state: SplatState, iteration: int, random: torch.Generator
    ) -> tuple[SplatState, Densified | None]:
        """The state after what is due at this iteration, and what was done."""
        if not self.due(iteration):
            return state, None
        state, moved = self._relocate(state, random)
        state, added = self._grow(state, random)
        return state, Densified(iteration, added, 0, 0, state.count, moved)

    def _relocate(self, state: SplatState, random: torch.Generator) -> tuple[SplatState, int]:
        """Dead splats onto places drawn among the living by opacity. Both keep their momentum, unless those that live
        there are to lose it; numbers that are not finite leave none."""
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
        """New splats on places drawn by opacity; only the new ones begin without momentum."""
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
        """The splats at `places`, with opacity and extent shared among the original and its copies."""
        copies = 1 + torch.bincount(places, minlength=state.count).clamp(max=self._config.most_copies - 1)
        shared = rows.shared_opacity(state.raw, copies, self._config.dead_opacity)
        return shared.map(lambda tensor: tensor[places])
