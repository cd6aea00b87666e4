"""Declares what a rendering backend offers. `backends.py` makes one."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.policy import Policy
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.schedule.rules import CostModel, Machine
from splatscope.kernels.types import Camera, Float32, Frame, Gaussians, Gradients, RenderSettings

BackendName = Literal["auto", "cpu", "cuda", "reference"]
Span = tuple[str, float, float]  # stage, beginning and end in seconds of time.perf_counter


class Backend(Protocol):
    """Renders splats and, for training, differentiates. Calls may come from any thread, one at a time."""

    name: str  # "cpu", "reference", ...
    trains_on_device: bool  # its `training_step` keeps splats, loss and optimiser in the memory of a GPU

    @property
    def compiling(self) -> bool:
        """Returns True while a call waits for kernels to compile. Any thread may ask."""
        ...

    @property
    def device(self) -> str:
        """Names the hardware for people: "2 threads", the GPU's name."""
        ...

    def warm_up(self, training: bool = False) -> None:
        """Compiles or loads what the first frame (and, if asked, the first training step) needs."""
        ...

    def render(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings = ..., policy: Policy = ...
    ) -> Frame:
        """Renders one picture."""
        ...

    def forward(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings = ..., policy: Policy = ...
    ) -> tuple[Frame, Any]:
        """Renders one picture; also returns the values that `backward` needs. Only the newest pass can be
        differentiated."""
        ...

    def backward(self, saved: Any, image_gradient: Float32, absolute: bool = ...) -> Gradients:
        """Returns dL/d(parameters) for dL/d(image) [H, W, 3]. The next call reuses the arrays. With `absolute`, means2d
        is the sum of |dL/d(projected mean)| over pixels (Ye et al. 2024); on a GPU only training steps do that."""
        ...


class HostMath(Protocol):
    """Computes loss, SSIM and Adam steps on arrays of the host. `kernels/reference/training.py` defines the results
    and documents the arguments; `kernels/cpu/training.py` is the fast form."""

    def loss(self, image: Float32, target: Float32, dssim_weight: float = ...) -> tuple[float, Float32]: ...
    def ssim(self, image: Float32, target: Float32) -> float: ...
    def adam(
        self,
        parameter: Float32,
        gradient: Float32,
        first: Float32,
        second: Float32,
        rates: Float32,
        step: int,
        betas: tuple[float, float] = ...,
        epsilon: float = ...,
    ) -> None: ...


class PendingShow(Protocol):
    """Holds a picture that a device may still be drawing."""

    @property
    def ready(self) -> bool:
        """Returns True if `finish` does not wait."""
        ...

    def finish(self) -> tuple[NDArray[np.uint8], Frame]:
        """Returns the picture for the screen, uint8 [H, W, 4], and its frame. To be called once."""
        ...


@runtime_checkable
class LiveBackend(Backend, Protocol):
    """Compiles in the background while it draws, converts pictures for a screen, and records when its stages ran."""

    def waiting_for(self, camera: Camera, policy: Policy, primitive: Primitive = ...) -> tuple[str, ...]:
        """Returns the stages for which a picture would wait for the compiler, and starts to compile them in the
        background. Raises InputError."""
        ...

    def show(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings = ..., policy: Policy = ...
    ) -> tuple[NDArray[np.uint8], Frame]:
        """Returns one picture for the screen, uint8 [H, W, 4], and its frame."""
        ...

    def begin_show(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings = ..., policy: Policy = ...
    ) -> PendingShow:
        """Starts `show` without waiting for the picture; one at a time."""
        ...

    def start_clock(self) -> None:
        """Starts to record when stages run, for `newest_spans`. Waits for the device."""
        ...

    def newest_spans(self) -> list[Span]:
        """Returns when the stages of the newest picture ran."""
        ...


@runtime_checkable
class BlendingBackend(Backend, Protocol):
    """Describes the hardware on which it blends tiles, and honours the toggle schedule.record."""

    def blend_machine(self) -> tuple[Machine, CostModel]:
        """Returns the scheduler's model of the hardware that blended the newest picture, and the costs of its work."""
        ...
