"""What every strategy offers: it watches the steps, and between them adds, moves and removes splats.

One file each: `adaptive.py` (2023), `mcmc.py`, `budget.py`. The row operations they share are in `splats/rows.py`. To
add one, write a class with these methods, a config group for its constants, and a line in `make_strategy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from splatscope.kernels.noise import Noise
from splatscope.kernels.types import Camera, Gradients
from splatscope.training.data.dataset import Color, Photograph
from splatscope.training.events import Densified
from splatscope.training.splats.rows import SplatState


class Strategy(Protocol):
    """One policy and its running statistics, one row a splat, on the device of the splats."""

    def aim(self, photographs: Sequence[Photograph], background: Color) -> None:
        """Takes from the training views what settings leave to them, once those are read and before the first step."""
        ...

    def observe(self, gradients: Gradients, camera: Camera) -> None:
        """Takes note of one step."""
        ...

    def after_step(
        self, state: SplatState, iteration: int, random: torch.Generator
    ) -> tuple[SplatState, Densified | None]:
        """The state after what is due once `iteration` is over, and what was done. `state` itself stays as it is, so
        that a failure leaves the last good one; one whose rows change in place (`ops.InPlace`) does if it fails."""
        ...

    def due(self, iteration: int) -> bool:
        """Whether `after_step` has something to do at this iteration."""
        ...

    def gathers(self, iteration: int) -> bool:
        """Whether it wants to observe the step of this iteration."""
        ...

    @property
    def absolute(self) -> bool:
        """Whether the means2d gradients it observes are to be sums of absolute values (Ye et al. 2024)."""
        ...

    @property
    def pulls(self) -> PullStatistics | None:
        """Statistics of pulls that steps on a device add up in tensors of their own, lent by `restore`; None if it
        keeps none."""
        ...

    def noise(self, iteration: int, seed: int) -> Noise | None:
        """The random step of all means with which the step of this iteration ends."""
        ...

    def stop_growing(self, count: int) -> None:
        """From now on there may be no more than so many splats."""
        ...

    @property
    def most(self) -> int | None:
        """Splats at which growth ends, known once it has aimed; None if no number ends it."""
        ...

    def forget(self, count: int) -> None:
        """Begins its statistics anew, for so many splats."""
        ...

    def statistics(self) -> dict[str, Tensor]:
        """The running statistics by name, to be saved; what `restore` takes."""
        ...

    def restore(self, statistics: dict[str, Tensor]) -> None:
        """Goes on with saved statistics."""
        ...


class PullStatistics:
    """How hard the steps pulled at each projected mean: the sum of lengths in NDC, and how many steps saw it."""

    def __init__(self, count: int) -> None:
        self.forget(count)

    @property
    def absolute(self) -> bool:
        return False

    @property
    def pulls(self) -> PullStatistics | None:
        return self

    def aim(self, photographs: Sequence[Photograph], background: Color) -> None:
        """Nothing is left to them."""

    def gathers(self, iteration: int) -> bool:
        return True

    def noise(self, iteration: int, seed: int) -> Noise | None:
        return None

    def observe(self, gradients: Gradients, camera: Camera) -> None:
        """Adds one step. NDC, so that the pull does not depend on the size of the picture."""
        means2d = torch.as_tensor(gradients.means2d)  # [N, 2] per pixel
        if means2d.device != self.pull.device:
            self.pull, self.seen = self.pull.to(means2d.device), self.seen.to(means2d.device)
        x, y = means2d[:, 0] * (0.5 * camera.width), means2d[:, 1] * (0.5 * camera.height)
        self.pull += torch.sqrt(x * x + y * y)
        self.seen += torch.as_tensor(gradients.visible)

    def mean(self) -> Tensor:
        """Mean pull [N] over the steps that saw the splat."""
        return self.pull / self.seen.clamp(min=1)

    def forget(self, count: int) -> None:
        self.pull = torch.zeros(count)  # [N]
        self.seen = torch.zeros(count, dtype=torch.int32)  # [N]

    def statistics(self) -> dict[str, Tensor]:
        return {"pull": self.pull, "seen": self.seen}

    def restore(self, statistics: dict[str, Tensor]) -> None:
        self.pull, self.seen = statistics["pull"], statistics["seen"]
