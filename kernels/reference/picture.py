"""Defines the picture: float64 torch, no tricks, differentiated by autograd.

Read top to bottom: `render` names the stages (project, depth order, tile lists, colour, blend). Each stage is one
function that returns its result, so that faster backends can be compared stage by stage. Speed is not a goal: a few
thousand splats at 320x240 take seconds.

Read next: `backend.py` (wraps the stages in the protocol), `tiles.py` (tile lists), `tilted.py` (disks and Gaussians
along rays), `training.py` (loss and optimiser).

Letters: N splats of the scene, M splats of a stage in the order of that stage, I (splat, tile) pairs, P pixels, n
splats of one tile. Lengths in world and view space are in world units; everything named `_px` is in pixels. Sources:
Kerbl, Kopanas et al. 2023 (splatting, the two thresholds); Zwicker et al. 2002 (the projection).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from splatscope.kernels.constants import (
    ALPHA_CAP,
    ALPHA_CAPS,
    ALPHA_MIN,
    COMPENSATION_MIN,
    DILATION,
    JACOBIAN_MARGIN,
    MIP_DILATION,
    SH_C0,
    SH_C1,
    SH_C2,
    SH_C3,
    SH_COEFFICIENTS,
    SPHERE_SIGMAS,
    TILE,
    TRANSMITTANCE_STOP,
)
from splatscope.kernels.policy import BlendPolicy, Policy
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.reference import tilted
from splatscope.kernels.reference.tiles import TileLists, keep_splats, list_tiles
from splatscope.kernels.types import GAUSSIAN_ARRAYS, Camera, Gaussians, RenderSettings

# Number of (splat, pixel) pairs of a tile that are held at once. Limits memory; does not change the result.
PAIRS_AT_ONCE = 2_000_000
Float64 = NDArray[np.float64]
DEFAULT_SETTINGS, DEFAULT_POLICY = RenderSettings(), Policy()


class StageClock:
    """Measures the milliseconds of each stage, from one call of `lap` to the next."""

    def __init__(self) -> None:
        self.stage_ms: dict[str, float] = {}
        self._last = perf_counter()

    def lap(self, stage: str) -> None:
        now = perf_counter()
        self.stage_ms[stage] = 1000 * (now - self._last)
        self._last = now


@dataclass(frozen=True, eq=False)
class Parameters:
    """Holds raw parameters as float64 tensors; shapes as in `Gaussians`."""

    means: Tensor  # [N, 3]
    log_scales: Tensor  # [N, 3]
    quats: Tensor  # [N, 4]
    logit_opacities: Tensor  # [N]
    sh: Tensor  # [N, K, 3]
    primitive: Primitive = field(default="3dgs", kw_only=True)

    @staticmethod
    def of(gaussians: Gaussians, differentiable: bool = False) -> Parameters:
        """Returns a copy of a scene; `differentiable` makes every tensor a leaf of the autograd graph."""
        arrays = gaussians.arrays.values()
        tensors = (torch.tensor(a, dtype=torch.float64, requires_grad=differentiable) for a in arrays)
        return Parameters(*tensors, primitive=gaussians.primitive)

    def tensors(self) -> tuple[Tensor, ...]:
        """Returns all tensors, in the order of their declaration."""
        return tuple(getattr(self, name) for name in GAUSSIAN_ARRAYS)

    def rows(self, index: Tensor) -> Parameters:
        """Returns the splats with numbers `index` [M]."""
        return Parameters(*(t[index] for t in self.tensors()), primitive=self.primitive)


@dataclass(frozen=True, eq=False)
class Projected:
    """Holds splats on the image plane: in scene order, and nearest first once `depth_order` is applied."""

    index: Tensor  # [M] row in the scene
    mean_px: Tensor  # [M, 2]
    covariance: Tensor  # [M, 3] xx, xy, yy in px^2, dilation included
    determinant: Tensor  # [M] xx yy - xy^2, px^4
    depth: Tensor  # [M] camera z, world units
    opacity: Tensor  # [M]
    shape: Tensor  # [M, S] further numbers a pixel needs (`tilted.shape_of`); S is 0 for flattened Gaussians
    outline: Tensor  # [M, 7] the ellipse that decides tiles (`tilted.outline_of`) and `area`; [M, 0] for flattened ones

    def rows(self, index: Tensor) -> Projected:
        """Returns the splats with numbers `index` [m], in that order."""
        return Projected(*(getattr(self, f.name)[index] for f in fields(self)))

    def footprint(self, bounds: str = "row_span") -> tuple[Float64, Float64, Float64, Float64]:
        """Returns the arrays from which tile lists are made, without gradients."""
        center, covariance, determinant = self.mean_px, self.covariance, self.determinant
        if self.outline.shape[1] and bounds != "circle3s":
            center, covariance, determinant = self.outline[:, :2], self.outline[:, 2:5], self.outline[:, 5]
        opacity = self.opacity.detach().numpy()
        return center.detach().numpy(), covariance.detach().numpy(), determinant.detach().numpy(), opacity

    def area(self) -> Tensor:
        """Returns the determinant [M] of the covariance without widening, px^4. Only disks and rays have it."""
        return self.outline[:, 6]

    @property
    def conic(self) -> Tensor:
        """Returns [M, 3] A, B, C of A dx^2 + 2 B dx dy + C dy^2: the inverse of the covariance."""
        xx, xy, yy = self.covariance.unbind(1)
        return torch.stack((yy, -xy, xx), 1) / self.determinant[:, None]


@dataclass(frozen=True, eq=False)
class Blended:
    """Holds the arrays of a finished picture."""

    image: Tensor  # [H, W, 3]
    transmittance: Tensor  # [H, W]
    depth: Tensor  # [H, W] NaN where nothing was blended


@dataclass(frozen=True, eq=False)
class Stages:
    """Holds a picture and the results of all stages; each array is in the order of `projected`."""

    projected: Projected  # splats that reach a tile, in depth order
    colors: Tensor  # [M, 3]
    lists: TileLists
    blended: Blended
    skipped: int
    stage_ms: dict[str, float]
    primitive: Primitive


def render(parameters: Parameters, camera: Camera, settings: RenderSettings, policy: Policy) -> Stages:
    """Draws the picture. Drops splats that cannot be used and counts them in `skipped`; raises nothing."""
    clock = StageClock()
    projected, skipped = project(parameters, camera, policy.project.filter)
    clock.lap("project")
    projected = projected.rows(depth_order(projected.depth))
    clock.lap("sort")
    lists = list_tiles(*projected.footprint(policy.bin.bounds), camera.tiles, policy.bin.bounds)
    clock.lap("bin")

    # Colours are computed only for listed splats. Splats whose colour is not finite are dropped too.
    listed = torch.from_numpy(np.bincount(lists.splat, minlength=len(projected.index)) > 0)
    with torch.no_grad():
        radiance = evaluate_sh(parameters.rows(projected.index), camera, settings.sh_degree)
        finite = _finite(radiance)
    keep = listed & finite
    skipped += int((listed & ~finite).sum())
    projected, lists = projected.rows(keep.nonzero()[:, 0]), keep_splats(lists, keep.numpy())
    colors = shade(parameters.rows(projected.index), camera, settings.sh_degree)
    clock.lap("color")

    rule = BlendRule.of(policy.blend, parameters.primitive)
    blended = blend(projected, colors, lists, camera, settings.background, rule)
    clock.lap("blend")
    return Stages(projected, colors, lists, blended, skipped, clock.stage_ms, parameters.primitive)


# ------------------------------------------------------------------------------------------- project


def project(parameters: Parameters, camera: Camera, filter: str = "plain") -> tuple[Projected, int]:
    """Returns the splats in front of the near plane that can reach 1/255, in scene order, and the unusable splats'
    number.

    Unusable splats are counted if their place or size is not finite, or if place and size would bring them near the
    image. Rows to keep are chosen without gradients and evaluated again with gradients, so that a value that is not
    finite cannot leak into any gradient.
    """
    with torch.no_grad():
        everything = _to_image_plane(parameters, torch.arange(len(parameters.means)), camera, filter)
        usable = _is_usable(parameters)
        seen = usable & (everything.depth > camera.near) & (everything.opacity >= ALPHA_MIN)
        if parameters.primitive != "3dgs":
            seen &= everything.area() > tilted.LEAST_AREA
        finite = _finite(everything.mean_px) & _finite(everything.covariance)
        counted = ~_has_place(parameters) | _may_be_seen(parameters, everything, camera)
        skipped = int((counted & ~usable).sum() + (seen & ~finite).sum())
        index = (seen & finite).nonzero()[:, 0]
    return _to_image_plane(parameters.rows(index), index, camera, filter), skipped


def _may_be_seen(parameters: Parameters, projected: Projected, camera: Camera) -> Tensor:
    """Returns [N]: false for splats behind the near plane, and for splats whose sphere lies outside the tiles."""
    if parameters.primitive != "3dgs":
        in_view = parameters.means @ torch.from_numpy(camera.matrix[:3, :3]).T + torch.from_numpy(camera.matrix[:3, 3])
        return tilted.may_be_seen(in_view, parameters.log_scales, camera)
    focal = torch.tensor([camera.fx, camera.fy], dtype=torch.float64)
    ratio = (projected.mean_px - torch.tensor([camera.cx, camera.cy], dtype=torch.float64)) / focal
    spread = 1 + held_ratio(ratio, focal, camera).square().sum(1)
    sigma = focal.max() / projected.depth * torch.exp(parameters.log_scales.max(1).values)
    reach = (SPHERE_SIGMAS * torch.sqrt(sigma.square() * spread + DILATION) + 1)[:, None]
    far_corner = TILE * torch.tensor([camera.tiles[1], camera.tiles[0]], dtype=torch.float64)
    outside = (projected.mean_px + reach < 0) | (projected.mean_px - reach > far_corner)
    return (projected.depth > camera.near) & ~outside.any(1)


def _to_image_plane(parameters: Parameters, index: Tensor, camera: Camera, filter: str) -> Projected:
    """Projects splats: the mean by perspective, the covariance by its first-order approximation (EWA), which the filter
    widens.
    """
    rotation = torch.from_numpy(camera.matrix[:3, :3])
    translation = torch.from_numpy(camera.matrix[:3, 3])
    focal = torch.tensor([camera.fx, camera.fy], dtype=torch.float64)
    center = torch.tensor([camera.cx, camera.cy], dtype=torch.float64)

    mean_in_view = parameters.means @ rotation.T + translation  # [M, 3]
    depth = mean_in_view[:, 2]
    ratio = mean_in_view[:, :2] / depth[:, None]  # [M, 2] x/z, y/z
    is_flat = parameters.primitive == "3dgs"
    jacobian = _jacobian(ratio, held_ratio(ratio, focal, camera) if is_flat else ratio, depth, focal)  # [M, 2, 3]
    scales = torch.exp(parameters.log_scales)
    if parameters.primitive == "2dgs":
        scales = scales * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    turned = rotation @ rotation_matrices(parameters.quats)  # [M, 3, 3]
    axes = jacobian @ turned * scales[:, None, :]  # [M, 2, 3] px
    row_x, row_y = axes[:, 0], axes[:, 1]

    xx, xy, yy = (row_x * row_x).sum(1), (row_x * row_y).sum(1), (row_y * row_y).sum(1)
    # xx yy - xy^2 = |row_x x row_y|^2 (Lagrange): nothing cancels, so it is positive even for the thinnest needle.
    area = torch.linalg.cross(row_x, row_y).square().sum(1)
    dilation = MIP_DILATION if filter == "mip" else DILATION
    determinant = area + dilation * (xx + yy) + dilation * dilation
    covariance = torch.stack((xx + dilation, xy, yy + dilation), 1)
    opacity = torch.sigmoid(parameters.logit_opacities)
    if parameters.primitive != "3dgs":
        given = parameters.primitive, mean_in_view, parameters.log_scales, turned, camera
        with torch.no_grad():
            thin, mean_px = torch.stack((xx, xy, yy), 1), ratio * focal + center
            outline = tilted.outline_of(parameters.primitive, mean_px, thin, tilted.tilt_of(*given), opacity, camera)
            outline = torch.cat((outline, area[:, None]), 1)
        return Projected(
            index, ratio * focal + center, covariance, determinant, depth, opacity, tilted.shape_of(*given), outline
        )
    if filter != "plain":
        # A splat loses in opacity what it gains in area (Yu et al. 2024, "Mip-Splatting").
        opacity = opacity * torch.sqrt(torch.clamp(area / determinant, min=COMPENSATION_MIN * COMPENSATION_MIN))
    nothing = torch.zeros((len(index), 0), dtype=torch.float64)
    return Projected(index, ratio * focal + center, covariance, determinant, depth, opacity, nothing, nothing)


def _jacobian(ratio: Tensor, held: Tensor, depth: Tensor, focal: Tensor) -> Tensor:
    """Returns d(pixel) / d(mean_in_view), [M, 2, 3].

    Far outside the image the linear approximation explodes. Therefore this matrix, and nothing else, uses x/z and y/z
    clamped to the image plus a margin (`held`) for flattened Gaussians. Outside that region the clamp's derivative is
    zero.
    """
    diagonal = torch.diag_embed(focal / depth[:, None])  # [M, 2, 2]
    return torch.cat((diagonal, (-focal * held / depth[:, None])[:, :, None]), 2)


def held_ratio(ratio: Tensor, focal: Tensor, camera: Camera) -> Tensor:
    """Returns x/z and y/z [M, 2] clamped to the image plus a margin."""
    size = torch.tensor([camera.width, camera.height], dtype=torch.float64)
    center = torch.tensor([camera.cx, camera.cy], dtype=torch.float64)
    margin = JACOBIAN_MARGIN * 0.5 * size / focal
    return torch.clamp(ratio, -center / focal - margin, (size - center) / focal + margin)


def rotation_matrices(quats: Tensor) -> Tensor:
    """Returns [M, 3, 3] from (w, x, y, z) of any length but zero."""
    w, x, y, z = (quats / quats.norm(dim=1, keepdim=True)).unbind(1)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


def _is_usable(parameters: Parameters) -> Tensor:
    """Returns [N]: false for splats with unusable values. An infinite opacity logit is usable: an opacity of 0 or 1."""
    has_rotation = _finite(parameters.quats) & (parameters.quats != 0).any(1)
    return _has_place(parameters) & has_rotation & ~parameters.logit_opacities.isnan()


def _has_place(parameters: Parameters) -> Tensor:
    """Returns [N]: true for splats whose position and scales are finite."""
    return _finite(parameters.means) & _finite(parameters.log_scales) & _finite(torch.exp(parameters.log_scales))


def _finite(values: Tensor) -> Tensor:
    """Returns [M]: true if all values of the row are finite in single precision, in which results are stored."""
    return values.float().isfinite().flatten(1).all(1)


def depth_order(depth: Tensor) -> Tensor:
    """Returns positions [M] by increasing camera z; equal depths keep the order of the scene."""
    return torch.argsort(depth.detach(), stable=True)


# -------------------------------------------------------------------------------------------- colour


def shade(parameters: Parameters, camera: Camera, degree: int) -> Tensor:
    """Returns the colours [M, 3] seen from the camera, clamped at 0. A clamped channel has no gradient."""
    return torch.clamp(evaluate_sh(parameters, camera, degree), min=0.0)


def evaluate_sh(parameters: Parameters, camera: Camera, degree: int) -> Tensor:
    """Returns [M, 3]: 0.5 + the harmonics in the direction of each splat, up to `degree` or the scene's highest. May be
    negative."""
    offset = parameters.means - torch.from_numpy(camera.position)
    basis = sh_basis(offset / offset.norm(dim=1, keepdim=True))
    used = (min(degree, SH_COEFFICIENTS[parameters.sh.shape[1]]) + 1) ** 2
    return 0.5 + (basis[:, :used, None] * parameters.sh[:, :used]).sum(1)


def sh_basis(direction: Tensor) -> Tensor:
    """Returns the real spherical harmonics [M, 16] of degree 0 to 3 for unit vectors [M, 3]."""
    x, y, z = direction.unbind(1)
    xx, yy, zz = x * x, y * y, z * z
    rows = (
        SH_C0 * torch.ones_like(x),
        *(SH_C1 * v for v in (-y, z, -x)),
        *(c * v for c, v in zip(SH_C2, (x * y, y * z, 2 * zz - xx - yy, x * z, xx - yy), strict=True)),
        SH_C3[0] * y * (3 * xx - yy),
        SH_C3[1] * x * y * z,
        SH_C3[2] * y * (4 * zz - xx - yy),
        SH_C3[3] * z * (2 * zz - 3 * xx - 3 * yy),
        SH_C3[4] * x * (4 * zz - xx - yy),
        SH_C3[5] * z * (xx - yy),
        SH_C3[6] * x * (xx - 3 * yy),
    )
    return torch.stack(rows, 1)


# --------------------------------------------------------------------------------------------- blend


@dataclass(frozen=True)
class BlendRule:
    """Holds the rules of blending: the largest alpha, whether the stopping splat is blended, the primitive."""

    alpha_cap: float = ALPHA_CAP
    is_inclusive: bool = False
    primitive: Primitive = "3dgs"

    @staticmethod
    def of(policy: BlendPolicy, primitive: Primitive) -> BlendRule:
        """Reads the rule from the toggles of a policy."""
        return BlendRule(ALPHA_CAPS[policy.alpha_cap], policy.stop == "inclusive", primitive)


DEFAULT_RULE = BlendRule()


def blend(
    projected: Projected,
    colors: Tensor,
    lists: TileLists,
    camera: Camera,
    background: tuple[float, float, float],
    rule: BlendRule = DEFAULT_RULE,
) -> Blended:
    """Blends each tile's list front to back over the background."""
    height, width = camera.height, camera.width
    records = records_of(projected, colors)
    per_tile = records[torch.from_numpy(lists.splat)].split(lists.counts.ravel().tolist())
    pixel_numbers = torch.arange(height * width).reshape(height, width)

    places, results = [pixel_numbers[:0, 0]], [records[:0, :6]]  # empty, but part of the autograd graph
    for tile in lists.counts.ravel().nonzero()[0]:
        y, x = (int(v) * TILE for v in divmod(tile, lists.counts.shape[1]))
        pixels = pixel_numbers[y : y + TILE, x : x + TILE].flatten()
        for part in pixels.split(max(1, PAIRS_AT_ONCE // len(per_tile[tile]))):
            centers = torch.stack((part % width, part // width), 1).double() + 0.5
            places.append(part)
            # The backward pass computes a tile's values again, so that memory is needed for one tile only.
            results.append(checkpoint(blend_pixels, per_tile[tile], centers, rule, use_reentrant=False))

    untouched = torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64).expand(height * width, 6)
    pixels = untouched.index_copy(0, torch.cat(places), torch.cat(results)).reshape(height, width, 6)
    transmittance, weight, weighted_depth = pixels[..., 3], pixels[..., 4], pixels[..., 5]
    image = pixels[..., :3] + transmittance[..., None] * torch.tensor(background, dtype=torch.float64)
    return Blended(image, transmittance, weighted_depth / weight)


def records_of(projected: Projected, colors: Tensor) -> Tensor:
    """Returns the numbers of each splat that pixels need, [M, 11 + S]."""
    columns = (projected.mean_px, projected.covariance, projected.determinant[:, None], projected.opacity[:, None])
    return torch.cat((*columns, projected.depth[:, None], colors, projected.shape), 1)


def blend_pixels(records: Tensor, centers: Tensor, rule: BlendRule = DEFAULT_RULE) -> Tensor:
    """Returns [P, 6]: sum of weight times colour, transmittance, sum of weight, sum of weight times depth.

    `records` [n, 11 + S] holds the splats of a tile, nearest first; `centers` [P, 2] holds pixel centres in px.
    """
    weights, transmittance = blend_weights(records, centers, rule)  # [n, P], [P]
    depth, colors = splat_depth(records, centers, rule.primitive), records[:, 8:11]
    return torch.cat(
        (weights.T @ colors, transmittance[:, None], weights.sum(0)[:, None], (weights * depth).sum(0)[:, None]), 1
    )


def blend_weights(records: Tensor, centers: Tensor, rule: BlendRule = DEFAULT_RULE) -> tuple[Tensor, Tensor]:
    """Returns the weight of each splat at each pixel, [n, P], and the transmittance left for the background, [P].

    A splat whose alpha is below 1/255 is skipped. A pixel stops before the splat that would bring its transmittance
    under 1e-4, or, with an inclusive stop, after that splat. Nothing is blended behind the stop.
    """
    alpha = splat_alpha(records, centers, rule.alpha_cap, rule.primitive)
    alpha = torch.where(alpha >= ALPHA_MIN, alpha, 0.0)
    going_on = torch.cumprod(1 - alpha.detach(), 0) >= TRANSMITTANCE_STOP  # never true again once false
    if rule.is_inclusive:
        going_on = torch.cat((torch.ones_like(going_on[:1]), going_on[:-1]), 0)
    alpha = torch.where(going_on, alpha, 0.0)
    after = torch.cumprod(1 - alpha, 0)
    before = torch.cat((torch.ones_like(after[:1]), after[:-1]), 0)
    return alpha * before, after[-1]


def splat_alpha(records: Tensor, centers: Tensor, cap: float = ALPHA_CAP, primitive: Primitive = "3dgs") -> Tensor:
    """Returns alpha [n, P] = min(cap, opacity exp(-q / 2)). The gradient ignores the cap.

    q = d^T covariance^-1 d is computed as the y marginal plus x given y, which stays exact for needles. For disks and
    Gaussians along rays, `tilted.py` computes q.
    """
    mean_x, mean_y, _, xy, yy, determinant, opacity = (records[:, i, None] for i in range(7))
    if primitive == "3dgs":
        dx, dy = centers[:, 0] - mean_x, centers[:, 1] - mean_y
        q = dy * dy / yy + (dx - dy * xy / yy) ** 2 * yy / determinant
        alpha = opacity * torch.exp(-0.5 * q)
    else:
        q, _, is_met = tilted.RESPONSES[primitive](records[:, 11:], centers)
        alpha = torch.where(is_met, opacity * torch.exp(-0.5 * q), 0.0)
    return alpha + (alpha.clamp(max=cap) - alpha).detach()


def splat_depth(records: Tensor, centers: Tensor, primitive: Primitive) -> Tensor:
    """Returns camera z of each splat at each pixel, [n, P], or of its centre for flattened Gaussians, [n, 1]."""
    if primitive == "3dgs":
        return records[:, 7:8]
    _, depth, is_met = tilted.RESPONSES[primitive](records[:, 11:], centers)
    return torch.where(is_met, depth, 0.0)
