"""Finds a number that is not finite before it reaches the splats.

Each step checks the loss and every gradient, so Adam never writes a NaN and the splats of the last iteration are
whole. Read `trainer.py` for what happens then.
"""

from __future__ import annotations

import math

import torch

from splatscope.kernels.types import Gradients
from splatscope.kernels.wording import counted
from splatscope.training.errors import NotFiniteError

PARAMETERS = ("means", "log_scales", "quats", "logit_opacities", "sh")


def check_loss(loss: float, view: str, iteration: int) -> None:
    """Raises NotFiniteError unless `loss` is finite."""
    if not math.isfinite(loss):
        raise NotFiniteError("loss", view, iteration)


def check_gradients(gradients: Gradients, view: str, iteration: int) -> None:
    """Raises NotFiniteError that names the first parameter with a gradient that is not finite, and its first row."""
    for name in PARAMETERS:
        gradient = torch.as_tensor(getattr(gradients, name))
        # A sum is finite if its terms are, but for an overflow; only then are the terms looked at.
        if math.isfinite(gradient.sum().item()):
            continue
        bad = (~gradient.isfinite()).nonzero()
        if len(bad):
            rows = len(bad[:, 0].unique())
            raise NotFiniteError(
                f"gradient of {name}", view, iteration, f" for {counted(rows, 'splat')}, first {int(bad[0, 0])}"
            )
