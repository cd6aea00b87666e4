"""What a rendering backend offers, and how one is chosen. Read `cpu/backend.py` or `reference.py` next.

Importing this module loads neither torch nor numba: a backend is imported when it is made.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Camera, Float32, Frame, Gaussians, Gradients, RenderSettings

BackendName = Literal["auto", "cpu", "cuda", "reference"]


class Backend(Protocol):
    """Renders splats and, for training, differentiates. Calls may come from any thread, one at a time."""

    name: str  # "cpu", "reference", ...
    compiling: bool  # True while a call waits for kernels to compile; read from any thread

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

    def backward(self, saved: Any, image_gradient: Float32) -> Gradients:
        """dL/d(parameters) from dL/d(image) [H, W, 3]. The arrays are reused by the next call."""
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


def gpu_is_present() -> bool:
    """True if the NVIDIA driver lists a GPU. Asks NVML, so neither torch nor CUDA is loaded."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except Exception:  # no driver, no library, no permission: all mean that the CPU renders
        return False
    return count > 0


def make_backend(name: BackendName = "auto") -> Backend:
    """The backend of that name; `auto` is the CPU until training runs whole on the GPU."""
    if name in ("auto", "cpu"):
        from splatscope.kernels.cpu import CpuBackend

        return CpuBackend()
    if name == "reference":
        from splatscope.kernels.reference import ReferenceBackend

        return ReferenceBackend()
    if name == "cuda":
        from splatscope.kernels.cuda import CudaBackend

        return CudaBackend()
    raise InputError(f"--backend must be auto, cpu, cuda or reference, got {name!r}.")
