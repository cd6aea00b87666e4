"""A run's own folder, when it is opened to be looked at: what goes on from there, and which views it held out.

`training_setup.py` reads it, as for `train --resume FOLDER`; `opening/opening.py` asks. torch loads only if a run can
go on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from splatscope.assets.files.json_fields import read_json
from splatscope.assets.trained.model_folder import iterations
from splatscope.kernels.errors import InputError
from splatscope.training.files.folder import FOLDER, checkpoints, newest_iteration, resume_line

if TYPE_CHECKING:
    from splatscope.app.run.training_setup import TrainingPlan

SETTINGS = "settings.json"


def run_at(path: Path) -> Path | None:
    """The folder of the run that a person means by `path`, which may name its checkpoints; None if it is no run's."""
    folder = Path(os.path.abspath(path.expanduser()))
    folder = folder.parent if folder.name == FOLDER else folder
    has_state = (folder / SETTINGS).is_file() and bool(checkpoints(folder) or iterations(folder))
    return folder if has_state else None


def plan_from(folder: Path) -> TrainingPlan:
    """The run as it goes on from its newest checkpoint, also if it is over. Raises InputError: why it cannot."""
    from splatscope.app.options.subcommands import TrainOptions
    from splatscope.app.run.training_setup import plan_training, run_settings

    source, _ = run_settings(folder)
    if not source.exists():
        raise InputError(
            f"the capture of this run, {source}, is not there any more. Where it has another path now, the run goes on "
            f"with splatscope train CAPTURE --resume {quote(str(folder))}"
        )
    newest, saved = newest_iteration(folder), max(iterations(folder), default=0)
    if newest < saved:
        way = f"The run goes on from iteration {newest:,}" if newest else "A new run begins with them"
        raise InputError(f"there is no checkpoint of these splats, iteration {saved:,}. {way}: {resume_line(folder)}")
    return plan_training(TrainOptions(resume=folder), also_over=True)


def listed_held_out(folder: Path) -> list[str] | None:
    """The names of the views that the run in a folder held out; None if its settings do not list them."""
    try:
        names: Any = read_json(folder / SETTINGS, "the settings of a run").get("held_out")
    except (InputError, AttributeError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def held_out(folder: Path, names: Iterable[str]) -> frozenset[str]:
    """Which of the views in `cameras.json` the run in a folder held out, as far as its settings say."""
    try:
        if (listed := listed_held_out(folder)) is not None:
            return frozenset(listed)
        stored: Any = read_json(folder / SETTINGS, "the settings of a run")
        data = stored["training"]["data"]
        # Before they were listed: of a set without a split of its own, as `split_views` in training/data/dataset.py has
        # it.
        every = data["holdout_interval"] if data["eval"] is True and stored["kind"] == "colmap" else 0
        return frozenset(sorted(names)[::every]) if every else frozenset()
    except (InputError, KeyError, TypeError, ValueError):
        return frozenset()
