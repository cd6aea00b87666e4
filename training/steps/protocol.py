"""Declares what takes training steps: `HostStep` on arrays of the host, `DeviceStep` on a GPU.

The trainer knows only `Stepper`. Both classes write `take` and `gaussians`. The other members are for steps that run
later than they are taken, or keep splats in another form; the bodies here are for all other steps. Read `host.py` next,
then `device.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Gaussians, RenderSettings
from splatscope.training.data.dataset import Photograph
from splatscope.training.splats.rows import SplatState
from splatscope.training.strategies.base import Strategy


@dataclass(frozen=True, eq=False)
class StepInput:
    """Names the photograph of one step, and the iteration it is for."""

    iteration: int  # from 1
    moments_since: int  # iteration after which Adam's moments were zero
    view: Photograph
    index: int  # place of the photograph among the training views
    settings: RenderSettings  # with the background of this step


@dataclass(frozen=True)
class Taken:
    """Holds what a step measured."""

    loss: float  # without penalties
    stage_ms: dict[str, float]  # in order


class Stepper(Protocol):
    """Takes the training steps of one run."""

    def take(self, state: SplatState, step: StepInput, strategy: Strategy) -> Taken:
        """Takes one step on the splats; `strategy` sees its gradients.

        Raises NotFiniteError if a loss or a gradient is not finite; the splats are then those of iteration `reached`.
        """
        ...

    def gaussians(self, state: SplatState) -> Gaussians:
        """Returns the live splats for pictures, valid until they are next changed."""
        ...

    def adopt(self, state: SplatState, strategy: Strategy | None) -> SplatState:
        """Trains other splats from now on. Returns them as `take` wants them."""
        return state

    def expect(self, views: Sequence[Photograph]) -> None:
        """Prepares for steps on these photographs."""

    def settle(self, strategy: Strategy) -> None:
        """Waits until all steps taken are over and the strategy has their statistics. Raises NotFiniteError."""

    def resume(self, strategy: Strategy) -> None:
        """Begins with the statistics that the strategy has from a checkpoint."""

    def losses(self) -> list[tuple[int, float]]:
        """Returns iteration and loss of each step found to be over since the last call, where `take` cannot know
        them."""
        return []

    def use(self, policy: Policy) -> tuple[str, ...]:
        """Has later steps run with these toggles, as far as they leave the outcome alone. Returns the stages that wait
        for the compiler."""
        return ()

    @property
    def sh_dtype(self) -> str:
        """Returns the type in which harmonics are kept (kernels/cuda/step/harmonics.py)."""
        return "f32"

    @property
    def pairs(self) -> int:
        """Returns about the most (splat, tile) pairs that a view has listed so far; 0 if not known."""
        return 0
