"""Runs a trainer whose checkpoints leave the GPU only after later steps have changed the splats, and compares them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from splatscope.kernels.cuda.launch.readback import Held
from splatscope.training.events import Stepped
from splatscope.training.files.checkpoint import Checkpoint
from splatscope.training.trainer import Trainer

PATIENCE = 120  # seconds; longer than that, steps must be waiting for the file, which they may not


def run_with_files_held_back(trainer: Trainer, until: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs to the end and returns all events; keeps checkpoints on the GPU until iteration `until` is over."""
    reached, to_host = threading.Event(), Held.to_host

    def late(held: Held) -> Any:
        assert reached.wait(PATIENCE), "steps do not go on while a file waits to be written"
        return to_host(held)

    events = []
    with monkeypatch.context() as patch:
        patch.setattr(Held, "to_host", late)
        for event in trainer.run():
            events.append(event)
            if isinstance(event, Stepped) and event.iteration == until:
                reached.set()
    return events


def settled_after(trainer: Trainer, iteration: int) -> Checkpoint:
    """Runs until that iteration and returns the run's state, with no step in flight."""
    for event in trainer.run():
        if isinstance(event, Stepped) and event.iteration == iteration:
            break
    return trainer.snapshot()


def assert_same_run(got: Checkpoint, wanted: Checkpoint) -> None:
    """Asserts that two checkpoints are equal to the bit, except for what depends on the clock."""
    assert got.tensors.keys() == wanted.tensors.keys()
    for name, tensor in wanted.tensors.items():
        assert got.tensors[name].dtype == tensor.dtype, name
        np.testing.assert_array_equal(got.tensors[name].numpy(), tensor.numpy(), err_msg=name)
    for name in ("iteration", "settled", "random", "views"):
        assert got.info[name] == wanted.info[name], name
    assert [row["psnr"] for row in got.info["scores"]] == [row["psnr"] for row in wanted.info["scores"]]
