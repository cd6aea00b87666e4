"""Offers the float64 definition as a `Backend`: NumPy arrays in, NumPy arrays out. Read `picture.py` next."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from splatscope.kernels.policy import Policy
from splatscope.kernels.reference.absolute import absolute_pull
from splatscope.kernels.reference.picture import DEFAULT_POLICY, DEFAULT_SETTINGS, Parameters, Stages, render
from splatscope.kernels.reference.tilted import signal_of
from splatscope.kernels.types import Camera, Float32, Frame, Gaussians, Gradients, RenderSettings


@dataclass(frozen=True, eq=False)
class Saved:
    """Keeps a forward pass with its autograd graph."""

    parameters: Parameters
    stages: Stages
    settings: RenderSettings
    policy: Policy
    camera: Camera


class ReferenceBackend:
    """Renders and differentiates by the definition. See `kernels/backend.py` for the contract."""

    name = "reference"
    trains_on_device = False
    device = "float64 torch"
    compiling = False

    def warm_up(self, training: bool = False) -> None:
        """Does nothing: there is nothing to compile."""

    def render(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = DEFAULT_SETTINGS,
        policy: Policy = DEFAULT_POLICY,
    ) -> Frame:
        """Renders one picture."""
        with torch.no_grad():
            return _frame(render(Parameters.of(gaussians), camera, settings, policy))

    def forward(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = DEFAULT_SETTINGS,
        policy: Policy = DEFAULT_POLICY,
    ) -> tuple[Frame, Saved]:
        """Renders one picture; also returns its autograd graph, for `backward`."""
        with torch.enable_grad():
            parameters = Parameters.of(gaussians, differentiable=True)
            stages = render(parameters, camera, settings, policy)
        return _frame(stages), Saved(parameters, stages, settings, policy, camera)

    def backward(self, saved: Saved, image_gradient: Float32, absolute: bool = False) -> Gradients:
        """Returns dL/d(parameters) for dL/d(image) [H, W, 3]."""
        started = perf_counter()
        leaves, projected = saved.parameters.tensors(), saved.stages.projected
        upstream = torch.from_numpy(np.asarray(image_gradient, dtype=np.float64))
        primitive = saved.parameters.primitive
        if absolute and primitive != "3dgs":
            raise ValueError(
                f"Absolute values of each pixel are added up for 3dgs splats only, not for {primitive}."
                " Leave `absolute` off."
            )
        place = projected.mean_px if primitive == "3dgs" else projected.shape
        image, inputs = saved.stages.blended.image, (*leaves, place)
        *gradients, mean_gradient = torch.autograd.grad(
            image, inputs, upstream, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        if primitive != "3dgs":
            mean_gradient = signal_of(primitive, projected.shape.detach(), mean_gradient, saved.camera)
        elif absolute:
            mean_gradient = absolute_pull(saved, upstream)
        visible = torch.zeros(len(leaves[0]), dtype=torch.bool)
        visible[projected.index] = True
        means2d = torch.zeros((len(leaves[0]), 2), dtype=torch.float64).index_copy(0, projected.index, mean_gradient)
        arrays = (g.numpy().astype(np.float32) for g in (*gradients, means2d))
        return Gradients(*arrays, visible=visible.numpy(), stage_ms={"backward": 1000 * (perf_counter() - started)})


def _frame(stages: Stages) -> Frame:
    blended, counts = stages.blended, stages.lists.counts
    pictures = (blended.image, blended.depth, blended.transmittance)
    image, depth, transmittance = (picture.detach().numpy().astype(np.float32) for picture in pictures)
    visible, instances = len(stages.projected.index), int(counts.sum())
    return Frame(
        image, depth, transmittance, counts.astype(np.int32), visible, instances, stages.skipped, stages.stage_ms
    )
