"""Defines the two primitives whose depth changes from pixel to pixel: disks (2dgs) and Gaussians along rays (3dgut).

`picture.py` draws both with the stages of flattened Gaussians. This file adds what differs: the numbers of a splat that
pixels need (`shape_of`), the splat's squared distance and depth at a pixel (`disk_response`, `ray_response`), and the
ellipse that decides its tiles (`outline_of`). The forms here are the textbooks'; the kernels use a shorter one
(kernels/cuda/source/primitive.cuh), and a test compares both.

Sources: Huang et al. 2024, "2D Gaussian Splatting"; Wu et al. 2025, "3DGUT". Letters as in `picture.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from splatscope.kernels.constants import ALPHA_MIN, SPHERE_SIGMAS, TILE
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.types import Camera

CIRCLE_SIGMAS = 3.0  # a disk's low-pass circle is centred on the disk's ellipse at this many sigmas
UNBOUNDED = 1e9  # px², variance of an ellipse that covers every picture
# px⁴, determinant below which a splat is left out, because the kernels divide by it. The textbook form would still draw
# the circle of so thin a disk.
LEAST_AREA = 1e-30
MARGIN_PX = 4.0  # a disk's circle, and rounding


def intrinsics(camera: Camera) -> Tensor:
    """Returns K [3, 3]."""
    return torch.tensor([[camera.fx, 0, camera.cx], [0, camera.fy, camera.cy], [0, 0, 1]], dtype=torch.float64)


def shape_of(primitive: Primitive, mean: Tensor, log_scales: Tensor, rotation: Tensor, camera: Camera) -> Tensor:
    """Returns the numbers of each splat that pixels need. Mean [M, 3] and rotation [M, 3, 3] are in camera axes.

    - 2dgs [M, 12]: M = K [axis u, axis v, mean] row by row, the near plane, and the centre of the circle.
    - 3dgut [M, 14]: W K^-1 row by row, -W mean, the smallest scale, and camera z of the mean. W whitens the splat and
      is scaled by its smallest scale, so that a scale of 0 does no harm.
    """
    k = intrinsics(camera)
    if primitive == "2dgs":
        axes = rotation[:, :, :2] * torch.exp(log_scales[:, None, :2])
        near = torch.full_like(mean[:, :1], camera.near)
        rows = k @ torch.cat((axes, mean[:, :, None]), 2)
        return torch.cat((rows.flatten(1), near, circle_center(*rows.unbind(1))), 1)
    least = log_scales.min(1, keepdim=True).values
    whitening = torch.exp(least - log_scales)[:, :, None] * rotation.transpose(1, 2)  # [M, 3, 3]
    to_mean = -(whitening @ mean[:, :, None])[:, :, 0]
    return torch.cat(((whitening @ torch.linalg.inv(k)).flatten(1), to_mean, torch.exp(least), mean[:, 2:]), 1)


def disk_response(shape: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns squared distance in sigmas, camera z, and True where the ray meets the disk, [n, P] each."""
    tu, tv, tw = (row[:, None] for row in shape[:, :9].reshape(-1, 3, 3).unbind(1))  # [n, 1, 3]
    near = shape[:, 9, None]
    x, y = centers[None, :, 0, None], centers[None, :, 1, None]
    p = torch.linalg.cross(x * tw - tu, y * tw - tv)  # [n, P, 3]
    is_met = p[..., 2] != 0
    u, v = (torch.where(is_met, p[..., i] / torch.where(is_met, p[..., 2], 1.0), 0.0) for i in range(2))
    z = u * tw[..., 0] + v * tw[..., 1] + tw[..., 2]
    circle = 2 * (shape[:, None, 10:12] - centers[None]).square().sum(2)
    return torch.minimum(u * u + v * v, circle), z, is_met & (z >= near)


def circle_center(tu: Tensor, tv: Tensor, tw: Tensor) -> Tensor:
    """Returns the centre [n, 2] of a disk's circle: the centre of its ellipse, or the projected mean if it has none."""
    signs = torch.tensor([CIRCLE_SIGMAS**2, CIRCLE_SIGMAS**2, -1.0], dtype=torch.float64)
    total = (signs * tw * tw).sum(1)
    is_ellipse = total < -1e-4 * tw[:, 2].square()
    weights = signs / torch.where(is_ellipse, total, -1.0)[:, None] * tw
    of_ellipse = torch.stack(((weights * tu).sum(1), (weights * tv).sum(1)), 1)
    of_mean = torch.stack((tu[:, 2], tv[:, 2]), 1) / tw[:, 2:]
    return torch.where(is_ellipse[:, None], of_ellipse, of_mean)


