"""Opens paths for the engine, and searches for missing cameras while the engine does other work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from splatscope.app.engine.opened import OpenCapture, OpenSplats
from splatscope.app.opening.opening import CameraHunt, open_for
from splatscope.app.run.controller import TrainerFactory
from splatscope.app.run.plan import RunPlan
from splatscope.assets.sfm.search import NoCamerasError
from splatscope.kernels.backend import Backend
from splatscope.viewer.messages.commands import OpenScene
from splatscope.viewer.messages.view import SearchStatus


class SceneOpener:
    """Opens one path at a time, and keeps the search for cameras that a path may need."""

    def __init__(
        self,
        make_trainer: TrainerFactory,
        images: str,
        log: Callable[[str, str], None],
        on_photograph: Callable[[], None],
    ) -> None:
        """Prepares; opens nothing yet. `make_trainer` makes the run of the first capture. If it is a `RunPlan`, plans
        with the same settings make the runs of later captures.

        `log` takes a level and a line for the user; the thread that reads photographs calls `on_photograph`.
        """
        self._make_trainer = make_trainer
        self._images = images
        self._log = log
        self._on_photograph = on_photograph
        self._search: CameraHunt | None = None

    def open(self, command: OpenScene, backend: Backend, generation: int) -> OpenSplats | None:
        """Opens the path of a command as the scene of this number; None if a search for its cameras begins instead.

        Raises InputError if it cannot be opened and if nothing can be trained on.
        """
        try:
            scene, make_trainer = open_for(self._make_trainer, command.path, self._images, command.read_as)
        except NoCamerasError as error:
            self._search = CameraHunt(command, error)
            return None
        scene = replace(scene, info=replace(scene.info, generation=generation))
        if scene.capture is None:
            return OpenSplats(scene)
        opened = OpenCapture(scene, scene.capture, make_trainer, backend, self._log, self._on_photograph)
        if isinstance(self._make_trainer, RunPlan):
            self._make_trainer = self._make_trainer.for_another()
        return opened

    @property
    def is_searching(self) -> bool:
        """Returns True while a search for cameras runs, or is over and waits for `take_found`."""
        return self._search is not None

    @property
    def searching(self) -> SearchStatus | None:
        """Returns the progress of the search for cameras; None if there is no search."""
        return self._search.status if self._search else None

    def take_found(self) -> OpenScene | None:
        """Returns the command to open a path again once its cameras are found; None while there is nothing to open.

        Raises InputError if no cameras are found.
        """
        search = self._search
        if search is None or not search.over:
            return None
        self._search = None
        self._log("info", search.finish())
        return search.command

    def stop_search(self) -> str:
        """Ends the search, if there is one; returns a sentence about what is kept."""
        search, self._search = self._search, None
        return search.stop() if search is not None else ""
