"""Compares pictures and gradients of two backends, tightly everywhere except where a threshold decides.

Two right renderers may disagree at a pixel where rounding decides whether a splat is above 1/255, whether
the pixel stops at 1e-4, or whether a tile lists a splat. `settled_pixels` finds the pixels where nothing
is that close; there the tolerance is tight and gradients can be compared. Elsewhere flips are counted and
their size is bounded. `kernels/test_comparison.py` shows that wrong pictures are rejected.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from splatscope.kernels.constants import ALPHA_CAP, ALPHA_MIN, TRANSMITTANCE_STOP
from splatscope.kernels.reference import picture
from splatscope.kernels.types import Camera, Gradients

PARAMETERS = ("means", "log_scales", "quats", "logit_opacities", "sh", "means2d")


def assert_close_with_boundary_band(
    actual: ArrayLike,  # [H, W] or [H, W, C]
    expected: ArrayLike,
    *,
    tight: float,  # allowed difference of a pixel that did not flip
    flip_size: float,  # allowed difference of a pixel that did
    flip_fraction: float = 1e-4,  # share of all pixels that may flip; at least one may unless 0
    band: NDArray[np.bool_] | None = None,  # [H, W] where a flip may be; None is everywhere
    what: str = "image",
) -> None:
    """Fails unless all pixels agree within `tight`, a few bounded ones in the band aside.

    NaN agrees with NaN only; a pixel that is NaN on one side alone is a flip of no size.
    """
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    lone_nan = np.isnan(actual) != np.isnan(expected)
    both = ~(np.isnan(actual) | np.isnan(expected))
    difference = np.zeros(actual.shape)
    difference[both] = np.abs(actual[both] - expected[both])
    flipped = lone_nan | ~(difference <= tight)
    if actual.ndim == 3:
        flipped, difference = flipped.any(2), difference.max(2)

    allowed = int(np.ceil(flip_fraction * flipped.size))
    if band is not None:
        outside = flipped & ~band
        assert not outside.any(), (
            f"{what}: {outside.sum()} pixels differ by more than {tight} away from any threshold, "
            f"by {difference[outside].max():.3g} at most; first at (row, column) {np.argwhere(outside)[0].tolist()}"
        )
    assert flipped.sum() <= allowed, (
        f"{what}: {flipped.sum()} pixels differ by more than {tight}, allowed {allowed}; "
        f"worst {difference.max():.3g}, first at (row, column) {np.argwhere(flipped)[0].tolist()}"
    )
    assert difference.max(initial=0.0) <= flip_size, f"{what}: differs by {difference.max():.3g}, allowed {flip_size}"


def assert_gradients_close(
    actual: Gradients,
    expected: Gradients,
    *,
    relative: float,  # |actual - expected| / |expected| of each whole tensor
    row_relative: float,  # the same of each splat that matters
    row_floor: float = 1e-3,  # a splat matters above this share of the largest row
    cosine: float = 1 - 1e-6,
) -> None:
    """Fails unless each tensor agrees as a whole and splat by splat, and unseen splats have no gradient."""
    for name in PARAMETERS:
        a, e = (np.asarray(getattr(g, name), np.float64) for g in (actual, expected))
        assert a.shape == e.shape, f"{name}: shape {a.shape}, expected {e.shape}"
        assert np.isfinite(a).all(), f"d{name} is not finite"
        assert not a[~np.asarray(actual.visible)].any(), f"d{name}: a splat that is not visible has a gradient"
        a, e = a.reshape(len(a), -1), e.reshape(len(e), -1)
        size = np.linalg.norm(e)
        if size == 0:
            assert not a.any(), f"d{name} must be zero"
            continue
        error = np.linalg.norm(a - e) / size
        assert error <= relative, f"d{name}: relative error {error:.3g}, allowed {relative}"
        similarity = (a * e).sum() / (np.linalg.norm(a) * size)
        assert similarity >= cosine, f"d{name}: cosine {similarity:.9f}, at least {cosine} expected"
        rows = np.linalg.norm(e, axis=1)
        row_error = np.linalg.norm(a - e, axis=1) / np.maximum(rows, row_floor * rows.max())
        worst = int(row_error.argmax())
        assert row_error[worst] <= row_relative, (
            f"d{name}: splat {worst} is off by {row_error[worst]:.3g}, allowed {row_relative}: "
            f"{a[worst][:4]} where {e[worst][:4]} was expected"
        )


def settled_pixels(
    stages: picture.Stages,
    camera: Camera,
    alpha_margin: float = 1e-4,
    stop_margin: float = 2e-3,
    cap: float = ALPHA_CAP,
) -> NDArray[np.bool_]:
    """Returns [H, W] true where no alpha is within a relative margin of 1/255 and no transmittance of 1e-4.

    Every visible splat is tried at every pixel, listed there or not: another backend's lists may differ.
    """
    records = picture.records_of(stages.projected, stages.colors).detach()
    settled = torch.ones(camera.height * camera.width, dtype=torch.bool)
    for pixels in torch.arange(len(settled)).split(4096):
        centers = torch.stack((pixels % camera.width, pixels // camera.width), 1).double() + 0.5
        alpha = picture.splat_alpha(records, centers, cap, stages.primitive)
        near_cutoff = (alpha / ALPHA_MIN - 1).abs() < alpha_margin
        after = torch.cumprod(1 - torch.where(alpha >= ALPHA_MIN, alpha, 0.0), 0)
        near_stop = (after / TRANSMITTANCE_STOP - 1).abs() < stop_margin
        settled[pixels] = ~(near_cutoff | near_stop).any(0)
    return settled.reshape(camera.height, camera.width).numpy()


def rearranged(gradients: Gradients, order: NDArray[np.intp]) -> Gradients:
    """Returns the gradients of the splats in another order."""
    arrays = {f.name: getattr(gradients, f.name)[order] for f in fields(Gradients) if f.name != "stage_ms"}
    return Gradients(**arrays)
