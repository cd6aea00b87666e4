"""Tests that photographs lie where steps read them before the steps come to them. On a GPU:
training/test_training_saving_gpu.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.kernels.cuda.launch.buffers import TorchMemory
from splatscope.kernels.cuda.step.photographs import TargetStore
from splatscope.kernels.cuda.training_step import TrainingStep
from splatscope.kernels.types import Gaussians
from splatscope.training.config import DensifyConfig, ResolutionConfig
from splatscope.training.events import Prepared, Stepped
from splatscope.training.trainer import Trainer
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_pipeline import emulated_renderer
from tests.support.cuda_training import IN_ORDER, emulated_step, step_kernels
from tests.support.small_capture import SHORT, make_capture


def test_a_photograph_is_followed_by_its_alpha_and_its_weights() -> None:
    rng = np.random.default_rng(0)
    pixels, alpha, weights = (rng.integers(0, 256, shape, np.uint8) for shape in ((5, 7, 3), (5, 7), (5, 7)))
    store = TargetStore(TorchMemory("cpu"), budget=0, slots=2)
    target = store.add(pixels[:, ::-1], alpha, weights)
    assert (target.size, target.has_coverage, target.has_weights) == (5 * 7 * 5, True, True)
    wanted = np.concatenate((pixels[:, ::-1].ravel(), alpha.ravel(), weights.ravel()))
    np.testing.assert_array_equal(target.bytes.numpy(), wanted)
    with store.placed(target) as address:
        assert address == target.bytes.data_ptr()


@pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")
def test_photographs_are_handed_over_before_the_first_step_and_once_more_when_their_size_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def training_step(backend: CudaBackend, gaussians: Gaussians, *_: Any) -> TrainingStep:
        return emulated_step(gaussians, IN_ORDER)

    added: list[int] = []  # width of each
    removed: list[Any] = []
    add, remove = TargetStore.add, TargetStore.remove

    def watched(store: TargetStore, pixels: Any, *rest: Any) -> Any:
        added.append(pixels.shape[1])
        return add(store, pixels, *rest)

    def watched_too(store: TargetStore, target: Any) -> None:
        removed.append(target)
        remove(store, target)

    monkeypatch.setattr(CudaBackend, "training_step", training_step)
    monkeypatch.setattr(CudaBackend, "warm_up", lambda *_, **__: None)
    monkeypatch.setattr(TargetStore, "add", watched)
    monkeypatch.setattr(TargetStore, "remove", watched_too)
    sizes = ResolutionConfig(num_downscales=1, interval=3)
    off = DensifyConfig(enabled=False)
    config = replace(SHORT, iterations=6, test_interval=0, resolution=sizes, densify=off)
    backend, known = CudaBackend(emulated_renderer(step_kernels())), []
    for event in Trainer(make_capture(tmp_path), config, backend, tmp_path / "run").run():
        if isinstance(event, Prepared | Stepped):
            known.append((len(added), len(removed)))
    assert known == [(21, 0)] * 4 + [(42, 21)] * 3
    assert added == [36] * 21 + [72] * 21
