"""Plans a run that has not begun: its settings, its folder, its capture, and what it begins with.

A `RunPlan` is a value: a change makes a new one, so that a refused change leaves the old one as it was.
`from_options.py` makes one from a command line, `recipe_form.py` shows one as a form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from splatscope.app.run.recipe_form import form_of, nearest_preset
from splatscope.kernels.errors import InputError
from splatscope.training.config import TrainConfig
from splatscope.training.files.folder import holdings
from splatscope.training.recipes import PRESETS, preset, with_settings
from splatscope.viewer.messages.commands import SetRecipe
from splatscope.viewer.messages.view import Recipe

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.assets.capture import Capture
    from splatscope.kernels.backend import Backend
    from splatscope.training.trainer import Beginning, Trainer

_NUMBERED = 1000  # folders tried for a name that is free


@dataclass(frozen=True)
class RunPlan:
    """Holds all that a run needs to begin; calling it with a capture and a backend makes the trainer."""

    config: TrainConfig
    out: Path | None = None  # None: output/<capture>-<date>
    begin: Beginning | None = None  # checkpoint or splats that the run begins with; None: the capture's points
    capture: Path | None = None  # None: the capture that the window opens
    remark: str = ""  # a sentence about what the run has to do without

    def __call__(self, capture: Capture, backend: Backend) -> Trainer:
        """Returns a trainer that has read no photograph. Raises InputError if its folder holds a model already."""
        from splatscope.training.trainer import Trainer  # loads torch

        out = self.out or default_out(capture.path.resolve().name)
        self.check_folder(out)
        return Trainer(capture, self.config, backend, out, self.begin)

    def check_folder(self, out: Path) -> None:
        """Raises InputError if the run would write among the results of another."""
        begin = self.begin
        goes_on = begin is not None and begin.checkpoint is not None and out.absolute() in begin.path.absolute().parents
        if (held := holdings(out)) and not goes_on:
            raise InputError(
                f"{out} already holds {held}; give another --out, --resume {quote(str(out))} to continue it, or "
                f"remove that folder first."
            )

    def changed(self, wish: SetRecipe) -> RunPlan:
        """Returns the plan with the wanted changes. Raises InputError for a value no run can use."""
        config, changes = self.config, dict(wish.changes)
        name = wish.preset or (preset_of(config) if "iterations" in changes else "")
        if name:  # some recipes derive other values from the length of the run
            length = changes.get("iterations", "")
            config = replace(preset(name, int(length) if length.isdecimal() else None), data=config.data)
        config = with_settings(config, [f"{name}={text}" for name, text in wish.changes])
        config.check()
        out = self.out if wish.out is None else Path(wish.out).expanduser() if wish.out.strip() else None
        if out is not None and "\0" in str(out):
            raise InputError(f"No folder's name may hold the character zero, as {str(out)!r} does; name another.")
        if out is not None and (held := holdings(out)):
            raise InputError(f"{out} already holds {held}; name another folder.")
        return replace(self, config=config, out=out)

    def again(self) -> RunPlan:
        """Returns the same run once more, with another folder if this one has been written to."""
        if self.out is None or self.begin is not None or not holdings(self.out):
            return self
        names = (self.out.with_name(f"{self.out.name}-{number}") for number in range(2, _NUMBERED))
        return replace(self, out=next((path for path in names if not holdings(path)), None))

    def for_another(self) -> RunPlan:
        """Returns a plan for a capture that is opened later: only the settings stay."""
        return replace(self, out=None, begin=None, capture=None, remark="")

    def recipe(self) -> Recipe:
        """Returns the form that the window draws."""
        base, is_it = nearest_preset(self.config)
        out = "" if self.out is None else str(self.out)
        return Recipe(base if is_it else "", tuple(PRESETS), form_of(self.config, base), out, base)


def preset_of(config: TrainConfig) -> str:
    """Returns the recipe that a configuration follows, settings of photographs aside; "" if it follows none."""
    name, is_it = nearest_preset(config)
    return name if is_it else ""


def default_out(name: str) -> Path:
    """Returns output/<name>-<date> in the current folder, numbered if that exists."""
    folder = Path("output") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in range(2, _NUMBERED))
    return folder if not folder.exists() else next((path for path in numbered if not path.exists()), folder)
