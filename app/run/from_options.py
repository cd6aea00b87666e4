"""Plans the run that a `train` command line asks for: which capture, which settings, from where, into which folder.

`resume.py` reads what `--resume` and `--settings` name. `commands/train.py` takes the plan to the window or to the
terminal.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from splatscope.app.options.train import TrainOptions, given_settings
from splatscope.app.run.plan import RunPlan, default_out
from splatscope.app.run.resume import (
    beginning_at,
    remark_on_edited_settings,
    remark_without_moments,
    run_around,
    run_settings,
    settings_in,
)
from splatscope.assets.splats.read_as import ReadAs
from splatscope.assets.trained.model_folder import iterations
from splatscope.kernels.errors import InputError
from splatscope.training.config import TrainConfig, config_from_dict
from splatscope.training.files.folder import newest_iteration, resume_line, run_of
from splatscope.training.recipes import preset, with_settings

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.training.trainer import Beginning


def plan_training(options: TrainOptions, also_over: bool = False) -> RunPlan:
    """Returns the run that options ask for. Nothing is trained or written.

    Raises InputError for options that do not go together and for a path that does not exist, and, unless `also_over`,
    for a run that has done all its iterations.
    """
    if options.dataset is not None and options.source_path is not None and options.dataset != options.source_path:
        raise InputError(
            f"The capture is given twice: {options.dataset} and --source-path {options.source_path}; give one."
        )
    begin = (
        None if options.resume is None else beginning_at(options.resume, ReadAs(options.activated, options.primitive))
    )
    if options.activated != "auto" and (begin is None or begin.splats is None):
        raise InputError("--activated says how a .ply given to --resume is read, and there is none; leave it out.")
    named = options.dataset or options.source_path
    source, recipe = _own_run(options, begin, named)
    config = with_settings(config_from_dict(given_settings(options), recipe), options.set)
    if begin is not None and config.iterations <= begin.iteration and not also_over:
        raise InputError(
            f"{begin.path} is at iteration {begin.iteration:,} already, and the run is to end at "
            f"{config.iterations:,}; give --iterations a number above {begin.iteration:,} to continue."
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
    remarks = (remark_without_moments(options.resume, begin), remark_on_edited_settings(begin))
    return RunPlan(config, out, begin, path, " ".join(filter(None, remarks)))


def plan_from(folder: Path) -> RunPlan:
    """Returns the run in a folder as it continues from its newest checkpoint, even if the run is over.

    Raises InputError with the reason why it cannot continue.
    """
    source, _ = run_settings(folder)
    if not source.exists():
        raise InputError(
            f"the capture of this run, {source}, is not there any more. If it has another path now, continue the run "
            f"with splatscope train CAPTURE --resume {quote(str(folder))}"
        )
    newest, saved = newest_iteration(folder), max(iterations(folder), default=0)
    if newest < saved:
        way = f"The run continues from iteration {newest:,}" if newest else "A new run begins with them"
        raise InputError(f"there is no checkpoint of these splats, iteration {saved:,}. {way}: {resume_line(folder)}")
    return plan_training(TrainOptions(resume=folder), also_over=True)


def _own_run(options: TrainOptions, begin: Beginning | None, named: Path | None) -> tuple[Path | None, TrainConfig]:
    """Returns the capture of the run to continue, None if there is none or it is unknown, and the settings that options
    change. `named` is the capture that the command line names."""
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
        source, own = run_around(begin.path)
        recipe = recipe or own
    recipe = recipe or preset("inria", options.iterations)
    if begin is None:
        return source, recipe
    # Splats keep the filter they were trained with, and stay what they are unless the recipe is for something else;
    # the trainer refuses what cannot become another primitive.
    primitive = begin.primitive if recipe.primitive == "3dgs" else recipe.primitive
    return source, replace(recipe, antialiasing=begin.filter, primitive=primitive)
