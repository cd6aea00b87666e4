"""Computes our loss for pictures that another rasteriser drew: L1 and D-SSIM, zero padding, as training weighs them.

With the same loss for all, a comparison of rasterisers does not compare losses. It works by itself and behind
torch.autograd.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from splatscope.kernels.cuda.launch.arguments import struct_layout
from splatscope.kernels.cuda.launch.launcher import Launcher
from splatscope.kernels.cuda.plan.passes import frame_dtype, source
from splatscope.kernels.cuda.renderer import KernelStore
from splatscope.kernels.cuda.step.loss import loss_grid, loss_kernels, pack_loss
from splatscope.kernels.types import Camera

DSSIM_WEIGHT = 0.2


class Loss:
    """Launches our loss kernels behind torch.autograd, for pictures of one size over one background."""

    def __init__(self, camera: Camera, kernels: KernelStore) -> None:
        step = source("step.cuh").text
        kinds = {name: struct_layout(step, name).dtype for name in ("StepInputs", "StepState", "StepResult")}
        self._kernels, self._launcher = kernels("loss.cuh", loss_kernels(False, False)), Launcher()
        self._grid = loss_grid(camera.width, camera.height)
        fields: Any = kinds["StepResult"].fields
        frame, self._host_inputs = np.zeros(1, frame_dtype()), np.zeros(1, kinds["StepInputs"])
        frame["width"], frame["height"] = camera.width, camera.height
        self._host_inputs["dssim_weight"] = DSSIM_WEIGHT
        self._frame, self._state = _bytes(frame), _bytes(np.zeros(1, kinds["StepState"]))
        self._results = _bytes(np.zeros(64, kinds["StepResult"]))
        self._derivatives = torch.empty(self._grid.derivatives, device="cuda")
        self._sums = torch.empty((self._grid.blocks, 2), device="cuda")
        self._gradient = torch.empty((camera.height, camera.width, 3), device="cuda")
        self._loss_at = fields["loss"][1]
        self._inputs: dict[int, Tensor] = {}  # inputs by the address of their photograph

    def __call__(self, image: Tensor, photograph: Tensor) -> Tensor:
        """Returns the loss of a picture [H, W, 3] against bytes [H, W, 3]."""
        return _LossFunction.apply(image, photograph, self)  # pyright: ignore[reportReturnType]

    def value_and_gradient(self, image: Tensor, photograph: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the loss and its gradient [H, W, 3], which the next call overwrites; `image` is contiguous."""
        at = photograph.data_ptr()
        if at not in self._inputs:
            self._host_inputs["target"] = at
            self._inputs[at] = _bytes(self._host_inputs)
        shared = {"frame": self._frame, "inputs": self._inputs[at], "image": image, "derivatives": self._derivatives}
        shared["sums"] = self._sums
        own = {"state": self._state, "results": self._results, "reach": None, "gradient": self._gradient}
        for launch in pack_loss(self._kernels, (False, False), self._grid, shared, own):
            launch.run(self._launcher)
        loss = self._results[self._loss_at : self._loss_at + 4].view(torch.float32)[0]
        return loss.clone(), self._gradient


class _LossFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, photograph: Tensor, loss: Loss) -> Tensor:  # pyright: ignore
        value, ctx.gradient = loss.value_and_gradient(image, photograph)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        return ctx.gradient * upstream, None, None


def _bytes(record: np.ndarray) -> Tensor:
    return torch.from_numpy(record.view(np.uint8).copy()).cuda()
