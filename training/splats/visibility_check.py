"""Checks that cameras look at a run's first splats. If none does, all gradients are zero, and no step reports it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from splatscope.kernels.constants import SPHERE_SIGMAS
from splatscope.kernels.types import Camera
from splatscope.kernels.wording import counted
from splatscope.training.data.dataset import Photograph
from splatscope.training.splats import rows
from splatscope.training.splats.rows import SplatTensors

_LARGEST = float(np.sqrt(np.finfo(np.float32).max))  # what kernels can square


def none_in_sight(raw: SplatTensors, photographs: Sequence[Photograph]) -> tuple[str, ...]:
    """Returns a warning if no camera can see any splat, else nothing. Usually the first camera settles it."""
    if any(bool(_may_be_seen(raw, photograph.camera).any()) for photograph in photographs):
        return ()
    cameras = counted(len(photographs), "camera")
    return (
        f"None of {counted(raw.count, 'splat')} is in sight of any of {cameras}, so nothing will be learned: they "
        f"are behind the cameras, outside their pictures, too near or too far away. Check that points and cameras "
        f"belong together, or train with --init random, unless you do already.",
    )


def _may_be_seen(raw: SplatTensors, camera: Camera) -> Tensor:
    """Returns the mask [N] of splats that the camera may see, after Kerbl et al. 2023: in front of it, and with part of
    the sphere around the splat inside the picture. Splats whose numbers overflow in a kernel are not seen."""
    matrix = torch.from_numpy(camera.matrix).to(raw.means.device)
    x, y, depth = (raw.means.double() @ matrix[:3, :3].T + matrix[:3, 3]).unbind(1)
    radius = SPHERE_SIGMAS * rows.largest_scale(raw).double()
    seen = (depth > camera.near) & (radius < _LARGEST) & (depth < _LARGEST)
    for along, focal, centre, size in (
        (x, camera.fx, camera.cx, camera.width),
        (y, camera.fy, camera.cy, camera.height),
    ):
        # Distances to the planes through the camera and the sides of the picture, in units of the depth.
        low, high = centre / focal, (size - centre) / focal
        seen &= along + low * depth > -radius * (1 + low**2) ** 0.5 - _margin(depth, focal)
        seen &= along - high * depth < radius * (1 + high**2) ** 0.5 + _margin(depth, focal)
    return seen


def _margin(depth: Tensor, focal: float) -> Tensor:
    """Returns the world units that three pixels span at a depth, by which small splats are widened."""
    return 3 * depth.abs() / focal
