"""Runs the GPU's training steps on the CPU harness, and the same steps by a backend of NumPy arrays. Not a test.

`emulated_step` makes a `TrainingStep` whose kernels are built by g++; `Plain` does what it does one call at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import host_math
from splatscope.kernels.cuda.launch.compiler import Kernel
from splatscope.kernels.cuda.plan.passes import Pass, fused_name, source
from splatscope.kernels.cuda.step.adam import adam_name
from splatscope.kernels.cuda.step.exposure import EXPOSURE_NAMES
from splatscope.kernels.cuda.step.harmonics import KEYS
from splatscope.kernels.cuda.step.loss import loss_kernels
from splatscope.kernels.cuda.training_step import AdamRates, TrainingStep
from splatscope.kernels.ladder import changed, step
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Camera, Float32, Gaussians, RenderSettings
from tests.support.cuda_loss import LOSS_KINDS
from tests.support.cuda_on_cpu.run import build
from tests.support.cuda_pipeline import EmulatedLauncher, HostMemory, Kernels, pass_for
from tests.support.small_scenes import random_camera

RATES = AdamRates(1e-3, 5e-3, 1e-3, 0.025, 2.5e-3, 1.25e-4)
PARAMETERS = ("means", "log_scales", "quats", "logit_opacities", "sh")
IN_ORDER = changed(step("best"), {"blend_backward.reduce": "deterministic", "optimizer.adam": "fused"})
SEPARATE = changed(IN_ORDER, {"optimizer.adam": "separate"})
SPARSE = changed(IN_ORDER, {"optimizer.adam": "sparse"})
LAZY = changed(IN_ORDER, {"optimizer.adam": "lazy_sh"})
OWN = {
    "exposure.cuh": EXPOSURE_NAMES,
    "noise.cuh": ["shake"],
    "loss.cuh": [name for kind in LOSS_KINDS for name in loss_kernels(*kind)],
    "adam.cuh": [adam_name(sh_dtype) for sh_dtype in KEYS],
    "lazy.cuh": ["flush_sh"],
}


class StepKernels(Kernels):
    """Builds the kernels of some passes, the loss and the optimiser: all kernels of a file in one library."""

    def __init__(self, passes: Sequence[Pass]) -> None:
        super().__init__(passes)
        plain = [
            name for _, name in (made_for.kernels()["project_backward"] for made_for in passes if made_for.training)
        ]
        names = [fused_name(name, policy) for name in dict.fromkeys(plain) for policy in (IN_ORDER, SPARSE)]
        names += [fused_name(name, LAZY) for name in dict.fromkeys(plain) if "ShDtype::f32" in name]
        self._own = OWN | {"project_backward_adam.cuh": list(dict.fromkeys(names))}

    def __call__(self, file: str, names: Sequence[str]) -> Mapping[str, Kernel]:
        return build(source(file), self._own[file]) if file in self._own else super().__call__(file, names)


@cache
def step_kernels() -> StepKernels:
    """Returns kernels for steps under the policies above, and for pictures, at any size up to 65,536 tiles."""
    camera = random_camera(64, 48)
    viewing = [pass_for(IN_ORDER, camera, training=False, wants_depth=depth) for depth in (False, True)]
    training = pass_for(IN_ORDER, camera, training=True, wants_depth=False)
    halved = [replace(training, policy=kept_as(IN_ORDER, sh_dtype)) for sh_dtype in ("bf16", "split")]
    return StepKernels([*viewing, training, replace(training, lazy_sh=True), replace(training, absolute=True), *halved])


def kept_as(policy: Policy, sh_dtype: str) -> Policy:
    """Returns the policy with harmonics kept as `sh_dtype`."""
    return policy.with_value("project", "sh_dtype", sh_dtype)


def filtered(policy: Policy, name: str) -> Policy:
    """Returns the policy with that filter."""
    return policy.with_value("project", "filter", name)


@cache
def filter_kernels() -> StepKernels:
    """Returns kernels for steps in order and for pictures under the filters that compensate what they widen."""
    camera, policies = random_camera(64, 48), [filtered(IN_ORDER, name) for name in ("compensated", "mip")]
    passes = [
        pass_for(policy, camera, training, wants_depth=not training)
        for policy in policies
        for training in (True, False)
    ]
    return StepKernels(passes)


def emulated_step(gaussians: Gaussians, policy: Policy, seed: int = 0, rows: int = 0) -> TrainingStep:
    device = EmulatedLauncher(seed, seconds=60)
    memory = HostMemory(device)
    kernels = step_kernels() if policy.project.filter == "plain" else filter_kernels()
    return TrainingStep(gaussians, policy, rows, memory=memory, kernels=kernels, launcher=device)


class Plain:
    """Makes the same steps with a backend's own calls, in NumPy."""

    def __init__(self, gaussians: Gaussians, backend: Backend, policy: Policy = Policy()) -> None:  # noqa: B008  (frozen)
        self.backend, self.policy = backend, policy
        self.gaussians = replace(gaussians, **{name: getattr(gaussians, name).copy() for name in PARAMETERS})
        self.first = {name: np.zeros_like(getattr(gaussians, name)) for name in PARAMETERS}
        self.second = {name: np.zeros_like(getattr(gaussians, name)) for name in PARAMETERS}
        self.pull = np.zeros(gaussians.count, np.float32)
        self.seen = np.zeros(gaussians.count, np.int32)
        self.steps = 0

    def run(
        self, camera: Camera, settings: RenderSettings, pixels: NDArray[np.uint8], rates: AdamRates, weight: float
    ) -> float:
        """Makes one step and returns the loss."""
        frame, saved = self.backend.forward(self.gaussians, camera, settings, self.policy)
        loss, image_gradient = host_math(self.backend).loss(frame.image, (pixels / 255).astype(np.float32), weight)
        gradients = self.backend.backward(saved, image_gradient)
        self.steps += 1
        for name in PARAMETERS:
            parameter = getattr(self.gaussians, name)
            width = int(np.prod(parameter.shape[1:]))
            host_math(self.backend).adam(
                parameter.reshape(-1, width),
                getattr(gradients, name).reshape(-1, width),
                self.first[name].reshape(-1, width),
                self.second[name].reshape(-1, width),
                column_rates(name, width, rates),
                self.steps,
                (rates.beta1, rates.beta2),
                rates.epsilon,
            )
        scale = np.array([0.5 * camera.width, 0.5 * camera.height], np.float32)
        self.pull += np.linalg.norm(gradients.means2d * scale, axis=1)
        self.seen += gradients.visible
        return loss


def column_rates(name: str, width: int, rates: AdamRates) -> Float32:
    if name != "sh":
        return np.full(width, getattr(rates, name), np.float32)
    columns = np.full(width, rates.sh_rest, np.float32)
    columns[:3] = rates.sh_constant
    return columns
