"""Renders, forward and backward: the definition, the CPU backend, the CUDA backend."""
