"""Adaptive density control (Kerbl, Kopanas et al. 2023, section 5.2): when and which splats change.

A splat whose projected mean keeps being pulled is cloned if small and split if large; faint and, later,
over-large ones are pruned; opacities are lowered now and then so that only what is needed recovers.
The row operations are in `ops.py`. Read `trainer.py` next.
"""

from __future__ import annotations

import numpy as np
import torch

from splatscope.kernels.types import Camera, Gradients
from splatscope.training import ops
from splatscope.training.config import DensifyConfig
from splatscope.training.events import Densified
from splatscope.training.ops import SplatState, SplatTensors


class AdaptiveDensity:
    """The policy and its running statistics, one row a splat."""

    def __init__(self, config: DensifyConfig, count: int, extent: float, white_background: bool) -> None:
        self._config = config
        self._extent = extent
        self._white_background = white_background
        self._forget(count)

    def observe(self, gradients: Gradients, camera: Camera) -> None:
        """Adds one step's pull on the projected means, in NDC so that it does not depend on the image size."""
        x = gradients.means2d[:, 0] * np.float32(0.5 * camera.width)
        y = gradients.means2d[:, 1] * np.float32(0.5 * camera.height)
        self._pull += np.sqrt(x * x + y * y)
        self._seen += gradients.visible

    def after_step(
        self, state: SplatState, iteration: int, rng: np.random.Generator
    ) -> tuple[SplatState, Densified | None]:
        """The state after what is due at this iteration, and what was done."""
        c = self._config
        if not c.enabled or not 0 < iteration < c.stop:
            return state, None
        report = None
        if iteration > c.start and iteration % c.interval == 0:
            state, report = self._refine(state, iteration, rng)
        if iteration % c.reset_interval == 0 or (self._white_background and iteration == c.start):
            state = ops.lower_opacity(state, c.reset_opacity)
        return state, report

    def _refine(self, state: SplatState, iteration: int, rng: np.random.Generator) -> tuple[SplatState, Densified]:
        c = self._config
        pulled = self._pulled(state.count)
        large = largest_scale(state.raw) > c.dense_share * self._extent
        to_clone, to_split = pulled & ~large, pulled & large
        cloned, split = int(to_clone.sum()), int(to_split.sum())
        grown = state.count + cloned + split * (c.split_count - 1)
        noise = rng.standard_normal((c.split_count, split, 3), dtype=np.float32)
        children = ops.split_children(state.raw, to_split, torch.from_numpy(noise), c.split_shrink)
        children = ops.select(children, self._worth_keeping(children, iteration))
        kept = self._worth_keeping(state.raw, iteration)
        born = ops.joined(ops.select(state.raw, to_clone & kept), children)
        state = ops.replace_rows(state, kept & ~to_split, born)
        self._forget(state.count)
        return state, Densified(iteration, cloned, split, grown - state.count, state.count)

    def _pulled(self, count: int) -> torch.Tensor:
        """Mask [N] of splats whose mean pull reaches the threshold; the strongest if there is room for fewer."""
        mean_pull = self._pull / np.maximum(self._seen, 1)
        mask = mean_pull >= self._config.gradient_threshold
        limit = self._config.max_splats
        added = max(1, self._config.split_count - 1)  # new rows for one pulled splat, at most
        if limit is not None and count + added * int(mask.sum()) > limit:
            room = max(limit - count, 0) // added
            strongest = np.argsort(-mean_pull, kind="stable")[:room]
            mask = np.zeros(count, bool)
            mask[strongest] = True
        return torch.from_numpy(mask)

    def _worth_keeping(self, raw: SplatTensors, iteration: int) -> torch.Tensor:
        """Mask [N]: opaque enough, finite, and not over-large once opacities have been reset."""
        c = self._config
        kept = torch.sigmoid(raw.logit_opacities) >= c.smallest_opacity
        for tensor in (raw.means, raw.log_scales, raw.quats, raw.sh.flatten(1)):
            kept &= torch.isfinite(tensor.sum(dim=1))
        if iteration > c.reset_interval:
            kept &= largest_scale(raw) <= c.large_share * self._extent
        return kept

    def _forget(self, count: int) -> None:
        self._pull = np.zeros(count, np.float32)
        self._seen = np.zeros(count, np.int32)


def largest_scale(raw: SplatTensors) -> torch.Tensor:
    """The longest half axis of each splat [N], world units."""
    return raw.log_scales.amax(dim=1).exp()
