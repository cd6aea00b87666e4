"""Defines what every strategy offers: it watches the steps, and between them adds, moves and removes splats.

One file each: `adaptive.py` (2023), `mcmc.py`, `budget.py`. The row operations they share are in `splats/rows.py`. To
add one, write a class with these members, a group in `training/strategy_config.py`, and a row in `factory.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from splatscope.kernels.noise import Noise
from splatscope.kernels.types import Camera, Gradients
from splatscope.training.config import TrainConfig
from splatscope.training.data.dataset import Color, Photograph
from splatscope.training.events import Densified
from splatscope.training.splats.rows import SplatState


@dataclass(frozen=True)
class Removals:
    """Names the settings by which refines remove splats, for the error about a refine that would leave none.

    `fading` and `swelling` hold settings that make splats fainter or larger: 1 above their usual value, -1 below it.
    """

    smallest_opacity: str  # setting below which a splat is too faint
    fading: Mapping[str, int]
    large_share: str = ""  # setting above which a splat is too large, a share of the scene; empty: none is
    large_after: str = ""  # setting of the iteration after which too large splats are removed
    swelling: Mapping[str, int] = field(default_factory=dict[str, int])


class Strategy(Protocol):
    """Adds, moves and removes splats; keeps running statistics, one row a splat, on the device of the splats."""

    removals: ClassVar[Removals | None]  # None: splats are never removed

    @classmethod
    def of_run(cls, config: TrainConfig, count: int, extent: float, white_background: bool) -> Self:
        """Makes the strategy of a run that begins with `count` splats in a scene of `extent` world units."""
        ...

    def aim(self, photographs: Sequence[Photograph], background: Color) -> None:
        """Takes from the training views what settings leave open. Called once they are read, before the first step."""
        ...

    def observe(self, gradients: Gradients, camera: Camera) -> None:
        """Adds the gradients of one step to the statistics."""
        ...

    def after_step(
        self, state: SplatState, iteration: int, random: torch.Generator
    ) -> tuple[SplatState, Densified | None]:
        """Returns the state after what is due once `iteration` is over, and a report of it.

        `state` itself is not changed, so that a failure leaves the last good one. A state whose rows change in place
        (`rows.InPlace`) is unchanged only if this fails.
        """
        ...

    def due(self, iteration: int) -> bool:
        """Returns True if `after_step` has something to do at this iteration."""
        ...

    def gathers(self, iteration: int) -> bool:
        """Returns True if the strategy needs `observe` for the step of this iteration."""
        ...

    @property
    def absolute(self) -> bool:
        """Returns True if the observed means2d gradients have to be sums of absolute values (Ye et al. 2024)."""
        ...

    @property
    def pulls(self) -> PullStatistics | None:
        """Returns the statistics of pulls; None if the strategy keeps none.

        Steps on a device add the pulls up in their own tensors, and lend these tensors by `restore`.
        """
        ...

    def noise(self, iteration: int, seed: int) -> Noise | None:
        """Returns the random move of all means that ends the step of this iteration."""
        ...

    def stop_growing(self, count: int) -> None:
        """Allows at most `count` splats from now on."""
        ...

    @property
    def most(self) -> int | None:
        """Returns the number of splats at which growth ends, known after `aim`; None if no number ends it."""
        ...

    def forget(self, count: int) -> None:
        """Begins the statistics again, for `count` splats."""
        ...

    def statistics(self) -> dict[str, Tensor]:
        """Returns the running statistics by name, to be saved for `restore`."""
        ...

    def restore(self, statistics: dict[str, Tensor]) -> None:
        """Continues with saved statistics."""
        ...


class PullStatistics:
    """Adds up how hard the steps pulled at each projected mean, in NDC, and counts the steps that saw it."""

    def __init__(self, count: int) -> None:
        self.forget(count)

    @property
    def absolute(self) -> bool:
        return False

    @property
    def pulls(self) -> PullStatistics | None:
        return self

    def aim(self, photographs: Sequence[Photograph], background: Color) -> None:
        """Does nothing: the settings leave nothing open."""

    def gathers(self, iteration: int) -> bool:
        return True

    def noise(self, iteration: int, seed: int) -> Noise | None:
        return None

    def observe(self, gradients: Gradients, camera: Camera) -> None:
        """Adds one step, in NDC, so that the pull does not depend on the size of the picture."""
        means2d = torch.as_tensor(gradients.means2d)  # [N, 2] per pixel
        if means2d.device != self.pull.device:
            self.pull, self.seen = self.pull.to(means2d.device), self.seen.to(means2d.device)
        x, y = means2d[:, 0] * (0.5 * camera.width), means2d[:, 1] * (0.5 * camera.height)
        self.pull += torch.sqrt(x * x + y * y)
        self.seen += torch.as_tensor(gradients.visible)

    def mean(self) -> Tensor:
        """Returns the mean pull [N] over the steps that saw each splat."""
        return self.pull / self.seen.clamp(min=1)

    def forget(self, count: int) -> None:
        self.pull = torch.zeros(count)  # [N]
        self.seen = torch.zeros(count, dtype=torch.int32)  # [N]

    def statistics(self) -> dict[str, Tensor]:
        return {"pull": self.pull, "seen": self.seen}

    def restore(self, statistics: dict[str, Tensor]) -> None:
        self.pull, self.seen = statistics["pull"], statistics["seen"]
