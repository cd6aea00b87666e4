"""Records a run's state for its files, and puts a recorded state back into a run.

`snapshot` and `restore` name the same parts, so a change to one is a change to the other. `checkpoint.py` is the file
format, `checkpoint_check.py` what must be in it, `saving.py` writes it.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

import torch

from splatscope.assets.capture import Capture
from splatscope.training import metrics
from splatscope.training.config import TrainConfig, config_from_dict, config_to_dict
from splatscope.training.data.dataset import Dataset
from splatscope.training.files.beginning import other_views
from splatscope.training.files.checkpoint import Checkpoint
from splatscope.training.files.saving import Snapshot
from splatscope.training.run_state import RunState
from splatscope.training.splats.rows import SplatTensors, one_thread
from splatscope.training.steps.protocol import Stepper
from splatscope.training.stopwatch import process_seconds


def snapshot(state: RunState, capture: Capture, dataset: Dataset, config: TrainConfig, is_held: bool) -> Snapshot:
    """Copies the whole state while no step is in flight; `is_held`: the copy stays on the GPU for now, if there is
    room."""
    parts: dict[str, Any] = {"strategy": state.strategy.statistics(), "exposure": state.exposures.state()}
    for name in ("raw", "first", "second"):
        tensors = getattr(state.splats, name)
        parts[name] = {f.name: getattr(tensors, f.name) for f in fields(SplatTensors)}
    tensors = {f"{part}.{name}": tensor for part, group in parts.items() for name, tensor in group.items()}
    info = {
        "iteration": state.iteration,
        "settings": config_to_dict(config),
        "source": os.path.realpath(capture.path),
        "offset": list(capture.offset),
        "views": [view.name for view in dataset.training_views],
        "settled": state.settled,
        "moments_since": state.moments_since,
        "random": state.rng.bit_generator.state,
        "scores": list(state.scores.table),
        "seconds": dict(state.watch.seconds),
    }
    epoch = torch.tensor(state.epoch, dtype=torch.int64)
    others = {"epoch": epoch, "losses": list(state.losses), "random": state.random.get_state()}
    with one_thread():
        return Snapshot(tensors, others, info, is_held)


def restore(state: RunState, stepper: Stepper, checkpoint: Checkpoint, dataset: Dataset, config: TrainConfig) -> str:
    """Takes everything but the splats from a checkpoint. Returns one sentence on parts that could not be taken, empty
    if all were. Raises InputError."""
    info = checkpoint.info
    state.iteration = checkpoint.iteration
    state.settled = info["settled"]
    state.moments_since = info["moments_since"]
    state.watch.restore(info["seconds"])
    state.scores.table[:] = info["scores"]
    state.losses = checkpoint.tensors["losses"].tolist()
    lost = [f"it is from before its {name} was kept" for name in checkpoint.lacks]
    if "random" not in checkpoint.lacks and not checkpoint.set_random(state.rng, state.random):
        lost.append("random numbers are drawn on another device")
    stored = config_from_dict(info["settings"])
    if (stored.strategy, stored.densify.enabled) != (config.strategy, config.densify.enabled):
        lost.append("another strategy begins with fresh statistics")
    elif (statistics := checkpoint.group_like("strategy", state.strategy.statistics())) is not None:
        state.strategy.restore(statistics)
        stepper.resume(state.strategy)
    else:
        lost.append("statistics of its strategy begin at zero")
    if info["views"] == [view.name for view in dataset.training_views]:
        state.epoch = checkpoint.tensors["epoch"].tolist()
        exposures = checkpoint.group_like("exposure", state.exposures.state())
        if exposures is not None:
            state.exposures.restore(exposures)
        elif config.exposure.enabled:
            lost.append("exposures begin without a correction")
    elif "views" not in checkpoint.lacks:
        lost.append(other_views(info["views"], dataset))
    return f"This run will not continue exactly as before: {'; '.join(lost)}." if lost else ""


def metrics_json(state: RunState, dataset: Dataset) -> dict[str, Any]:
    """Returns the content of metrics.json: all scores so far, how they were measured, and where the time went."""
    seconds = state.watch.seconds
    return {
        "label": dataset.label,
        "protocol": metrics.PROTOCOL,
        "views": [view.name for view in dataset.tested],
        "iteration": state.iteration,
        "splats": state.splats.count,
        "training_seconds": round(seconds["training"], 3),
        "seconds": {name: round(spent, 3) for name, spent in seconds.items()},
        "process_seconds": round(process_seconds(), 3),  # since it was started; the end has the splats on disk
        "scores": list(state.scores.table),
    }
