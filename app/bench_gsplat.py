"""gsplat beside our ladder: the same tensors, the same camera, the same way of timing.

gsplat is no dependency: who wants the comparison installs it (https://docs.gsplat.studio). Not imported otherwise.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from splatscope.app.bench_cuda import SLEEP_CYCLES, EventPair, spread
from splatscope.kernels.errors import InputError


def measure_gsplat(name: str, repeat: int) -> dict[str, Any]:
    """Forward, and forward + backward from raw parameters that are activated beforehand. Raises InputError."""
    if importlib.util.find_spec("gsplat") is None:
        raise InputError("--vs gsplat needs gsplat, which is not installed: see https://docs.gsplat.studio.")
    import torch
    from gsplat import rasterization  # pyright: ignore[reportMissingImports]

    from splatscope.benchmarks.scenes import make_scene, upstream_gradient

    made = make_scene(name)
    g, camera = made.gaussians, made.camera
    tensors = [torch.from_numpy(a).cuda() for a in (g.means, g.quats, g.log_scales, g.logit_opacities, g.sh)]
    means, quats, scales, opacities, sh = tensors
    parameters = [p.requires_grad_() for p in (means, quats, scales.exp(), torch.sigmoid(opacities), sh)]
    view = torch.tensor(camera.matrix, dtype=torch.float32, device="cuda")[None]
    intrinsics = [[camera.fx, 0, camera.cx], [0, camera.fy, camera.cy], [0, 0, 1]]
    matrix = torch.tensor([intrinsics], dtype=torch.float32, device="cuda")
    upstream = torch.from_numpy(upstream_gradient(camera)).cuda()[None]

    def forward() -> Any:
        return rasterization(
            *parameters,
            view,
            matrix,
            camera.width,
            camera.height,
            near_plane=camera.near,
            sh_degree=g.sh_degree,
            packed=False,
        )[0]

    def both() -> None:
        torch.autograd.grad(forward(), parameters, upstream)

    samples: dict[str, list[EventPair]] = {"forward": [], "forward_backward": []}
    for number in range(repeat + 3):
        for mode, work in (("forward", forward), ("forward_backward", both)):
            torch.cuda._sleep(SLEEP_CYCLES)
            pair = EventPair()
            work()
            pair.end()
            if number >= 3:
                samples[mode].append(pair)
    torch.cuda.synchronize()
    return {mode: spread([pair.ms for pair in pairs]) for mode, pairs in samples.items()}
