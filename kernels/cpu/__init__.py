"""Draws and differentiates pictures on the CPU with numba.

The files of stages have the names of the CUDA ones. Read `backend.py` first.
"""

from splatscope.kernels.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]
