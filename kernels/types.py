"""Defines the values that layers exchange: splats, cameras, settings, frames and gradients.

Shapes and units are written here once. N counts splats, K spherical-harmonic rows, H and W pixels, Ty and Tx tiles.
Nothing here imports torch, numba or a GUI. Read `backend.py` next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.constants import NEAR, SH_COEFFICIENTS, TILE
from splatscope.kernels.primitive import Primitive

if TYPE_CHECKING:
    from splatscope.kernels.schedule.timeline import Recording

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Matrix4 = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Holds splats as raw (pre-activation) parameters, a structure of C-contiguous float32 arrays.

    Raw and activated values never share a name: scale = exp(log_scales), opacity =
    sigmoid(logit_opacities), rotation = quats / |quats|, colour = 0.5 + SH(direction), clamped at 0. `primitive` tells
    what kind of splat each row describes; a disk lies in the plane of its first two axes.
    """

    means: Float32  # [N, 3] world units
    log_scales: Float32  # [N, 3] natural logarithm of world units; a disk's third is FLAT_LOG_SCALE
    quats: Float32  # [N, 4] (w, x, y, z), any length but zero
    logit_opacities: Float32  # [N]
    sh: Float32  # [N, K, 3] K = (degree + 1)^2 rows of RGB; row 0 is the constant term
    primitive: Primitive = field(default="3dgs", kw_only=True)

    @property
    def count(self) -> int:
        return self.means.shape[0]

    @property
    def sh_degree(self) -> int:
        return SH_COEFFICIENTS[self.sh.shape[1]]

    def with_sh_degree(self, degree: int) -> Gaussians:
        """Returns the splats with harmonics up to `degree`: higher rows are cut off, missing rows are zero."""
        sh = np.zeros((self.count, (degree + 1) ** 2, 3), np.float32)
        common = min(sh.shape[1], self.sh.shape[1])
        sh[:, :common] = self.sh[:, :common]
        return self.with_arrays({**self.arrays, "sh": sh})

    @property
    def arrays(self) -> dict[str, Float32]:
        """Returns the arrays by name, in the order of their declaration."""
        return {name: getattr(self, name) for name in GAUSSIAN_ARRAYS}

    def with_arrays(self, arrays: Mapping[str, Float32]) -> Gaussians:
        """Returns splats of the same primitive made of `arrays`."""
        return Gaussians(**arrays, primitive=self.primitive)


GAUSSIAN_ARRAYS = ("means", "log_scales", "quats", "logit_opacities", "sh")


@dataclass(frozen=True)
class Camera:
    """Describes a pinhole camera: OpenCV axes (x right, y down, z forward), pixel centres at +0.5.

    A world point p is seen at u = fx * x / z + cx with (x, y, z) = view_from_world @ p. Rows of the
    4x4 matrix are tuples, so that cameras compare and hash by value: the window redraws if the camera is not equal.
    """

    width: int
    height: int
    fx: float  # px
    fy: float  # px
    cx: float  # px; width / 2 when centred
    cy: float  # px
    view_from_world: Matrix4
    near: float = NEAR  # world units

    @staticmethod
    def from_matrix(
        view_from_world: Any, width: int, height: int, fx: float, fy: float, cx: float, cy: float, near: float = NEAR
    ) -> Camera:
        """Builds a camera from anything NumPy can read as a 4x4 matrix."""
        rows = np.asarray(view_from_world, dtype=np.float64).reshape(4, 4)
        matrix = tuple(tuple(float(v) for v in row) for row in rows)
        return Camera(int(width), int(height), float(fx), float(fy), float(cx), float(cy), matrix, float(near))

    @cached_property
    def matrix(self) -> NDArray[np.float64]:
        """Returns view_from_world as float64 [4, 4]."""
        return np.array(self.view_from_world, dtype=np.float64)

    @cached_property
    def position(self) -> NDArray[np.float64]:
        """Returns the camera centre [3], in world units."""
        rotation = self.matrix[:3, :3]
        return -np.linalg.inv(rotation) @ self.matrix[:3, 3]

    def resized(self, width: int, height: int) -> Camera:
        """Returns the same view on another pixel grid; intrinsics scale with each axis."""
        sx, sy = width / self.width, height / self.height
        return replace(
            self, width=width, height=height, fx=self.fx * sx, fy=self.fy * sy, cx=self.cx * sx, cy=self.cy * sy
        )

    @property
    def tiles(self) -> tuple[int, int]:
        """Returns the numbers of rows Ty and columns Tx of tiles that cover the image."""
        return -(-self.height // TILE), -(-self.width // TILE)


@dataclass(frozen=True)
class RenderSettings:
    """Holds the settings of a picture that do not change the scene."""

    background: tuple[float, float, float] = (0.0, 0.0, 0.0)  # RGB in [0, 1]
    sh_degree: int = 3  # highest degree evaluated, if the scene has it


@dataclass(frozen=True, eq=False)
class Frame:
    """Holds the result of one forward pass. Arrays belong to the caller."""

    image: Float32  # [H, W, 3] RGB over the background, not clamped
    depth: Float32  # [H, W] sum(w z) / sum(w), camera z in world units, NaN where nothing was blended
    transmittance: Float32  # [H, W] share of the background that shows through
    tile_counts: Int32  # [Ty, Tx] splats listed per tile
    visible: int  # V: splats that reach at least one tile
    instances: int  # I: (splat, tile) pairs listed; sum of tile_counts
    skipped: int = 0  # splats dropped because a value is not finite or the quaternion is zero
    stage_ms: dict[str, float] = field(default_factory=dict)  # stage name -> milliseconds, in order
    recording: Recording | None = None  # when each tile or chunk ran, if schedule.record is on


@dataclass(frozen=True, eq=False)
class Gradients:
    """Holds dL/d(raw parameter) for every splat; rows of unseen splats are zero."""

    means: Float32  # [N, 3]
    log_scales: Float32  # [N, 3]
    quats: Float32  # [N, 4]
    logit_opacities: Float32  # [N]
    sh: Float32  # [N, K, 3]
    means2d: Float32  # [N, 2] dL/d(projected mean), per px, or sums of its absolute values; density control reads it
    visible: NDArray[np.bool_]  # [N]
    stage_ms: dict[str, float] = field(default_factory=dict)
