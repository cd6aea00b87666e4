"""Opening a bare folder of photographs in the window: the search for its cameras, beside pictures and training.

The engine asks `CameraHunt` from its own thread, many times a second. The search is `assets/sfm.py`.
"""

from __future__ import annotations

import time
from pathlib import Path

from splatscope.app.find_cameras import found_sentence, uses_of_masks
from splatscope.app.plan import RunPlan
from splatscope.app.scene import Scene, open_scene
from splatscope.assets.sfm import NoCamerasError
from splatscope.viewer.messages import OpenScene, SearchStatus

NEWS_SECONDS = 0.2  # between two looks at how far it is


def open_for(maker: object, path: Path, images: str) -> Scene:
    """What lies at `path`, for the run that a `RunPlan` makes, if that is what makes runs.

    Raises InputError, and where a search would help NoCamerasError.
    """
    if not isinstance(maker, RunPlan):
        return open_scene(path, images)
    try:
        return open_scene(path, images, uses_of_masks(maker.config.data.masks, maker.begin is not None))
    except NoCamerasError as error:
        if maker.begin is None:
            raise
        raise error.lost(maker.begin.path) from error


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
