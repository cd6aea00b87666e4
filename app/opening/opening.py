"""Opens a path in the window: the folder of a run to continue it, a bare folder of photographs to find its cameras.

The engine asks `CameraHunt` from its own thread, many times a second. `run/resume.py` reads a run's folder,
`assets/sfm/search.py` searches.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from splatscope.app.opening.find_cameras import found_sentence, uses_of_masks
from splatscope.app.opening.scene import Scene, open_scene
from splatscope.app.run.from_options import plan_from
from splatscope.app.run.plan import RunPlan
from splatscope.app.run.resume import run_at
from splatscope.assets.sfm.search import NoCamerasError
from splatscope.assets.splats.read_as import AS_USUAL, ReadAs
from splatscope.assets.trained.model_folder import iterations
from splatscope.kernels.errors import InputError
from splatscope.viewer.messages.commands import OpenScene
from splatscope.viewer.messages.view import SearchStatus

Maker = TypeVar("Maker")

NEWS_SECONDS = 0.2  # pause between two looks at the progress of a search


def open_for(maker: Maker, path: Path, images: str, read_as: ReadAs = AS_USUAL) -> tuple[Scene, Maker | RunPlan]:
    """Opens `path`; returns the scene, and what makes a run on it.

    `maker` makes the run, except for the folder of a run while `maker` is a plan without an output folder and without a
    run to continue. Such a folder is opened as the run's capture, with a plan that continues the run, or as splats if
    the run cannot continue. `read_as` says how a splat file is read.

    Raises InputError, and NoCamerasError if a search for cameras would help.
    """
    if not isinstance(maker, RunPlan):
        return open_scene(path, images, read_as=read_as), maker
    is_free = maker.out is None and maker.begin is None
    folder = run_at(path) if is_free else None
    if folder is None:
        return _open_with(maker, path, images, read_as), maker
    try:
        run = plan_from(folder)
        assert run.capture is not None, "a run's settings name its capture"
        scene = _open_with(run, run.capture, run.config.data.images)
    except InputError as error:
        if not iterations(folder):
            raise
        return replace(open_scene(folder, read_as=read_as), remark=f"Nothing can be trained here: {error}"), maker
    info, done = replace(scene.info, path=folder), run.begin.iteration if run.begin else 0
    return replace(scene, info=info, remark=f"It is iteration {done:,} of a run on {run.capture}."), run


def _open_with(plan: RunPlan, path: Path, images: str, read_as: ReadAs = AS_USUAL) -> Scene:
    try:
        data = plan.config.data
        return open_scene(path, images, uses_of_masks(data.masks, plan.begin is not None), data.axes, read_as)
    except NoCamerasError as error:
        if plan.begin is None:
            raise
        raise error.lost(plan.begin.path) from error


class CameraHunt:
    """Holds a search for cameras, and the command to carry out once it is over."""

    def __init__(self, command: OpenScene, error: NoCamerasError) -> None:
        """Raises InputError if there is too little to begin with."""
        self.command = command
        self._folder = error.folder
        self._search = error.search()
        self._start = time.perf_counter()

    @property
    def status(self) -> SearchStatus:
        """Returns the progress of the search."""
        progress = self._search.poll()
        share = progress.done / progress.total if progress.total else 0.0
        return SearchStatus(self._folder, progress.sentence(), share)

    @property
    def over(self) -> bool:
        """Returns True once `finish` does not wait."""
        return self._search.over

    def finish(self) -> str:
        """Returns the result as a sentence. Raises InputError if no cameras were found."""
        try:
            return found_sentence(self._search.result(), time.perf_counter() - self._start)
        finally:
            self._search.close()

    def stop(self) -> str:
        """Ends the search and returns a sentence about it."""
        self._search.close()
        return f"Stopped looking for cameras. What was done is kept: opening {self.command.path} again continues it."
