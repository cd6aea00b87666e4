"""Reads the folder of a run: its settings, the views it held out, and what another run can begin with.

`from_options.py` plans a run from it, `opening/opening.py` opens it. torch loads only when a run is to continue.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from splatscope.assets.files.json_fields import read_json
from splatscope.assets.formats import SplatFile, open_path, reread
from splatscope.assets.trained.model_folder import iterations, model_of, read_cfg_args
from splatscope.kernels.errors import InputError
from splatscope.training.config import DataConfig, TrainConfig, config_from_dict, config_to_dict
from splatscope.training.files.folder import FOLDER, checkpoints, resume_line, run_of

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.assets.splats.read_as import ReadAs
    from splatscope.training.files.checkpoint import Checkpoint
    from splatscope.training.trainer import Beginning

SETTINGS = "settings.json"


def run_at(path: Path) -> Path | None:
    """Returns the folder of the run at `path`, which may be its folder of checkpoints; None if no run is there."""
    folder = Path(os.path.abspath(path.expanduser()))
    folder = folder.parent if folder.name == FOLDER else folder
    has_state = (folder / SETTINGS).is_file() and bool(checkpoints(folder) or iterations(folder))
    return folder if has_state else None


def run_settings(folder: Path) -> tuple[Path, TrainConfig]:
    """Returns capture and settings of the run that wrote `folder`. Raises InputError if its settings.json cannot be
    used."""
    path = folder / SETTINGS
    try:
        stored, config = _stored_settings(path)
        source = stored.get("source")
        if not isinstance(source, str) or not source or "\0" in source:
            raise InputError(f"{path} does not name the capture of its run: source must be a path.")
    except InputError as error:
        raise InputError(f"{error} Give the capture: eval --dataset CAPTURE, train CAPTURE --preset NAME.") from error
    return Path(source), config


def settings_in(path: Path) -> TrainConfig:
    """Returns the settings of another run as a recipe, from its settings.json or its folder. Raises InputError.

    The folder of its photographs is left out.
    """
    _, config = _stored_settings(path / SETTINGS if path.is_dir() else path)
    return replace(config, data=replace(config.data, images=DataConfig.images))


def run_around(ply: Path) -> tuple[Path | None, TrainConfig | None]:
    """Returns capture and settings of the run whose folder holds a PLY, as far as settings.json or cfg_args say."""
    model = model_of(ply)
    folder = model[0] if model else ply.parent
    if (folder / SETTINGS).is_file():
        return run_settings(folder)
    said = read_cfg_args(folder) or {}
    source = said.get("source_path")
    if not isinstance(source, str):
        return None, None
    data = {name: said[name] for name in ("images", "resolution", "white_background", "eval") if name in said}
    degree = {"sh_degree": said["sh_degree"]} if "sh_degree" in said else {}
    try:
        return Path(source), config_from_dict({"data": data, **degree})
    except InputError as error:
        raise InputError(f"{folder / 'cfg_args'} is of another kind. {error} Give the capture and --preset.") from error


def _stored_settings(file: Path) -> tuple[Mapping[str, Any], TrainConfig]:
    """Returns all that a settings.json holds, and the settings in it. Raises InputError."""
    stored = read_json(file, "the settings of a run")
    settings = stored.get("training") if isinstance(stored, Mapping) else None
    if not isinstance(settings, Mapping):
        raise InputError(f"{file} does not hold the settings of a run; give a run's {SETTINGS}, or its folder.")
    try:
        config = config_from_dict(settings)
    except InputError as error:
        raise InputError(f"The settings in {file} are not those of this version. {error}") from error
    return stored, config


def listed_held_out(folder: Path) -> list[str] | None:
    """Returns the names of the views that the run in a folder held out; None if its settings do not list them."""
    try:
        names: Any = read_json(folder / SETTINGS, "the settings of a run").get("held_out")
    except (InputError, AttributeError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def held_out(folder: Path, names: Iterable[str]) -> frozenset[str]:
    """Returns those of the views in `cameras.json` that the run in a folder held out, as far as its settings say."""
    try:
        if (listed := listed_held_out(folder)) is not None:
            return frozenset(listed)
        stored: Any = read_json(folder / SETTINGS, "the settings of a run")
        data = stored["training"]["data"]
        # Older runs do not list them. `split_views` in training/data/dataset.py held them out, of sets without a split.
        every = data["holdout_interval"] if data["eval"] is True and stored["kind"] == "colmap" else 0
        return frozenset(sorted(names)[::every]) if every else frozenset()
    except (InputError, KeyError, TypeError, ValueError):
        return frozenset()


def beginning_at(path: Path, read_as: ReadAs) -> Beginning:
    """Returns what a run begins with: a checkpoint, the newest one of a run's folder, or the splats of a PLY or model
    folder. `read_as` says how splats are read. Raises InputError if there is nothing to begin with."""
    from splatscope.training.files.checkpoint import newest_checkpoint, read_checkpoint  # loads torch
    from splatscope.training.trainer import Beginning  # loads torch

    if path.suffix.lower() == ".pt":
        return _at(path, read_checkpoint(path))
    if path.is_dir() and checkpoints(path):
        return _at(*newest_checkpoint(path))
    if (path / SETTINGS).is_file() and not iterations(path):  # a PLY next to it holds points, not splats
        capture, _ = run_settings(path)
        raise InputError(
            f"{path} was ended before it saved anything, so there is nothing to resume. Begin it again: splatscope "
            f"train {quote(str(capture))} --settings {quote(str(path))} --out {quote(str(path))}"
        )
    opened = reread(open_path(path), read_as)
    if not isinstance(opened, SplatFile):
        raise InputError(
            f"{path} is a capture, not a run: --resume takes a run's folder, a checkpoint (.pt) or splats (.ply)."
        )
    iteration, own = opened.iteration or 0, opened.filter
    changes = (opened.reading,) if opened.reading else ()
    return Beginning(opened.path, None, opened.gaussians, iteration, opened.offset, own, changes)


def _at(path: Path, checkpoint: Checkpoint) -> Beginning:
    from splatscope.training.trainer import Beginning  # loads torch

    return Beginning(path, checkpoint, iteration=checkpoint.iteration)


def remark_without_moments(resume: Path | None, begin: Beginning | None) -> str:
    """Returns a sentence about a run's folder that has lost its checkpoints; empty otherwise."""
    if resume is None or begin is None or begin.checkpoint is not None or not iterations(resume):
        return ""
    renamed = sorted((resume / FOLDER).glob("*.pt"))
    lacks = "no checkpoint called iteration_N.pt" if renamed else "no checkpoint"
    way = f" There is {renamed[-1].name}; to continue from it: {resume_line(renamed[-1])}" if renamed else ""
    return (
        f"{resume} has {lacks}, so a new run begins with its newest splats, those of iteration {begin.iteration:,}: "
        f"Adam's moments and the scores so far are missing.{way}"
    )


def remark_on_edited_settings(begin: Beginning | None) -> str:
    """Returns a sentence about a settings.json that differs from the run's checkpoint; empty if it does not."""
    folder = None if begin is None or begin.checkpoint is None else run_of(begin.path)
    if begin is None or begin.checkpoint is None or folder is None or not (folder / SETTINGS).is_file():
        return ""
    try:
        said = _flat(config_to_dict(run_settings(folder)[1]))
    except InputError:
        return f"{folder / SETTINGS} cannot be understood; the checkpoint's settings are used and written there again."
    used = _flat(config_to_dict(config_from_dict(begin.checkpoint.info["settings"])))
    other = [name for name in used if used[name] != said[name]]
    if not other:
        return ""
    return (
        f"{folder / SETTINGS} is not used: it differs from the checkpoint in {', '.join(other)}. Change settings with "
        f"--set, for example --set {other[0]}={json.dumps(said[other[0]])}"
    )


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values by their names for --set."""
    flat = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
