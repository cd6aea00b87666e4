"""Chooses and makes the rendering backend: cpu, cuda or reference.

Importing this module loads neither torch nor numba: the functions import a backend only when they make it.
"""

from __future__ import annotations

from functools import cache

from splatscope.kernels.backend import Backend, BackendName, HostMath
from splatscope.kernels.errors import InputError


def gpu_is_present() -> bool:
    """Returns True if the NVIDIA driver lists a GPU. Asks NVML, so neither torch nor CUDA is loaded."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except Exception:  # no driver, no library, no permission: all mean that the CPU renders
        return False
    return count > 0


def make_backend(name: BackendName = "auto", nvtx: bool = False) -> Backend:
    """Makes the backend of that name; `auto` takes the GPU if it can be used.

    `nvtx` makes the CUDA backend name its stages for profilers.
    """
    if name == "auto":
        name = "cuda" if gpu_is_present() and _cuda_problem() is None else "cpu"
    if name == "cpu":
        from splatscope.kernels.cpu import CpuBackend

        return CpuBackend()
    if name == "reference":
        from splatscope.kernels.reference.backend import ReferenceBackend

        return ReferenceBackend()
    if name == "cuda":
        from splatscope.kernels.cuda.backend import CudaBackend

        return CudaBackend(nvtx=nvtx)
    raise InputError(f"--backend must be auto, cpu, cuda or reference, got {name!r}.")


def host_math(backend: Backend) -> HostMath:
    """Returns the loss, SSIM and Adam on host arrays that fit a backend: float64 for the definition, CPU kernels for
    every other backend."""
    if backend.name == "reference":
        from splatscope.kernels.reference import training as reference

        return reference
    from splatscope.kernels.cpu import training

    return training


def why_not_gpu() -> str | None:
    """Returns why `auto` does not use this machine's GPU, or None if it does or no GPU is present. Takes seconds."""
    return _cuda_problem() if gpu_is_present() else None


def _cuda_problem() -> str | None:
    from splatscope.kernels.cuda.backend import need_gpu

    try:
        need_gpu()
    except InputError as error:
        return str(error)
    return _first_picture_problem()


@cache
def _first_picture_problem() -> str | None:
    """Draws one small picture, once, and returns why that failed, or None. All libraries have found the GPU before."""
    try:
        make_backend("cuda").warm_up()
    except Exception as error:  # an unknown driver, compiler or card: `auto` takes the CPU instead of failing
        text = str(error).strip().splitlines() or [""]
        return f"The GPU did not draw a first picture ({type(error).__name__}: {text[0][:200]})."
    return None
