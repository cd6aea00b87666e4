"""Reads splats from files that hold scales and opacities themselves, not the logarithms and logits that others expect.

Drawn unchanged, such splats are larger than a unit each and half transparent: a useless picture that may take minutes.
Both kinds of file have the same layout, so only the numbers distinguish them. No training ends with every logit between
0 and 1 and every splat larger than a unit. A file with both signs is therefore read as activated, and a warning names
the option that forbids it. For one sign alone there is only a warning.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Float32, Gaussians

Activated = Literal["auto", "none", "both", "scales", "opacities"]  # which values of a file are activated
ACTIVATED: tuple[str, ...] = get_args(Activated)

_FEWEST = 100  # splats; fewer may all be in a range by chance
_FEWEST_LARGE = 10  # splats; fewer do not make a scene
_SLACK = 1e-4  # how far rounding may move values out of their range
_LARGE = 1 / 20  # of the scene; half of its splats are smaller
_LOOKED_AT = 100_000  # about so many positions measure a scene
_LEAST_OPACITY = (
    2.0**-24
)  # of a splat read as activated, and as far from 1: the next float32, so that logits are finite
_LEAST_SCALE = 1e-37  # world units, likewise


def with_raw_values(path: Path, gaussians: Gaussians, activated: Activated = "auto") -> tuple[Gaussians, str]:
    """Returns splats with log scales and logit opacities, and a sentence on what was done or may be wrong, or "".

    Raises InputError if `activated` names values that cannot be activated.
    """
    if activated not in ACTIVATED:
        raise InputError(f"--activated must be one of {', '.join(ACTIVATED)}, got {activated!r}.")
    if activated != "auto":
        return _read_as(path, gaussians, activated), ""
    opacities, scales = _opacities_look_activated(gaussians), _scales_look_activated(gaussians)
    if opacities and scales and gaussians.count >= _FEWEST:
        return _read_as(path, gaussians, "both"), (
            f"Read as scales and opacities, not as logarithms and logits: every scale in {path} is positive and every "
            "opacity lies between 0 and 1. --activated none reads the file as usual."
        )
    if opacities and not scales and gaussians.count >= _FEWEST:
        return gaussians, (
            f"Every opacity in {path} lies between 0 and 1, as in files written without logits. If the picture looks "
            "like fog, open the file with --activated opacities."
        )
    if scales and gaussians.count >= _FEWEST_LARGE and _are_large(gaussians):
        option = "both" if opacities else "scales"
        return gaussians, (
            f"Every scale in {path} is positive and most splats are large for the scene, as in files written without "
            f"logarithms. If splats cover the picture, open the file with --activated {option}."
        )
    return gaussians, ""


def _opacities_look_activated(gaussians: Gaussians) -> bool:
    low, high = _range(gaussians.logit_opacities)
    return low >= -_SLACK and 0 < high <= 1 + _SLACK


def _scales_look_activated(gaussians: Gaussians) -> bool:
    low, high = _range(_stored_scales(gaussians))
    return low >= -_SLACK and high > 0


def _are_large(gaussians: Gaussians) -> bool:
    """Returns True if the scales, read as logarithms, make the median splat a large part of the scene."""
    sample = gaussians.means[:: 1 + gaussians.count // _LOOKED_AT].astype(np.float64)
    sample = sample[np.isfinite(sample).all(axis=1)]
    if not len(sample):
        return False
    extent = np.linalg.norm(np.subtract(*np.percentile(sample, (95, 5), axis=0)))
    with np.errstate(over="ignore"):
        return bool(np.exp(np.nanmedian(_stored_scales(gaussians).astype(np.float64))) > _LARGE * extent)


def _stored_scales(gaussians: Gaussians) -> Float32:
    """Returns the columns of scales that the file has: a disk's third is a constant of ours."""
    return gaussians.log_scales[:, : 2 if gaussians.primitive == "2dgs" else 3]


def _read_as(path: Path, gaussians: Gaussians, activated: Activated) -> Gaussians:
    if activated in ("both", "scales"):
        stored = _stored_scales(gaussians)
        low, _ = _range(stored)
        if low < -_SLACK:
            raise InputError(
                f"{path} holds scales down to {low:g}, which are logarithms and not scales: --activated {activated} "
                "does not fit it. Leave the option out."
            )
        log_scales = gaussians.log_scales.copy()
        log_scales[:, : stored.shape[1]] = np.log(np.maximum(stored, np.float32(_LEAST_SCALE)))
        gaussians = replace(gaussians, log_scales=log_scales)
    if activated in ("both", "opacities"):
        low, high = _range(gaussians.logit_opacities)
        if low < -_SLACK or high > 1 + _SLACK:
            raise InputError(
                f"{path} holds opacities from {low:g} to {high:g}, which are logits and not within 0 to 1: --activated "
                f"{activated} does not fit it. Leave the option out."
            )
        gaussians = replace(gaussians, logit_opacities=_logits(gaussians.logit_opacities))
    return gaussians


def _logits(opacities: Float32) -> Float32:
    inside = np.clip(opacities.astype(np.float64), _LEAST_OPACITY, 1 - _LEAST_OPACITY)
    return np.log(inside / (1 - inside)).astype(np.float32)


def _range(values: Float32) -> tuple[float, float]:
    """Returns the least and the greatest value, without NaN unless there is nothing else."""
    return float(np.fmin.reduce(values, axis=None)), float(np.fmax.reduce(values, axis=None))
