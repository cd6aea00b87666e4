"""Tests scores, and another trainer's loss, where the picture lies on a GPU. Skipped where there is none."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

from splatscope.kernels.backends import gpu_is_present, make_backend
from splatscope.kernels.cpu import training
from splatscope.kernels.types import RenderSettings
from splatscope.training import metrics
from splatscope.training.data.dataset import Photograph
from splatscope.training.scores.scorer import score_view
from tests.support.small_capture import looking_at_origin, true_splats

pytestmark = pytest.mark.skipif(
    not gpu_is_present() or importlib.util.find_spec("cupy") is None, reason="needs an NVIDIA GPU and CuPy"
)
CAMERA = looking_at_origin(np.array([3.0, 0.5, 0.2]))


@pytest.mark.parametrize("kind", ["plain", "coverage", "weight"])
def test_a_view_scores_the_same_on_the_gpu_and_on_the_host(kind: str) -> None:
    backend, rng, settings = make_backend("cuda"), np.random.default_rng(0), RenderSettings((0.2, 0.5, 0.7))
    splats, shape = true_splats(rng), (CAMERA.height, CAMERA.width)
    extra: dict[str, Any] = {} if kind == "plain" else {kind: rng.integers(0, 256, shape, np.uint8)}
    view = Photograph("a", CAMERA, rng.integers(0, 200, (*shape, 3), np.uint8), **extra)
    image = backend.render(splats, CAMERA, settings).image
    expected = metrics.score(image, view.target(settings.background), training, view.weights())
    assert score_view(backend, splats, view, settings) == pytest.approx(expected, abs=2e-4)


def test_the_loss_that_another_trainer_is_given_is_ours() -> None:
    from splatscope.app.bench.peers.loss import Loss
    from splatscope.kernels.cuda.kernel_store import KernelStore

    rng = np.random.default_rng(1)
    image = rng.random((CAMERA.height, CAMERA.width, 3)).astype(np.float32)
    pixels = rng.integers(0, 256, image.shape, np.uint8)
    leaf = torch.tensor(image, device="cuda", requires_grad=True)
    loss = Loss(CAMERA, KernelStore())(leaf, torch.from_numpy(pixels).cuda())
    (2 * loss).backward()
    value, gradient = training.loss(image, (pixels / np.float32(255)).astype(np.float32))
    assert loss.item() == pytest.approx(value, rel=1e-3)
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad.cpu().numpy() / 2, gradient, atol=1e-3 * float(np.abs(gradient).max()))
