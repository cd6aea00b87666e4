"""What a `train` command line asks for: which capture, with which settings, from where, into which folder.

Nothing is trained here. `commands/dispatch.py` takes the plan to the window or to the terminal; `--resume` is read
here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from splatscope.app.options.subcommands import TrainOptions
from splatscope.app.run.plan import default_out
from splatscope.kernels.errors import InputError
from splatscope.training.files.folder import FOLDER, resume_line, run_of

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.assets.splats.activated import Activated
    from splatscope.training.config import TrainConfig
    from splatscope.training.files.checkpoint import Checkpoint
    from splatscope.training.trainer import Beginning

SETTINGS = "settings.json"


@dataclass(frozen=True)
class TrainingPlan:
    """A run that has not begun."""

    capture: Path
    config: TrainConfig
    out: Path
    begin: Beginning | None
    remark: str = ""  # what it has to do without, a sentence


def plan_training(options: TrainOptions, also_over: bool = False) -> TrainingPlan:
    """Raises InputError for options that do not go together, for a path that is not there, and unless they are wanted
    `also_over` for a run that has done all its iterations."""
    if options.dataset is not None and options.source_path is not None and options.dataset != options.source_path:
        raise InputError(
            f"The capture is given twice: {options.dataset} and --source-path {options.source_path}; give one."
        )
    begin = None if options.resume is None else _beginning(options.resume, options.activated)
    if options.activated != "auto" and (begin is None or begin.splats is None):
        raise InputError("--activated says how a .ply given to --resume is read, and there is none; leave it out.")
    named = options.dataset or options.source_path
    source, recipe = _own_run(options, begin, named)
    config = _with_options(recipe, options)
    if begin is not None and config.iterations <= begin.iteration and not also_over:
        raise InputError(
            f"{begin.path} is at iteration {begin.iteration:,} already, and the run is to end at "
            f"{config.iterations:,}; give --iterations a number above {begin.iteration:,} to go on."
        )
    path = named or source
    if path is None:
        raise InputError(
            "train needs a capture: splatscope train FOLDER (COLMAP, transforms_train.json, or photographs alone)."
        )
    if not path.exists():
        whose = "" if named or begin is None else f", on which {begin.path} was trained,"
        raise InputError(
            f"{path}{whose} does not exist; give a capture folder: COLMAP, transforms_train.json, or photographs."
        )
    config.check()
    own_folder = None if begin is None or begin.checkpoint is None else run_of(begin.path)
    out = options.out or own_folder or default_out(path.resolve().name)
    remarks = (_without_moments(options.resume, begin), _edited_settings(begin))
    return TrainingPlan(path, config, out, begin, " ".join(filter(None, remarks)))


def _own_run(options: TrainOptions, begin: Beginning | None, named: Path | None) -> tuple[Path | None, TrainConfig]:
    """The capture of the run that is gone on from, None if there is none or that is not known; and the settings that
    options change. `named` is the capture, if the command line says it."""
    from splatscope.training.config import config_from_dict
    from splatscope.training.recipes import preset

    recipe = None if options.settings is None else settings_in(options.settings)
    if begin is not None and begin.checkpoint is not None:
        for option in filter(None, (options.preset and f"--preset {options.preset}", recipe and "--settings")):
            raise InputError(
                f"{option} does not go with --resume {options.resume}: a run keeps its own settings. Change single "
                f"ones with --set, or begin with its .ply to follow another recipe."
            )
        try:
            return Path(begin.checkpoint.info["source"]), config_from_dict(begin.checkpoint.info["settings"])
        except InputError as error:
            raise InputError(f"The settings in {begin.path} are not those of this version. {error}") from error
    if recipe is not None and options.preset is not None:
        raise InputError(f"--settings {options.settings} and --preset {options.preset} are two recipes; give one.")
    if options.preset is not None:
        recipe = preset(options.preset, options.iterations)
    source = None
    if begin is not None and (named is None or recipe is None):
        source, own = _run_beside(begin.path)
        recipe = recipe or own
    recipe = recipe or preset("inria", options.iterations)
    # Splats go on with the filter they have.
    return source, recipe if begin is None else replace(recipe, antialiasing=begin.filter)


def _run_beside(ply: Path) -> tuple[Path | None, TrainConfig | None]:
    """Capture and settings of the run that a PLY lies in, as far as `settings.json` or `cfg_args` there say them."""
    from splatscope.assets.trained.model_folder import model_of, read_cfg_args
    from splatscope.training.config import config_from_dict

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


def _without_moments(resume: Path | None, begin: Beginning | None) -> str:
    """The sentence about a run's folder that has lost its checkpoints; empty otherwise."""
    from splatscope.assets.trained.model_folder import iterations

    if resume is None or begin is None or begin.checkpoint is not None or not iterations(resume):
        return ""
    renamed = sorted((resume / FOLDER).glob("*.pt"))
    lacks = "no checkpoint called iteration_N.pt" if renamed else "no checkpoint"
    way = f" There is {renamed[-1].name}; to go on from that: {resume_line(renamed[-1])}" if renamed else ""
    return (
        f"{resume} has {lacks}, so a new run begins with its newest splats, those of iteration {begin.iteration:,}: "
        f"Adam's moments and the scores so far are missing.{way}"
    )


