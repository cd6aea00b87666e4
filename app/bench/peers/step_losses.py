"""Computes the losses that whole steps of other rasterisers use: `bench step --losses`.

- `ours` is our loss kernels for everybody, so that only the rasterisers differ.
- `fused_ssim` is what most other trainers run: L1 of torch and D-SSIM of the public package `fused_ssim`, with the
  backward pass by autograd. It is given all that makes it fast. Photographs are floats in planes beforehand, which
  trainers often convert at each step. Pictures are copied to planes once for both terms. Padding is `same`, which its
  backward pass takes as it is.

Both weigh the terms alike and pad with zeros, so both give the same number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from splatscope.app.bench.peers.loss import DSSIM_WEIGHT
from splatscope.app.bench.peers.rasterisers import PeerKind, as_planes, find_peers, module_version
from splatscope.kernels.errors import InputError

LossOf = Callable[[Any, Any], tuple[Any, Any]]  # image [H, W, 3], bytes [H, W, 3] -> loss, gradient [H, W, 3]


class StepLoss(Protocol):
    """Computes a loss and hands its gradient to autograd."""

    def target(self, pixels: Any) -> Any:
        """Returns the target of the loss from bytes [H, W, 3] on their device; not timed."""
        ...

    def backward(self, image: Any, target: Any) -> Any:
        """Runs the backward pass from a picture [H, W, 3]; returns the loss, on the device."""
        ...


class GradientLoss:
    """Hands a gradient that comes with its loss to autograd, laid out as the picture is."""

    def __init__(self, loss_of: LossOf) -> None:
        self._loss_of = loss_of

    def target(self, pixels: Any) -> Any:
        return pixels

    def backward(self, image: Any, target: Any) -> Any:
        loss, gradient = self._loss_of(image.detach().contiguous(), target)
        torch.autograd.backward(image, gradient if image.is_contiguous() else as_planes(gradient))
        return loss


class FusedSsimLoss:
    """Computes L1 of torch and D-SSIM of `fused_ssim(picture, photograph)`, planes [1, 3, H, W], by autograd."""

    def __init__(self, fused_ssim: Callable[..., Any]) -> None:
        self._fused_ssim = fused_ssim

    def target(self, pixels: Any) -> Any:
        return _planes(pixels.float() / 255)

    def backward(self, image: Any, target: Any) -> Any:
        planes = _planes(image)
        dssim = 1 - self._fused_ssim(planes, target, padding="same")
        loss = torch.lerp(torch.nn.functional.l1_loss(planes, target), dssim, DSSIM_WEIGHT)
        loss.backward()
        return loss.detach()


def _planes(image: Any) -> Any:
    return image.permute(2, 0, 1)[None].contiguous()


@dataclass(frozen=True)
class LossChoice:
    """Names a loss that steps can be timed with."""

    label: str  # what it adds to a rasteriser's name
    version: str
    make: Callable[[Any, Any], StepLoss]  # takes a camera and our KernelStore


LOSSES = {
    "ours": PeerKind(
        ("splatscope.app.bench.peers.loss",),
        lambda module: [
            LossChoice("", "", lambda camera, kernels: GradientLoss(module.Loss(camera, kernels).value_and_gradient))
        ],
        "this repository",
    ),
    "fused_ssim": PeerKind(
        ("fused_ssim",),
        lambda module: [
            LossChoice("fused-ssim", module_version(module), lambda camera, kernels: FusedSsimLoss(module.fused_ssim))
        ],
        "https://github.com/rahul-goel/fused-ssim",
    ),
}


def find_losses(names: tuple[str, ...]) -> tuple[list[LossChoice], list[str]]:
    """Returns the losses with these names, each once, and a sentence for each one that cannot run here.

    Raises InputError for an unknown name, and without any name.
    """
    if not names:
        raise InputError(f"--losses needs a name: all, {', '.join(LOSSES)}.")
    return find_peers(tuple(dict.fromkeys(names)), LOSSES, "--losses")