def ray_response(shape: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns squared distance in sigmas, camera z of the ray's nearest point, and True where that point is in front of
    the camera, [n, P] each.
    """
    rays = shape[:, :9].reshape(-1, 3, 3) @ torch.cat((centers.T, torch.ones_like(centers.T[:1])), 0)  # [n, 3, P]
    origin, least = shape[:, 9:12, None], shape[:, 12, None]
    squared = rays.square().sum(1)
    across = torch.linalg.cross(rays, origin.expand_as(rays), dim=1).square().sum(1) / squared
    z = -(rays * origin).sum(1) / squared
    return across / least.square(), z, z > 0


def tilt_of(primitive: Primitive, mean: Tensor, log_scales: Tensor, rotation: Tensor, camera: Camera) -> Tensor:
    """Returns [M, 3]: dQ/d(pixel), 1/px, and the closeness. primitive.cuh explains Q and closeness."""
    if primitive == "2dgs":
        narrow = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64).expand_as(log_scales)
    else:
        narrow = torch.exp(log_scales.min(1, keepdim=True).values - log_scales)
    along = narrow * (rotation.transpose(1, 2) @ mean[:, :, None])[:, :, 0]
    squared = along.square().sum(1)
    toward = (rotation @ (narrow * along)[:, :, None])[:, :, 0]
    focal = torch.tensor([camera.fx, camera.fy], dtype=torch.float64)
    tilt = (mean[:, 2] / squared)[:, None] * toward[:, :2] / focal
    least = torch.exp(log_scales.min(1).values) if primitive == "3dgut" else torch.zeros_like(squared)
    return torch.cat((tilt, (least.square() / squared)[:, None]), 1)


def outline_of(
    primitive: Primitive, mean_px: Tensor, covariance: Tensor, tilt: Tensor, opacity: Tensor, camera: Camera
) -> Tensor:
    """Returns the ellipse [M, 6] around the pixels with alpha >= 1/255: centre, then xx, xy, yy and determinant of its
    covariance at squared radius 2 ln(255 opacity). The ellipse of a splat that reaches through the camera plane covers
    the picture.

    `covariance` [M, 3] is not widened.
    """
    cutoff = torch.clamp(2 * torch.log(opacity / ALPHA_MIN), min=1e-12)
    outside = 1 - cutoff * tilt[:, 2]
    level = cutoff / torch.where(outside > 1e-4, outside, 1.0)
    center, s, is_ellipse = _ellipse(covariance, tilt, level)
    if primitive == "2dgs":
        of_circle, _, has_circle = _ellipse(covariance, tilt, torch.full_like(level, CIRCLE_SIGMAS**2))
        apart = (torch.where(has_circle[:, None], of_circle, 0.0) - center).norm(dim=1)
        more = (torch.sqrt(cutoff / 2) + apart).square()
        xx, yy = s[:, 0] - more, s[:, 2] - more
        is_within = (xx > 0) & (yy > 0) & (xx * yy > s[:, 1].square())  # the circle lies within the ellipse
        more = torch.where(is_within, 0.0, more)[:, None]
        s = s + torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64) * more
    is_bounded = is_ellipse & (outside > 1e-4) & (torch.maximum(s[:, 0], s[:, 2]) < UNBOUNDED)
    middle = torch.tensor([camera.width / 2, camera.height / 2], dtype=torch.float64)
    everything = torch.tensor([UNBOUNDED, 0.0, UNBOUNDED], dtype=torch.float64)
    center = torch.where(is_bounded[:, None], mean_px + center, middle)
    s = torch.where(is_bounded[:, None], s, everything) / cutoff[:, None]
    return torch.cat((center, s, (s[:, 0] * s[:, 2] - s[:, 1].square())[:, None]), 1)


def _ellipse(covariance: Tensor, tilt: Tensor, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the centre relative to the mean [M, 2], the covariance at level 1 [M, 3], and True for ellipses [M]."""
    xx, xy, yy = covariance.unbind(1)
    e = torch.stack((xx * tilt[:, 0] + xy * tilt[:, 1], xy * tilt[:, 0] + yy * tilt[:, 1]), 1)
    inside = 1 - level * (tilt[:, :2] * e).sum(1)
    weight = (level / torch.clamp(inside, min=1e-4))[:, None]
    center = weight * e
    x, y = center.unbind(1)
    return center, weight * covariance + torch.stack((x * x, x * y, y * y), 1), inside > 1e-4


def may_be_seen(mean: Tensor, log_scales: Tensor, camera: Camera) -> Tensor:
    """Returns [N]: false for splats whose sphere no ray through the tiles can meet."""
    focal = torch.tensor([camera.fx, camera.fy], dtype=torch.float64)
    center = torch.tensor([camera.cx, camera.cy], dtype=torch.float64)
    size = TILE * torch.tensor([camera.tiles[1], camera.tiles[0]], dtype=torch.float64)
    low, high = -center / focal, (size - center) / focal
    radius = SPHERE_SIGMAS * torch.exp(log_scales.max(1).values) + MARGIN_PX * mean[:, 2] / focal.min()
    xy, z = mean[:, :2], mean[:, 2:]
    below = (xy - low * z) / torch.sqrt(1 + low * low) + radius[:, None] < 0
    above = (high * z - xy) / torch.sqrt(1 + high * high) + radius[:, None] < 0
    return (mean[:, 2] > camera.near) & ~(below | above).any(1)


RESPONSES = {"2dgs": disk_response, "3dgut": ray_response}


def signal_of(primitive: Primitive, shape: Tensor, by_shape: Tensor, camera: Camera) -> Tensor:
    """Returns the gradient [M, 2] that density control reads, per px, from dL/d(shape).

    2dgs: of the third column of M, times z, without what reaches M through the centre of the circle, as in the authors'
    code. 3dgut: of the mean in camera axes, times z / focal.
    """
    if primitive == "2dgs":
        return by_shape[:, (2, 5)] * shape[:, 8:9]
    whitening = shape[:, :9].reshape(-1, 3, 3) @ intrinsics(camera)
    by_mean = -(whitening.transpose(1, 2) @ by_shape[:, 9:12, None])[:, :, 0]
    return by_mean[:, :2] * shape[:, 13:14] / torch.tensor([camera.fx, camera.fy], dtype=torch.float64)
