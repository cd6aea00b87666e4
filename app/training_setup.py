"""What a `train` command line asks for: which capture, with which settings, from where, into which folder.

Nothing is trained here. `commands.py` takes the plan to the window or to the terminal; `--resume` is read here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splatscope.app import cli
from splatscope.app.plan import default_out
from splatscope.kernels.errors import InputError

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.training.checkpoint import Checkpoint
    from splatscope.training.config import TrainConfig
    from splatscope.training.trainer import Beginning


@dataclass(frozen=True)
class TrainingPlan:
    """A run that has not begun."""

    capture: Path
    config: TrainConfig
    out: Path
    begin: Beginning | None


def plan_training(options: cli.Train) -> TrainingPlan:
    """Raises InputError for options that do not go together, and for a path that is not there."""
    from splatscope.training.config import config_from_dict
    from splatscope.training.recipes import preset

    if options.dataset is not None and options.source_path is not None and options.dataset != options.source_path:
        raise InputError(
            f"The capture is given twice: {options.dataset} and --source-path {options.source_path}; give one."
        )
    path = options.dataset or options.source_path
    begin = None if options.resume is None else _beginning(options.resume)
    if begin is not None and begin.checkpoint is not None:
        if options.preset is not None:
            raise InputError(
                f"--preset {options.preset} does not go with --resume {options.resume}: a run keeps its own settings. "
                f"Change single ones with --set, or begin with its .ply to follow another recipe."
            )
        info = begin.checkpoint.info
        try:
            config = config_from_dict(info["settings"])
        except InputError as error:
            raise InputError(f"The settings in {begin.path} are not those of this version. {error}") from error
        config = _with_options(config, options)
        path = path or Path(info["source"])
        out = options.out or _run_of(begin.path) or default_out(path.name)
    else:
        recipe = preset(options.preset or "inria", options.iterations)
        if begin is not None:  # splats go on with the filter they have
            recipe = replace(recipe, antialiasing=begin.filter)
        config = _with_options(recipe, options)
        out = options.out or default_out("capture" if path is None else path.resolve().name)
    if begin is not None and config.iterations <= begin.iteration:
        raise InputError(
            f"{begin.path} is at iteration {begin.iteration:,} of {config.iterations:,} already; give --iterations "
            f"more than that to go on."
        )
    if path is None:
        raise InputError(
            "train needs a capture: splatscope train FOLDER (COLMAP, transforms_train.json, or photographs alone)."
        )
    if not path.exists():
        raise InputError(
            f"{path} does not exist; give a capture folder: COLMAP, transforms_train.json, or photographs."
        )
    config.check()
    return TrainingPlan(path, config, out, begin)


def _beginning(path: Path) -> Beginning:
    """A run's folder or one of its checkpoints, or splats in a PLY or model folder without checkpoints."""
    from splatscope.assets.formats import SplatFile, open_path
    from splatscope.assets.model_folder import iterations
    from splatscope.training.checkpoint import checkpoints, newest_checkpoint, read_checkpoint
    from splatscope.training.trainer import Beginning

    if path.suffix.lower() == ".pt":
        return _at(path, read_checkpoint(path))
    if path.is_dir() and checkpoints(path):
        return _at(*newest_checkpoint(path))
    if (path / "settings.json").is_file() and not iterations(path):  # a PLY beside it holds points, not splats
        capture, _ = run_settings(path)
        raise InputError(
            f"{path} was ended before it saved anything, so there is nothing to resume. Begin it anew: splatscope "
            f"train {capture} --out {path}"
        )
    opened = open_path(path)
    if not isinstance(opened, SplatFile):
        raise InputError(
            f"{path} is a capture, not a run: --resume takes a run's folder, a checkpoint (.pt) or splats (.ply)."
        )
    iteration, own = opened.iteration or 0, opened.filter
    return Beginning(opened.path, splats=opened.gaussians, iteration=iteration, offset=opened.offset, filter=own)


def _at(path: Path, checkpoint: Checkpoint) -> Beginning:
    from splatscope.training.trainer import Beginning

    return Beginning(path, checkpoint, iteration=checkpoint.iteration)


def _run_of(checkpoint: Path) -> Path | None:
    """The folder of the run that a checkpoint lies in, or None if it was moved out of it."""
    folder = checkpoint.absolute().parent
    return folder.parent if folder.name == "checkpoints" else None


def _with_options(config: TrainConfig, options: cli.Train) -> TrainConfig:
    """`config` with every option that was given; one that was not leaves its setting alone."""
    from splatscope.training.config import config_from_dict
    from splatscope.training.recipes import with_settings

    warm_up, most = options.warmup_length, options.max_splats
    given: dict[str, Any] = {
        "iterations": options.iterations,
        "sh_degree": options.sh_degree,
        "sh_interval": options.sh_degree_interval,
        "antialiasing": options.antialiasing,
        "seed": options.seed,
        "save_iterations": options.save_iterations,
        "test_iterations": options.test_iterations,
        "test_interval": options.test_interval,
        "data": {
            "images": options.images,
            "resolution": options.resolution,
            "white_background": options.white_background or None,
            "random_background": options.random_background or None,
            "eval": options.eval or None,
            "alpha": options.alpha,
            "masks": options.masks,
        },
        "initial": {"source": options.init},
        "densify": {"start": warm_up, "max_splats": most},
        "mcmc": {"start": warm_up, "max_splats": most},
        "budget": {"start": warm_up, "max_splats": most},
        "resolution": {
            "num_downscales": options.num_downscales,
            "schedule": None if options.num_downscales is None else "halving",
        },
        "exposure": {"enabled": options.exposure or None},
        "plateau": {"patience": options.patience},
    }
    return with_settings(config_from_dict(_without_none(given), config), options.set)


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for name, value in values.items():
        value = _without_none(value) if isinstance(value, dict) else value
        if value is not None and value != {}:
            kept[name] = value
    return kept


def run_settings(folder: Path) -> tuple[Path, TrainConfig]:
    """Capture and settings of the run that wrote `folder`. Raises InputError if its settings.json cannot be used."""
    from splatscope.training.config import config_from_dict

    path = folder / "settings.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Path(stored["source"]), config_from_dict(stored["training"])
    except FileNotFoundError as error:
        raise InputError(f"{folder} has no settings.json, so the capture is not known; give --dataset.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged, so the capture is not known; give --dataset.") from error
