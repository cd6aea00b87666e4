"""Renders one pixel and one splat at a time, with no code of the reference, which is checked against this.

Rotations, inverses, eigenvalues and spherical harmonics come from SciPy and NumPy's linear algebra; there
are no tiles except where a bound cuts tails. Nothing but `kernels/reference/picture.py` is checked against it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation
from scipy.special import sph_harm_y

from splatscope.kernels.types import Camera, Gaussians


@dataclass(frozen=True)
class Footprint:
    """Describes one splat as the camera sees it."""

    z: float
    center: NDArray[np.float64]  # [2] px
    conic: NDArray[np.float64]  # [2, 2] px^-2
    radius: float  # px, three standard deviations rounded up
    opacity: float
    color: NDArray[np.float64]  # [3]


def real_harmonics(direction: NDArray[np.float64], degree: int) -> list[float]:
    """Returns orthonormal real spherical harmonics with the Condon-Shortley sign, order -l .. l within each
    degree l.
    """
    x, y, z = direction
    polar, azimuth = math.acos(max(-1.0, min(1.0, z))), math.atan2(y, x)
    values = []
    for band in range(degree + 1):
        for order in range(-band, band + 1):
            y_lm = complex(sph_harm_y(band, abs(order), polar, azimuth))
            root = math.sqrt(2.0)
            values.append(root * y_lm.imag if order < 0 else root * y_lm.real if order > 0 else y_lm.real)
    return values


def footprint(gaussians: Gaussians, i: int, camera: Camera, degree: int) -> Footprint | None:
    """Returns splat `i` on the image plane, None if it is culled before it reaches a tile."""
    view = np.array(camera.view_from_world)
    mean = gaussians.means[i].astype(np.float64)
    x, y, z = view[:3, :3] @ mean + view[:3, 3]
    opacity = 1 / (1 + math.exp(-float(gaussians.logit_opacities[i])))
    if z <= camera.near or opacity < 1 / 255:
        return None
    turn = Rotation.from_quat(gaussians.quats[i].astype(np.float64)[[1, 2, 3, 0]]).as_matrix()
    variance = np.diag(np.exp(2 * gaussians.log_scales[i].astype(np.float64)))
    in_view = view[:3, :3] @ turn @ variance @ turn.T @ view[:3, :3].T

    half_x, half_y = 0.5 * camera.width / camera.fx, 0.5 * camera.height / camera.fy
    slope_x = min(
        max(x / z, -camera.cx / camera.fx - 0.3 * half_x), (camera.width - camera.cx) / camera.fx + 0.3 * half_x
    )
    slope_y = min(
        max(y / z, -camera.cy / camera.fy - 0.3 * half_y), (camera.height - camera.cy) / camera.fy + 0.3 * half_y
    )
    jacobian = np.array([[camera.fx, 0, -camera.fx * slope_x], [0, camera.fy, -camera.fy * slope_y]]) / z
    covariance = jacobian @ in_view @ jacobian.T + 0.3 * np.eye(2)

    toward = mean - np.linalg.solve(view[:3, :3], -view[:3, 3])
    basis = real_harmonics(toward / np.linalg.norm(toward), degree)
    color = 0.5 + np.array(basis) @ gaussians.sh[i, : len(basis)].astype(np.float64)
    center = np.array([camera.fx * x / z + camera.cx, camera.fy * y / z + camera.cy])
    radius = math.ceil(3 * math.sqrt(np.linalg.eigvalsh(covariance)[1]))
    return Footprint(z, center, np.linalg.inv(covariance), radius, opacity, np.maximum(color, 0))


def in_square(splat: Footprint, column: int, row: int) -> bool:
    """Returns True if the square of three standard deviations meets the pixel centres of this pixel's tile."""
    for position, center in ((column, splat.center[0]), (row, splat.center[1])):
        first = position // 16 * 16 + 0.5
        if center + splat.radius < first or center - splat.radius > first + 15:
            return False
    return True


def picture(
    gaussians: Gaussians,
    camera: Camera,
    background: tuple[float, float, float] = (0.0, 0.0, 0.0),
    degree: int = 3,
    square: bool = False,
    cap: float = float(np.float32(0.99)),
    inclusive: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Returns image [H, W, 3], depth [H, W], transmittance [H, W]; `square` cuts tails as `circle3s` does.

    `cap` is the largest alpha; `inclusive` blends the splat that ends a pixel.
    """
    found = (footprint(gaussians, i, camera, degree) for i in range(gaussians.count))
    splats = sorted((s for s in found if s is not None), key=lambda s: s.z)
    image = np.zeros((camera.height, camera.width, 3))
    depth, transmittance = np.zeros(image.shape[:2]), np.zeros(image.shape[:2])
    for row in range(camera.height):
        for column in range(camera.width):
            left, color, weight_sum, depth_sum = 1.0, np.zeros(3), 0.0, 0.0
            for splat in splats:
                if square and not in_square(splat, column, row):
                    continue
                offset = np.array([column + 0.5, row + 0.5]) - splat.center
                alpha = min(cap, splat.opacity * math.exp(-0.5 * float(offset @ splat.conic @ offset)))
                if alpha < 1 / 255:
                    continue
                if (left if inclusive else left * (1 - alpha)) < 1e-4:
                    break
                color = color + left * alpha * splat.color
                weight_sum += left * alpha
                depth_sum += left * alpha * splat.z
                left *= 1 - alpha
            image[row, column] = color + left * np.array(background)
            depth[row, column] = depth_sum / weight_sum if weight_sum else math.nan
            transmittance[row, column] = left
    return image, depth, transmittance
