"""Opening a path in the window: a run's folder to go on (`run/folder.py`), and of a bare folder of photographs the
search for its cameras, beside pictures and training.

The engine asks `CameraHunt` from its own thread, many times a second. The search is `assets/sfm/search.py`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from splatscope.app.opening.find_cameras import found_sentence, uses_of_masks
from splatscope.app.opening.scene import Scene, open_scene
from splatscope.app.run.folder import plan_from, run_at
from splatscope.app.run.plan import RunPlan
from splatscope.assets.sfm.search import NoCamerasError
from splatscope.assets.splats.activated import Activated
from splatscope.assets.trained.model_folder import iterations
from splatscope.kernels.errors import InputError
from splatscope.viewer.messages.commands import OpenScene
from splatscope.viewer.messages.view import SearchStatus

Maker = TypeVar("Maker")

NEWS_SECONDS = 0.2  # between two looks at how far it is


def open_for(maker: Maker, path: Path, images: str, activated: Activated = "auto") -> tuple[Scene, Maker | RunPlan]:
    """What lies at `path`, and what makes the run on it: `maker`, unless that has no run of its own to make and the
    path is the folder of one, which is opened as its capture, to go on; or as splats, if it cannot.
    `activated` says how the values of a splat file are read.

    Raises InputError, and where a search would help NoCamerasError.
    """
    if not isinstance(maker, RunPlan):
        return open_scene(path, images, activated=activated), maker
    is_free = maker.out is None and maker.begin is None
    folder = run_at(path) if is_free else None
    if folder is None:
        return _open_with(maker, path, images, activated), maker
    try:
        plan = plan_from(folder)
        run = RunPlan(plan.config, plan.out, plan.begin)
        scene = _open_with(run, plan.capture, plan.config.data.images)
    except InputError as error:
        if not iterations(folder):
            raise
        return replace(open_scene(folder, activated=activated), remark=f"Nothing can be trained here: {error}"), maker
    info, done = replace(scene.info, path=folder), plan.begin.iteration if plan.begin else 0
    return replace(scene, info=info, remark=f"It is iteration {done:,} of a run on {plan.capture}."), run


def _open_with(plan: RunPlan, path: Path, images: str, activated: Activated = "auto") -> Scene:
    try:
        data = plan.config.data
        return open_scene(path, images, uses_of_masks(data.masks, plan.begin is not None), data.axes, activated)
    except NoCamerasError as error:
        if plan.begin is None:
            raise
        raise error.lost(plan.begin.path) from error


class CameraHunt:
    """One search, and what to open once it is over."""

    def __init__(self, command: OpenScene, error: NoCamerasError) -> None:
        """Raises InputError if there is too little to begin with."""
        self.command = command
        self._folder = error.folder
        self._search = error.search()
        self._start = time.perf_counter()

    @property
    def status(self) -> SearchStatus:
        """How far it is."""
        progress = self._search.poll()
        share = progress.done / progress.total if progress.total else 0.0
        return SearchStatus(self._folder, progress.sentence(), share)

    @property
    def over(self) -> bool:
        """True once `finish` does not wait."""
        return self._search.over

    def finish(self) -> str:
        """What was found, in a sentence. Raises InputError if that is nothing."""
        try:
            return found_sentence(self._search.result(), time.perf_counter() - self._start)
        finally:
            self._search.close()

    def stop(self) -> str:
        """Ends it; what is said of that."""
        self._search.close()
        return f"Stopped looking for cameras. What was done is kept: opening {self.command.path} again goes on there."
