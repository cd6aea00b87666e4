"""Tests training with a filter other than the plain one on a real GPU: steps against the CPU backend, whole runs,
scores."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splatscope.app.opening.scene import open_scene
from splatscope.assets.capture import Capture
from splatscope.kernels.backends import gpu_is_present, make_backend
from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.policy import Policy
from splatscope.training.config import DensifyConfig, InitialConfig
from splatscope.training.data.dataset import Dataset
from splatscope.training.events import Evaluated
from splatscope.training.scores.scorer import score_view
from splatscope.training.trainer import Trainer
from tests.kernels.test_training_step_gpu import CAMERA, SCENE, SETTINGS, photograph, run, training_of
from tests.support.cuda_training import IN_ORDER, LAZY, PARAMETERS, RATES, SEPARATE, Plain, filtered
from tests.support.small_capture import SHORT

pytestmark = pytest.mark.skipif(
    not gpu_is_present() or importlib.util.find_spec("cupy") is None, reason="needs an NVIDIA GPU and CuPy"
)


@pytest.mark.parametrize("name", ["compensated", "mip"])
@pytest.mark.parametrize("policy", [Policy(), IN_ORDER, LAZY, SEPARATE], ids=["best", "in order", "lazy", "separate"])
def test_steps_under_a_filter_follow_those_of_the_cpu_backend(policy: Policy, name: str) -> None:
    policy = filtered(policy, name)
    training, plain = training_of(policy), Plain(SCENE, CpuBackend(), policy)
    losses = [plain.run(CAMERA, SETTINGS, photograph(number % 2), RATES, 0.2) for number in range(8)]
    outcomes = run(training, 8)
    assert [outcome.loss for outcome in outcomes] == pytest.approx(losses, rel=2e-4)
    assert not any(outcomes[-1].skipped.values())
    training.flush()
    ours = training.splats.gaussians()
    for field in PARAMETERS:
        got, wanted, start = (getattr(g, field) for g in (ours, plain.gaussians, SCENE))
        assert np.linalg.norm(got - wanted) < 0.03 * np.linalg.norm(wanted - start), field


def test_toggles_change_under_captured_graphs_and_the_filter_of_a_run_stays() -> None:
    mip = filtered(IN_ORDER, "mip")
    steady, changing = training_of(mip), training_of(mip)
    losses = []
    for policy in (IN_ORDER, SEPARATE, filtered(LAZY, "compensated"), IN_ORDER):
        changing.want(policy)
        losses.append([[outcome.loss for outcome in run(training, 4)] for training in (steady, changing)])
        assert changing.policy.project.filter == "mip"
    for wanted, got in losses:
        assert got == pytest.approx(wanted, rel=1e-3)


def test_a_whole_run_scores_as_its_saved_splats_do_under_their_filter_and_as_on_the_cpu(
    capture: Capture, tmp_path: Path
) -> None:
    small = InitialConfig(scale_factor=0.1)  # splats of less than a pixel, which filters matter to
    config = replace(
        SHORT, iterations=60, antialiasing="mip", initial=small, densify=DensifyConfig(enabled=False), test_interval=0
    )
    losses, scores = [], []
    for name in ("cpu", "cuda"):
        trainer = Trainer(capture, config, make_backend(name), tmp_path / name)
        events = list(trainer.run())
        losses.append(trainer.history[0])
        scores.append([event.psnr for event in events if isinstance(event, Evaluated)][-1])
    assert losses[1][:8] == pytest.approx(losses[0][:8], rel=5e-4)
    assert scores[1] == pytest.approx(scores[0], abs=0.3)
    scene = open_scene(tmp_path / "cuda")
    assert scene.gaussians is not None
    assert scene.info.filter == "mip"
    dataset, backend = Dataset(capture, config.data), make_backend("cuda")
    list(dataset.load())
    settings = replace(SETTINGS, background=dataset.background)
    found = {
        name: np.mean(
            [
                score_view(backend, scene.gaussians, view, settings, filtered(Policy(), name))[0]
                for view in dataset.tested
            ]
        )
        for name in ("plain", "mip")
    }
    assert found["mip"] == pytest.approx(scores[1], abs=1e-3)
    assert abs(found["plain"] - found["mip"]) > 0.01
