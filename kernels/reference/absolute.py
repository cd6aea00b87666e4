"""Defines the sums of AbsGrad (Ye et al. 2024) in float64: |dL/d(projected mean)| of each pixel, added up.

Each pixel is differentiated by its own copy of the means. `picture.py` defines the picture.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from splatscope.kernels.constants import TILE
from splatscope.kernels.reference.picture import BlendRule, blend_weights


def absolute_pull(saved: Any, image_gradient: Tensor) -> Tensor:
    """Returns the sums [M, 2] over pixels of |dL/dx| and |dL/dy|, from dL/d(image) [H, W, 3].

    `saved` comes from the forward pass of `ReferenceBackend`.
    """
    stages, rule = saved.stages, BlendRule.of(saved.policy.blend, "3dgs")
    p, lists, columns = stages.projected, stages.lists, stages.lists.counts.shape[1]
    shape = torch.cat((p.covariance, p.determinant[:, None], p.opacity[:, None]), 1).detach()  # [M, 5]
    mean_px, colors = p.mean_px.detach(), stages.colors.detach()
    behind = torch.tensor(saved.settings.background, dtype=torch.float64)
    rows = torch.from_numpy(lists.splat).split(lists.counts.ravel().tolist())
    found = torch.zeros_like(mean_px)
    for tile in lists.counts.ravel().nonzero()[0]:
        y, x = (int(v) * TILE for v in divmod(tile, columns))
        upstream = image_gradient[y : y + TILE, x : x + TILE]
        grid = torch.meshgrid(*(torch.arange(n) for n in upstream.shape[:2]), indexing="ij")
        centers = torch.stack((grid[1] + x, grid[0] + y), 2).reshape(-1, 2) + 0.5  # [P, 2]
        means = mean_px[rows[tile]].expand(len(centers), -1, -1).clone().requires_grad_()  # [P, n, 2]

        def picture(
            own_means: Tensor, center: Tensor, shape: Tensor = shape[rows[tile]], colors: Tensor = colors[rows[tile]]
        ) -> Tensor:
            weights, left = blend_weights(torch.cat((own_means, shape), 1), center[None], rule)
            return weights[:, 0] @ colors + left * behind

        with torch.enable_grad():
            pixels = torch.vmap(picture)(means, centers)  # [P, 3]
            (gradient,) = torch.autograd.grad((pixels * upstream.reshape(-1, 3)).sum(), means)
        found.index_add_(0, rows[tile], gradient.abs().sum(0))
    return found
