"""Draws and differentiates pictures on the CPU with numba.

Stage files mirror the CUDA ones; read `backend.py` first.
"""

from splatscope.kernels.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]
