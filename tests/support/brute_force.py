"""Renders one pixel and one splat at a time, with no code of the reference, which is checked against this.

Rotations, inverses, eigenvalues and spherical harmonics come from SciPy and NumPy's linear algebra; there
are no tiles except where a bound cuts tails. Nothing but `kernels/reference/picture.py` is checked against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    radius: float  # px, three standard deviations rounded up
    opacity: float
    color: NDArray[np.float64]  # [3]
    at: Callable[[NDArray[np.float64]], tuple[float, float]]  # pixel [2] -> squared distance in sigmas, camera z


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
    log_scales = gaussians.log_scales[i].astype(np.float64)
    variance = np.diag(np.exp(2 * log_scales) * (1, 1, gaussians.primitive != "2dgs"))
    in_view = view[:3, :3] @ turn @ variance @ turn.T @ view[:3, :3].T

    half_x, half_y = 0.5 * camera.width / camera.fx, 0.5 * camera.height / camera.fy
    slope_x = min(
        max(x / z, -camera.cx / camera.fx - 0.3 * half_x), (camera.width - camera.cx) / camera.fx + 0.3 * half_x
    )
    slope_y = min(
        max(y / z, -camera.cy / camera.fy - 0.3 * half_y), (camera.height - camera.cy) / camera.fy + 0.3 * half_y
    )
    if gaussians.primitive != "3dgs":
        slope_x, slope_y = x / z, y / z
    jacobian = np.array([[camera.fx, 0, -camera.fx * slope_x], [0, camera.fy, -camera.fy * slope_y]]) / z
    covariance = jacobian @ in_view @ jacobian.T + 0.3 * np.eye(2)

    toward = mean - np.linalg.solve(view[:3, :3], -view[:3, 3])
    basis = real_harmonics(toward / np.linalg.norm(toward), degree)
    color = 0.5 + np.array(basis) @ gaussians.sh[i, : len(basis)].astype(np.float64)
    center = np.array([camera.fx * x / z + camera.cx, camera.fy * y / z + camera.cy])
    radius = math.ceil(3 * math.sqrt(np.linalg.eigvalsh(covariance)[1]))
    conic = np.linalg.inv(covariance)

    def at(pixel: NDArray[np.float64]) -> tuple[float, float]:
        if gaussians.primitive != "3dgs":
            return meeting(gaussians.primitive, np.array([x, y, z]), log_scales, view[:3, :3] @ turn, camera, pixel)
        return float((pixel - center) @ conic @ (pixel - center)), z

    return Footprint(z, center, radius, opacity, np.maximum(color, 0), at)


def meeting(
    primitive: str,
    mean: NDArray[Any],  # [3] camera axes
    log_scales: NDArray[Any],  # [3]
    rotation: NDArray[Any],  # [3, 3] camera axes; columns are the splat's axes
    camera: Camera,
    pixel: NDArray[np.float64],  # [2] px
) -> tuple[Any, Any]:
    """Returns squared distance in sigmas and camera z where the ray of a pixel meets a disk or a Gaussian.

    The distance is infinite where the ray does not meet it. Inputs may be complex, for derivatives by complex steps.

    - 2dgs: intersects the ray with the disk's plane; the circle's centre is halfway between the tangents to the image
      of the disk's ellipse of three sigmas.
    - 3dgut: takes the point of the ray that is nearest in the metric of the inverse covariance.
    """
    focal, middle = np.array([camera.fx, camera.fy]), np.array([camera.cx, camera.cy])
    ray = np.append((pixel - middle) / focal, 1.0)
    scales = np.exp(log_scales)
    if primitive == "3dgut":
        metric = rotation @ np.diag(scales**-2) @ rotation.T
        z = (ray @ metric @ mean) / (ray @ metric @ ray)
        return ((z * ray - mean) @ metric @ (z * ray - mean) if z.real > 0 else math.inf), z
    normal = rotation[:, 2]
    if (normal @ ray) == 0:
        return math.inf, 0.0
    z = (normal @ mean) / (normal @ ray)
    if z.real < camera.near:
        return math.inf, z
    u, v = (((z * ray - mean) @ rotation[:, i]) / scales[i] for i in range(2))
    axes = rotation[:, :2] * scales[:2]  # [3, 2]
    center = focal * mean[:2] / mean[2] + middle
    if (mean[2] ** 2 - 9 * (axes[2] ** 2).sum()).real > 1e-4 * abs(mean[2]) ** 2:
        # A tangent x/z = t: (mean.x - t mean.z)^2 = 9 |axes.x - t axes.z|^2, quadratic in t; the roots' mean counts.
        halfway = [
            (mean[k] * mean[2] - 9 * axes[k] @ axes[2]) / (mean[2] ** 2 - 9 * axes[2] @ axes[2]) for k in range(2)
        ]
        center = focal * np.array(halfway) + middle
    of_plane, of_circle = u * u + v * v, 2 * ((pixel - center) ** 2).sum()
    return (of_plane if of_plane.real <= of_circle.real else of_circle), z


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
                squared, z = splat.at(np.array([column + 0.5, row + 0.5]))
                alpha = min(cap, splat.opacity * math.exp(-0.5 * squared))
                if alpha < 1 / 255:
                    continue
                if (left if inclusive else left * (1 - alpha)) < 1e-4:
                    break
                color = color + left * alpha * splat.color
                weight_sum += left * alpha
                depth_sum += left * alpha * z
                left *= 1 - alpha
            image[row, column] = color + left * np.array(background)
            depth[row, column] = depth_sum / weight_sum if weight_sum else math.nan
            transmittance[row, column] = left
    return image, depth, transmittance
