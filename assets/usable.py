"""Which splats are of any use: numbers of damaged files, and of runs that went wrong, cannot be drawn or trained.

Asked once of a file that is opened (`formats.py`), converted, or that a run goes on from; pictures and steps look for
themselves at what they are given.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.types import Gaussians
from splatscope.kernels.words import counted

_LARGEST_LOG_SCALE = np.float32(88.72283)  # its exponential is the last that float32 holds


def usable_rows(gaussians: Gaussians) -> NDArray[np.bool_]:
    """Mask [N] of splats whose numbers, their squares and their scales are finite in float32, and that have a rotation.

    An infinite opacity logit is usable: an opacity of 0 or 1.
    """
    usable = ~np.isnan(gaussians.logit_opacities)
    harmonics = gaussians.sh.reshape(gaussians.count, -1)
    for values in (gaussians.means, gaussians.log_scales, gaussians.quats, harmonics):
        # One pass finds NaN, infinities and what is so large that a squared error of it is infinite.
        usable &= np.isfinite(np.einsum("nk,nk->n", values, values))
    # By columns: several times as fast as reductions along such short rows.
    for log_scale in gaussians.log_scales.T:
        usable &= log_scale <= _LARGEST_LOG_SCALE
    return usable & np.logical_or.reduce([part != 0 for part in gaussians.quats.T])


def unusable_in_words(path: Path, usable: NDArray[np.bool_]) -> str:
    """How many splats of that file are not usable, why, and where the first is; a clause, empty if all are usable."""
    bad = len(usable) - int(np.count_nonzero(usable))
    if not bad:
        return ""
    what = f"{counted(bad, 'splat')} of {path} {'has' if bad == 1 else 'have'} a number that is not finite or too large"
    return f"{what}, or no rotation (the first in row {int(usable.argmin()):,}, counted from 0)"
