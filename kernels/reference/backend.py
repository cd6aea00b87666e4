"""Offers the float64 definition as a backend: NumPy arrays in, NumPy arrays out. Read `picture.py` next."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from splatscope.kernels.policy import Policy
from splatscope.kernels.reference import training
from splatscope.kernels.reference.absolute import absolute_pull
from splatscope.kernels.reference.picture import DEFAULT_POLICY, DEFAULT_SETTINGS, Parameters, Stages, render
from splatscope.kernels.types import Camera, Float32, Frame, Gaussians, Gradients, RenderSettings


@dataclass(frozen=True, eq=False)
class Saved:
    """A forward pass with its autograd graph."""

    parameters: Parameters
    stages: Stages
    settings: RenderSettings
    policy: Policy


class ReferenceBackend:
    """The definition behind the `Backend` protocol: NumPy in, NumPy out."""

    name = "reference"
    device = "float64 torch"
    compiling = False

    def warm_up(self, training: bool = False) -> None:
        """Nothing to compile."""

    def render(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = DEFAULT_SETTINGS,
        policy: Policy = DEFAULT_POLICY,
    ) -> Frame:
        """One picture."""
        with torch.no_grad():
            return _frame(render(Parameters.of(gaussians), camera, settings, policy))

    def forward(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = DEFAULT_SETTINGS,
        policy: Policy = DEFAULT_POLICY,
    ) -> tuple[Frame, Saved]:
        """One picture and the graph that `backward` differentiates."""
        with torch.enable_grad():
            parameters = Parameters.of(gaussians, differentiable=True)
            stages = render(parameters, camera, settings, policy)
        return _frame(stages), Saved(parameters, stages, settings, policy)

    def backward(self, saved: Saved, image_gradient: Float32, absolute: bool = False) -> Gradients:
        """dL/d(parameters) from dL/d(image) [H, W, 3]."""
        started = perf_counter()
        leaves, projected = saved.parameters.tensors(), saved.stages.projected
        upstream = torch.from_numpy(np.asarray(image_gradient, dtype=np.float64))
        image, inputs = saved.stages.blended.image, (*leaves, projected.mean_px)
        *gradients, mean_gradient = torch.autograd.grad(
            image, inputs, upstream, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        if absolute:
            mean_gradient = absolute_pull(saved, upstream)
        visible = torch.zeros(len(leaves[0]), dtype=torch.bool)
        visible[projected.index] = True
        means2d = torch.zeros((len(leaves[0]), 2), dtype=torch.float64).index_copy(0, projected.index, mean_gradient)
        arrays = (g.numpy().astype(np.float32) for g in (*gradients, means2d))
        return Gradients(*arrays, visible=visible.numpy(), stage_ms={"backward": 1000 * (perf_counter() - started)})

    def loss(self, image: Float32, target: Float32, dssim_weight: float = 0.2) -> tuple[float, Float32]:
        """(1 - w) L1 + w (1 - SSIM) and its gradient with respect to `image` [H, W, 3]."""
        return training.loss(image, target, dssim_weight)

    def ssim(self, image: Float32, target: Float32) -> float:
        """Mean SSIM of two images [H, W, 3]."""
        return training.ssim(image, target)

    def adam(
        self,
        parameter: Float32,
        gradient: Float32,
        first: Float32,
        second: Float32,
        rates: Float32,
        step: int,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-15,
    ) -> None:
        """One Adam step in place on [N, D] arrays; `step` counts from 1."""
        training.adam(parameter, gradient, first, second, rates, step, betas, epsilon)


def _frame(stages: Stages) -> Frame:
    blended, counts = stages.blended, stages.lists.counts
    pictures = (blended.image, blended.depth, blended.transmittance)
    image, depth, transmittance = (picture.detach().numpy().astype(np.float32) for picture in pictures)
    visible, instances = len(stages.projected.index), int(counts.sum())
    return Frame(
        image, depth, transmittance, counts.astype(np.int32), visible, instances, stages.skipped, stages.stage_ms
    )
