"""Tests that runs of disks and of Gaussians along rays are resumed bit for bit, under every strategy.

For tests/training/. Runs with the CPU backend.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from splatscope.assets.capture import Capture
from splatscope.assets.splats.ply import read_ply
from splatscope.kernels.backend import Backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.primitive import FLAT_LOG_SCALE, Primitive
from splatscope.training.config import BudgetConfig, McmcConfig, TrainConfig, config_from_dict
from splatscope.training.events import Densified, Event, Stepped
from splatscope.training.files.checkpoint import newest_checkpoint
from splatscope.training.splats import rows
from splatscope.training.splats.rows import SplatTensors
from splatscope.training.trainer import Beginning, Trainer
from tests.support.small_capture import SHORT

LONG = replace(SHORT, iterations=60, test_interval=0)
STRATEGIES: dict[str, TrainConfig] = {
    "adaptive": LONG,
    "mcmc": replace(
        LONG,
        strategy="mcmc",
        opacity_penalty=0.01,
        scale_penalty=0.01,
        mcmc=McmcConfig(start=5, interval=10, max_splats=200, dead_opacity=0.1),
    ),
    "budget": replace(
        LONG, strategy="budget", budget=BudgetConfig(start=5, stop=50, interval=10, max_splats=250, halving_interval=20)
    ),
}


def stopped_after(trainer: Trainer, iteration: int) -> None:
    for event in trainer.run():
        if isinstance(event, Stepped) and event.iteration == iteration:
            break
    trainer.save()


def losses(events: list[Event]) -> list[float]:
    return [event.loss for event in events if isinstance(event, Stepped)]


@pytest.mark.parametrize("primitive", ["2dgs", "3dgut"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_resumed_run_of_every_primitive_equals_an_uninterrupted_one(
    strategy: str, primitive: Primitive, capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    config = replace(STRATEGIES[strategy], primitive=primitive)
    events = list((whole := Trainer(capture, config, backend, tmp_path / "whole")).run())
    assert sum(isinstance(event, Densified) for event in events) >= 4
    stopped_after(Trainer(capture, config, backend, tmp_path / "halves"), 30)
    begin = Beginning(*newest_checkpoint(tmp_path / "halves"))
    assert begin.primitive == primitive
    resumed = Trainer(capture, config, backend, tmp_path / "halves", begin)
    assert losses(list(resumed.run())) == losses(events)[30:]
    a, b = whole.snapshot().tensors, resumed.snapshot().tensors
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name].numpy(), b[name].numpy(), name)
    files = [tmp_path / run / "point_cloud" / "iteration_60" / "point_cloud.ply" for run in ("whole", "halves")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert read_ply(files[0]).primitive == primitive


def test_settings_of_before_train_flattened_gaussians() -> None:
    assert config_from_dict({}).primitive == "3dgs"


def disks(count: int) -> SplatTensors:
    random = torch.Generator().manual_seed(3)
    log_scales = torch.randn((count, 3), generator=random)
    log_scales[:, 2] = FLAT_LOG_SCALE
    means, quats = torch.zeros((count, 3)), torch.randn((count, 4), generator=random)
    return SplatTensors(means, log_scales, quats, torch.zeros(count), torch.zeros((count, 1, 3)))


def test_children_of_a_disk_lie_in_its_plane() -> None:
    raw = disks(50)
    noise = torch.randn((2, 50, 3), generator=torch.Generator().manual_seed(4))
    children = rows.split_children(raw, torch.ones(50, dtype=torch.bool), noise, 1.6)
    normal = rows.rotation_matrices(children.quats)[:, :, 2]
    assert ((children.means * normal).sum(1).abs() <= 1e-6 * children.means.norm(dim=1).clamp(min=1)).all()
    torch.testing.assert_close(children.log_scales[:, :2], raw.log_scales[:, :2].repeat(2, 1) - float(np.log(1.6)))
    torch.testing.assert_close(rows.largest_scale(raw), raw.log_scales[:, :2].amax(1).exp())


def test_noise_moves_a_disk_in_its_plane() -> None:
    raw = disks(50)
    noise = torch.randn((50, 3), generator=torch.Generator().manual_seed(5))
    moved = rows.shaken_means(raw, noise, 1.0, 0.5, 100.0)
    normal = rows.rotation_matrices(raw.quats)[:, :, 2]
    assert (moved.norm(dim=1) > 1e-4).any()
    assert ((moved * normal).sum(1).abs() <= 1e-6 * moved.norm(dim=1).clamp(min=1)).all()


def test_a_run_of_disks_does_not_begin_with_gaussians(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    stopped_after(Trainer(capture, LONG, backend, tmp_path / "run"), 5)
    begin = Beginning(*newest_checkpoint(tmp_path / "run"))
    with pytest.raises(InputError, match="holds 3dgs splats, and this run trains 2dgs"):
        Trainer(capture, replace(LONG, primitive="2dgs"), backend, tmp_path / "run", begin)
