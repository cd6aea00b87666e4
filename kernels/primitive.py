"""Names what a splat can be. Nothing here loads NumPy, because `--help` needs it."""

from __future__ import annotations

from typing import Literal, get_args

# 3dgs: a Gaussian, flattened onto the image plane (Kerbl and Kopanas et al. 2023). 2dgs: a disk in space (Huang et al.
# 2024). 3dgut: a Gaussian, evaluated along each pixel's ray (Wu et al. 2025).
Primitive = Literal["3dgs", "2dgs", "3dgut"]
PRIMITIVES: tuple[Primitive, ...] = get_args(Primitive)
FLAT_LOG_SCALE = -20.0  # third log scale of a disk, which no kernel reads: thin if it is ever drawn as a Gaussian
