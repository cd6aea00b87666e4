"""Names the kinds of splats. Nothing here loads NumPy, because `--help` imports this file."""

from __future__ import annotations

from typing import Literal, get_args

# 3dgs: a Gaussian, flattened onto the image plane (Kerbl and Kopanas et al. 2023). 2dgs: a disk in space (Huang et al.
# 2024). 3dgut: a Gaussian, evaluated along each pixel's ray (Wu et al. 2025).
Primitive = Literal["3dgs", "2dgs", "3dgut"]
PRIMITIVES: tuple[Primitive, ...] = get_args(Primitive)
# Third log scale of a disk. No kernel reads it; another program that draws the disk as a Gaussian finds it thin.
FLAT_LOG_SCALE = -20.0
