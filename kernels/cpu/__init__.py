"""The numba backend: stage files mirror the CUDA ones. Read `backend.py` first."""

from splatscope.kernels.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]
