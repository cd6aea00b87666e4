"""Declares how a splat file is read where the file itself does not tell. `primitive` and `activated` come from options.

`activated.py` reads activated values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from splatscope.assets.splats.activated import Activated
from splatscope.kernels.errors import InputError
from splatscope.kernels.primitive import FLAT_LOG_SCALE, Primitive
from splatscope.kernels.types import Gaussians


@dataclass(frozen=True)
class ReadAs:
    """Says how the numbers of a splat file are read."""

    activated: Activated = "auto"  # values that the file holds without logarithm and logit
    primitive: Primitive | None = None  # what each row describes; None: as columns and comment tell

    def of_primitive(self, path: Path, gaussians: Gaussians) -> Gaussians:
        """Returns splats of the wanted primitive. Third scales are dropped where disks are wanted, as gsplat writes
        three and reads two. Raises InputError if three scales are wanted and the file has two."""
        wanted = self.primitive
        if wanted is None or wanted == gaussians.primitive:
            return gaussians
        if gaussians.primitive == "2dgs":
            raise InputError(
                f"{path} holds splats with two scales, which are disks: --primitive {wanted} needs three. Leave the "
                "option out, or give --primitive 2dgs."
            )
        log_scales = gaussians.log_scales
        if wanted == "2dgs":
            log_scales = log_scales.copy()
            log_scales[:, 2] = np.float32(FLAT_LOG_SCALE)
        return replace(gaussians, log_scales=log_scales, primitive=wanted)


AS_USUAL = ReadAs()
