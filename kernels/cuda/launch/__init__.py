"""Compiles kernels, lays out their arguments, allocates buffers, launches, and copies results to the host."""
