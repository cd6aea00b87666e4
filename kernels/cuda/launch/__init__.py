"""Compiles kernels, lays out their arguments, allocates buffers and launches."""