def _edited_settings(begin: Beginning | None) -> str:
    """The sentence about a settings.json that says something else than the checkpoint beside it; empty otherwise."""
    from splatscope.training.config import config_from_dict, config_to_dict

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
    """Values by their names for --set."""
    flat = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _beginning(path: Path, activated: Activated) -> Beginning:
    """A run's folder or one of its checkpoints, or splats in a PLY or model folder without checkpoints."""
    from splatscope.assets.formats import SplatFile, open_path, reread
    from splatscope.assets.trained.model_folder import iterations
    from splatscope.training.files.checkpoint import checkpoints, newest_checkpoint, read_checkpoint
    from splatscope.training.trainer import Beginning

    if path.suffix.lower() == ".pt":
        return _at(path, read_checkpoint(path))
    if path.is_dir() and checkpoints(path):
        return _at(*newest_checkpoint(path))
    if (path / SETTINGS).is_file() and not iterations(path):  # a PLY beside it holds points, not splats
        capture, _ = run_settings(path)
        raise InputError(
            f"{path} was ended before it saved anything, so there is nothing to resume. Begin it anew: splatscope "
            f"train {quote(str(capture))} --settings {quote(str(path))} --out {quote(str(path))}"
        )
    opened = reread(open_path(path), activated)
    if not isinstance(opened, SplatFile):
        raise InputError(
            f"{path} is a capture, not a run: --resume takes a run's folder, a checkpoint (.pt) or splats (.ply)."
        )
    iteration, own = opened.iteration or 0, opened.filter
    changes = (opened.reading,) if opened.reading else ()
    return Beginning(opened.path, None, opened.gaussians, iteration, opened.offset, own, changes)


def _at(path: Path, checkpoint: Checkpoint) -> Beginning:
    from splatscope.training.trainer import Beginning

    return Beginning(path, checkpoint, iteration=checkpoint.iteration)


def _with_options(config: TrainConfig, options: TrainOptions) -> TrainConfig:
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
        "save_iterations": options.save_iterations or None,
        "test_iterations": options.test_iterations or None,
        "test_interval": options.test_interval,
        "data": {
            "images": options.images,
            "resolution": options.resolution,
            "white_background": options.white_background or None,
            "random_background": options.random_background or None,
            "eval": options.eval or None,
            "alpha": options.alpha,
            "masks": options.masks,
            "axes": options.axes,
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
    """The settings in a run's settings.json, or in that of its folder, as a recipe for another run: without what they
    say of where its photographs lie. Raises InputError."""
    from splatscope.training.config import DataConfig

    _, config = _stored_settings(path / SETTINGS if path.is_dir() else path)
    return replace(config, data=replace(config.data, images=DataConfig.images))


def _stored_settings(file: Path) -> tuple[Mapping[str, Any], TrainConfig]:
    """Returns all that a settings.json holds, and the settings among it. Raises InputError."""
    from splatscope.assets.files.json_fields import read_json
    from splatscope.training.config import config_from_dict

    stored = read_json(file, "the settings of a run")
    settings = stored.get("training") if isinstance(stored, Mapping) else None
    if not isinstance(settings, Mapping):
        raise InputError(f"{file} does not hold the settings of a run; give a run's {SETTINGS}, or its folder.")
    try:
        config = config_from_dict(settings)
    except InputError as error:
        raise InputError(f"The settings in {file} are not those of this version. {error}") from error
    return stored, config
