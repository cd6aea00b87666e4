"""Rendering, forward and backward: the definition, the CPU backend and, later, CUDA."""
