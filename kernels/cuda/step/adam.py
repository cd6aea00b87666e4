"""Plans Adam in a training step: a launch of its own, or a part of the last kernel of the backward pass.

Each function returns launches for `cuda/training_step.py` to place. `own` are the step's frame, inputs, state and reach
by name. Launches hold addresses of the splats' buffers: ask again after the buffers have moved. Kernels:
cuda/source/adam.cuh, cuda/source/project_backward_adam.cuh, cuda/source/lazy.cuh.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from splatscope.kernels.cuda.plan.operations import Launch, Operation
from splatscope.kernels.cuda.plan.passes import constant, fused_name
from splatscope.kernels.cuda.plan.planner import Plan, Provider
from splatscope.kernels.cuda.step.splats import SHAPES, SplatBuffers
from splatscope.kernels.policy import Policy

ADAM_THREADS = constant("adam.cuh", "ADAM_THREADS")
ADAM_CHUNK = constant("adam.cuh", "ADAM_CHUNK")  # groups of four numbers that a block goes through
FLUSH_THREADS = 128  # of a block; the launch bounds of flush_sh in lazy.cuh
LAZY_TABLE = constant("lazy.cuh", "LAZY_TABLE")  # rows of the table of what steps would have done


def adam_name(sh_dtype: str) -> str:
    """Returns the kernel of Adam from arrays of gradients."""
    return f"adam<ShDtype::{sh_dtype}>"


def with_optimiser(kernels: dict[str, tuple[str, str]], policy: Policy) -> dict[str, tuple[str, str]]:
    """Returns the kernels of a pass, role -> (file, instantiation), with the optimiser's added."""
    if policy.adam == "separate":
        return kernels | {"adam": ("adam.cuh", adam_name(policy.project.sh_dtype))}
    name = fused_name(kernels["project_backward"][1], policy)
    return kernels | {"project_backward": ("project_backward_adam.cuh", name)}


def separate_adam(
    provide: Provider, policy: Policy, splats: SplatBuffers, own: Mapping[str, Any], plan: Plan
) -> Launch:
    """Returns the launch of Adam from the plan's arrays of gradients."""
    name = adam_name(policy.project.sh_dtype)
    kernel, rows = provide("adam.cuh", [name])[name], splats.rows
    numbers = [rows * int(np.prod(shape)) for shape in SHAPES.values()]
    blocks = sum(-(-count // (4 * ADAM_CHUNK)) for count in (*numbers, rows))
    arguments = kernel.arguments.pack(**_arguments(splats, own, plan))
    return Launch("adam", kernel, (blocks,), (ADAM_THREADS,), arguments)


def fused_backward(
    provide: Provider, policy: Policy, splats: SplatBuffers, own: Mapping[str, Any], plan: Plan
) -> list[Operation]:
    """Returns the plan's backward pass with Adam in its last kernel."""
    *before, last = plan.backward
    assert isinstance(last, Launch)
    name = fused_name(last.kernel.name, policy)
    kernel = provide("project_backward_adam.cuh", [name])[name]
    values = last.arguments[0]
    members = {member: values[member] for member in values.dtype.names or ()}
    backward = {member: int(value) if value.dtype == np.uint64 else value for member, value in members.items()}
    arguments = kernel.arguments.pack(
        backward=backward, adam=_arguments(splats, own, plan), stepped=splats.stepped, reach=own["reach"]
    )
    return [*before, Launch(last.stage, kernel, last.grid, last.block, arguments)]


def catch_up(provide: Provider, splats: SplatBuffers, own: Mapping[str, Any]) -> Launch:
    """Returns the launch that brings all harmonics up to date after steps with lazy_sh."""
    kernel = provide("lazy.cuh", ["flush_sh"])["flush_sh"]
    arguments = kernel.arguments.pack(
        **own,
        sh=splats.array("raw", "sh"),
        first=splats.array("first", "sh"),
        second=splats.array("second", "sh"),
        stepped=splats.stepped,
        gaussians=splats.count,
    )
    return Launch("adam", kernel, (-(-splats.count // FLUSH_THREADS),), (FLUSH_THREADS,), arguments)


def _arguments(splats: SplatBuffers, own: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    return {
        **{name: own[name] for name in ("frame", "inputs", "state")},
        **{name: splats.array("raw", name) for name in SHAPES},
        **{f"{name}_first": splats.array("first", name) for name in SHAPES},
        **{f"{name}_second": splats.array("second", name) for name in SHAPES},
        **{f"{name}_gradient": plan.outputs.gradients[name] for name in (*SHAPES, "means2d")},
        "warp_slots": plan.outputs.warp_slots,
        "pull": splats.array("statistics", "pull"),
        "seen": splats.array("statistics", "seen"),
        "sh_lower": splats.lower_halves,
    }
