"""Finds unusable splats: numbers of damaged files and of failed runs can be neither drawn nor trained.

Called once when a file is opened (`formats.py`) or converted, or when a run is resumed. Pictures and steps check their
input themselves.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.types import Gaussians
from splatscope.kernels.wording import counted

_LARGEST_LOG_SCALE = np.float32(88.72283)  # the largest whose exponential float32 holds


def usable_rows(gaussians: Gaussians) -> NDArray[np.bool_]:
    """Returns a mask [N] of splats that pictures can show: numbers and scales are finite, and there is a rotation.

    An infinite opacity logit is usable: an opacity of 0 or 1.
    """
    usable = trainable_rows(gaussians)
    doubtful = np.flatnonzero(~usable)
    rows = _rows(gaussians, doubtful)
    usable[doubtful] = _are_finite(rows) & _have_scales(rows) & _have_rotation(rows)
    return usable


def trainable_rows(gaussians: Gaussians) -> NDArray[np.bool_]:
    """Returns a mask [N] of usable splats whose numbers also have finite squares in float32."""
    usable = ~np.isnan(gaussians.logit_opacities) & _have_scales(gaussians) & _have_rotation(gaussians)
    with np.errstate(over="ignore", invalid="ignore"):
        for values in _numbers(gaussians):
            # One pass finds NaN, infinities and numbers so large that their squared error is infinite.
            usable &= np.isfinite(np.einsum("nk,nk->n", values, values))
    return usable


def unusable_in_words(path: Path, gaussians: Gaussians, usable: NDArray[np.bool_]) -> str:
    """Returns a clause on how many splats of a file are unusable, for which reasons, and where the first is.

    Empty if all are usable.
    """
    bad = np.flatnonzero(~usable)
    if not len(bad):
        return ""
    rows = _rows(gaussians, bad)
    are_finite, have_rotation = _are_finite(rows), _have_rotation(rows)
    too_large = int(np.count_nonzero(are_finite & have_rotation & ~trainable_rows(rows)))
    without_rotation = int(np.count_nonzero(are_finite & ~have_rotation))
    reasons = (
        (len(bad) - too_large - without_rotation, "with a number that is not finite"),
        (too_large, "with a number too large for single precision"),
        (without_rotation, "without a rotation"),
    )
    given = [(count, reason) for count, reason in reasons if count]
    why = f": {', '.join(f'{count:,} {reason}' for count, reason in given)}" if len(given) > 1 else f" {given[0][1]}"
    return f"{counted(len(bad), 'splat')} of {path}{why} (the first in row {int(bad[0]):,}, counted from 0)"


def skipped_in_words(skipped: int, gaussians: Gaussians) -> str:
    """Returns a clause on why a picture skipped so many splats; empty if it skipped none."""
    if not skipped:
        return ""
    is_known = not usable_rows(gaussians).all()
    why = "a number not finite or too large, or no rotation" if is_known else "too large to be drawn from this view"
    return f"{skipped:,} skipped: {why}"


def _rows(gaussians: Gaussians, rows: NDArray[np.intp]) -> Gaussians:
    return gaussians.with_arrays({name: array[rows] for name, array in gaussians.arrays.items()})


def _numbers(gaussians: Gaussians) -> tuple[NDArray[np.float32], ...]:
    """Returns all arrays that must be finite, [N, ...] each."""
    harmonics = gaussians.sh.reshape(gaussians.count, 3 * gaussians.sh.shape[1])
    return gaussians.means, gaussians.log_scales, gaussians.quats, harmonics


def _are_finite(gaussians: Gaussians) -> NDArray[np.bool_]:
    finite = [np.isfinite(values).all(axis=1) for values in _numbers(gaussians)]
    return np.logical_and.reduce(finite) & ~np.isnan(gaussians.logit_opacities)


def _have_scales(gaussians: Gaussians) -> NDArray[np.bool_]:
    # Works by columns, here and below, which is several times as fast as reductions along short rows.
    return np.logical_and.reduce([log_scale <= _LARGEST_LOG_SCALE for log_scale in gaussians.log_scales.T])


def _have_rotation(gaussians: Gaussians) -> NDArray[np.bool_]:
    return np.logical_or.reduce([part != 0 for part in gaussians.quats.T])
