"""Declares what a rendering backend offers. `backends.py` makes one."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.policy import Policy
from splatscope.kernels.schedule.rules import CostModel, Machine
from splatscope.kernels.types import Camera, Float32, Frame, Gaussians, Gradients, RenderSettings

BackendName = Literal["auto", "cpu", "cuda", "reference"]
Span = tuple[str, float, float]  # stage, beginning and end in seconds of time.perf_counter


class Backend(Protocol):
    """Renders splats and, for training, differentiates. Calls may come from any thread, one at a time."""

    name: str  # "cpu", "reference", ...

    @property
    def compiling(self) -> bool:
        """True while a call waits for kernels to compile; read from any thread."""
        ...

    @property
    def device(self) -> str:
        """What it runs on, for people: "2 threads", the GPU's name."""
        ...

    def warm_up(self, training: bool = False) -> None:
        """Compiles or loads what the first frame (and, if asked, the first training step) needs."""
        ...

    def render(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings = ..., policy: Policy = ...
    ) -> Frame:
        """One picture."""
        ...

    def forward(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings = ..., policy: Policy = ...
    ) -> tuple[Frame, Any]:
        """One picture and what `backward` needs; only the newest pass can be differentiated."""
        ...

    def backward(self, saved: Any, image_gradient: Float32, absolute: bool = ...) -> Gradients:
        """dL/d(parameters) from dL/d(image) [H, W, 3]. The arrays are reused by the next call. `absolute`: means2d adds
        up |dL/d(projected mean)| of each pixel by itself (Ye et al. 2024); on a GPU only training steps do that."""
        ...

    def loss(self, image: Float32, target: Float32, dssim_weight: float = 0.2) -> tuple[float, Float32]:
        """(1 - w) L1 + w (1 - SSIM), both means over [H, W, 3], and its gradient with respect to `image`."""
        ...

    def ssim(self, image: Float32, target: Float32) -> float:
        """Mean SSIM: 11x11 Gaussian window, sigma 1.5, zero padding, C1 = 0.01^2, C2 = 0.03^2."""
        ...

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
    ) -> None:
        """One Adam step in place on [N, D] arrays; `rates` [D] is the learning rate of each column."""
        ...


class PendingShow(Protocol):
    """A picture that a device was handed and may not be done with."""

    @property
    def ready(self) -> bool:
        """True if `finish` does not wait."""
        ...

    def finish(self) -> tuple[NDArray[np.uint8], Frame]:
        """The picture for the screen, uint8 [H, W, 4], and its frame; once."""
        ...


@runtime_checkable
class LiveBackend(Backend, Protocol):
    """A backend that compiles beside its pictures, makes them ready for a screen, and knows when its stages ran."""

    def waiting_for(self, camera: Camera, policy: Policy) -> tuple[str, ...]:
        """Stages for which a picture would wait for the compiler, which begins beside it. Raises InputError."""
        ...

    def show(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings = ..., policy: Policy = ...
    ) -> tuple[NDArray[np.uint8], Frame]:
        """One picture for the screen, uint8 [H, W, 4], and its frame."""
        ...

    def begin_show(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings = ..., policy: Policy = ...
    ) -> PendingShow:
        """The same without waiting; one at a time."""
        ...

    def start_clock(self) -> None:
        """From now on `newest_spans` tells when stages ran. Waits for the device."""
        ...

    def newest_spans(self) -> list[Span]:
        """When the stages of the newest picture ran."""
        ...


@runtime_checkable
class BlendingBackend(Backend, Protocol):
    """A backend that says what blends its tiles, and honours schedule.record."""

    def blend_machine(self) -> tuple[Machine, CostModel]:
        """What ran the newest picture's blend stage, as a scheduler sees it, and what units of work cost there."""
        ...
