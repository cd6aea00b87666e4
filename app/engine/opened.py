"""Answers for what is open: nothing, splats, or a capture with its run, its photographs and the page about it.

The engine asks from its own thread and need not know which of the three it has. `app/run/controller.py` is the run,
`photograph_cache.py` has the pixels of the photographs.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path

from splatscope.app.engine.photograph_cache import PhotographCache
from splatscope.app.engine.survey import ViewSurvey
from splatscope.app.opening.examine import examine, time_of
from splatscope.app.opening.scene import Scene, listed_views, middle_box
from splatscope.app.provenance import Provenance
from splatscope.app.run.controller import RunController, TrainerFactory
from splatscope.assets.capture import Capture
from splatscope.assets.checks.checkup import Finding
from splatscope.assets.splats.ply import write_ply
from splatscope.kernels.backend import Backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.types import Gaussians
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.commands import Command
from splatscope.viewer.messages.run import TrainingStatus
from splatscope.viewer.messages.view import EngineStatus, NamedCamera, SceneInfo, ViewRequest

NOTHING_OPEN = "Nothing is open yet; open a PLY, a model folder or a capture first."
NOTHING_TO_TRAIN = "Nothing to train is open; open a capture (photographs with cameras) first."


class Opened:
    """Answers while nothing is open; `OpenSplats` and `OpenCapture` answer for the two things that can be."""

    generation = 0  # grows with every scene that is opened
    version = 0  # grows with every change of the splats

    def __init__(self) -> None:
        self.survey: ViewSurvey | None = None  # the newest
        self._copy: tuple[int, Gaussians] | None = None  # version and splats

    def close(self) -> None:
        """Frees what is open before something else takes its place."""

    # ---- Splats ------------------------------------------------------------------------------------

    @property
    def gaussians(self) -> Gaussians | None:
        """Returns the splats as they are now; None if there are none."""
        return None

    @property
    def primitive(self) -> Primitive | None:
        """Returns what the splats are; None if there are none."""
        gaussians = self.gaussians
        return None if gaussians is None else gaussians.primitive

    def splats_to_view(self) -> Gaussians:
        """Returns the splats as one object for each version: backends keep arrays for the object they were given.

        Raises InputError if nothing is open.
        """
        if self._copy is None or self._copy[0] != self.version:
            if (gaussians := self.gaussians) is None:
                raise InputError(NOTHING_OPEN)
            self._copy = self.version, copy(gaussians)
        return self._copy[1]

    def splats_changed(self) -> None:
        """Notes that pictures of the splats are out of date."""
        self.version += 1

    def save_ply(self, path: Path) -> None:
        """Writes the splats as they are now. Raises InputError if nothing is open or the file cannot be written."""
        raise InputError(NOTHING_OPEN)

    def provenance(self, backend: Backend) -> Provenance:
        """Returns the label of measurements and pictures. Raises InputError if nothing is open."""
        raise InputError(NOTHING_OPEN)

    # ---- Photographs -------------------------------------------------------------------------------

    def photographs_read(self, request: ViewRequest) -> int:
        """Returns how many photographs have been read, if a picture for `request` depends on it, else 0."""
        return 0

    @property
    def photographs(self) -> PhotographCache | None:
        """Returns the photographs; None if there are none."""
        return None

    def load_thumbnails(self, indices: tuple[int, ...]) -> None:
        """Begins to read small photographs; splats have none."""

    def begin_survey(self, request: ViewRequest) -> None:
        """Begins to measure every known view, drawn as `request` draws. Raises InputError if nothing is open."""
        raise InputError(NOTHING_OPEN)

    @property
    def is_surveyed(self) -> bool:
        """Returns True while views are being measured and the splats have to stay as they are."""
        return self.survey is not None and self.survey.active

    # ---- The run -----------------------------------------------------------------------------------

    @property
    def run(self) -> RunController | None:
        """Returns the run; None if nothing can be trained."""
        return None

    @property
    def is_training(self) -> bool:
        """Returns True while the run has something to do."""
        return self.run is not None and self.run.active

    def obey(self, command: Command) -> None:
        """Carries out a command to the run. Raises InputError if there is no run, or if it cannot be carried out."""
        raise InputError(NOTHING_TO_TRAIN)

    # ---- For the window ----------------------------------------------------------------------------

    def status(self, view_cost: float) -> EngineStatus:
        """Returns the part of the engine's status that is about what is open.

        `view_cost` is the share of the time that pictures take from training.
        """
        return EngineStatus()


class OpenSplats(Opened):
    """Answers for splats that were read from a file."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.scene = scene
        self.generation = scene.info.generation

    @property
    def gaussians(self) -> Gaussians | None:
        return self.scene.gaussians

    def save_ply(self, path: Path) -> None:
        if (splats := self._whole_splats()) is None:
            raise InputError(NOTHING_OPEN)
        write_ply(path, splats, offset=self.scene.offset, filter=self.scene.info.filter)

    def _whole_splats(self) -> Gaussians | None:
        """Returns the splats as saved files hold them."""
        return self.gaussians

    def provenance(self, backend: Backend) -> Provenance:
        info = self.scene.info
        return Provenance(info.path, info.iteration, backend.name, backend.device)

    def begin_survey(self, request: ViewRequest) -> None:
        cameras = [named.camera for named in self.scene.info.cameras]
        self.survey = ViewSurvey(cameras, (), "background", "use", self.splats_to_view(), request)

    def obey(self, command: Command) -> None:
        raise InputError(self.scene.remark or NOTHING_TO_TRAIN)

    def status(self, view_cost: float) -> EngineStatus:
        return EngineStatus(
            scene=self.scene.info,
            splat_count=splats.count if (splats := self.gaussians) else 0,
            training=TrainingStatus(note=self.scene.remark),
            views=self.survey.figures if self.survey else (),
        )


class OpenCapture(OpenSplats):
    """Answers for a capture, whose splats are those of its run."""

    def __init__(
        self,
        scene: Scene,
        capture: Capture,
        make_trainer: TrainerFactory,
        backend: Backend,
        log: Callable[[str, str], None],
        on_photograph: Callable[[], None],
    ) -> None:
        """Opens the capture for training. `log` takes a level and a line for the user; the thread that reads
        photographs calls `on_photograph`.

        Raises InputError if nothing can be trained on.
        """
        super().__init__(scene)
        self._capture = capture
        self._backend = backend
        self._on_photograph = on_photograph
        self._photograph_settings: object = None  # what the pixels of photographs depend on
        self.checkup: tuple[Finding, ...] = ()
        self._run = RunController(make_trainer(capture, backend), log, make_trainer)
        self._follow_run()

    @property
    def run(self) -> RunController:
        return self._run

    @property
    def photographs(self) -> PhotographCache:
        return self._photographs

    def close(self) -> None:
        self.photographs.close()

    def _follow_run(self) -> None:
        """Brings everything up to date with a run that has just been made."""
        trainer = self.run.trainer
        config, background = trainer.config, trainer.dataset.background
        self.checkup = examine(self._capture, config).findings
        photograph_settings = background, config.data.alpha, config.data.masks
        if self._photograph_settings != photograph_settings:
            if self._photograph_settings is not None:
                self.photographs.close()
            self._photograph_settings = photograph_settings
            self._photographs = PhotographCache(listed_views(self._capture), *photograph_settings, self._on_photograph)
        self.scene = replace(self.scene, info=self._describe(self.scene.info))
        self.survey = None
        self.splats_changed()

    def _describe(self, info: SceneInfo) -> SceneInfo:
        """Describes the scene as the run draws it."""
        trainer = self.run.trainer
        config, background = trainer.config, trainer.dataset.background
        box = (info.low, info.high) if self._capture.points else middle_box(trainer.gaussians.means)
        info = replace(info, low=box[0], high=box[1], sh_degree=config.sh_degree, background=background)
        kept = {"filter": config.antialiasing, "primitive": config.primitive}
        return replace(info, cameras=self._mark_held_out(info.cameras), **kept)

    def _mark_held_out(self, cameras: tuple[NamedCamera, ...]) -> tuple[NamedCamera, ...]:
        """Marks the cameras that the run holds out for tests."""
        if self._capture.test_views:  # the capture has its own test split, whatever the run
            return cameras
        held_out = {view.name for view in self.run.trainer.dataset.held_out_views}
        return tuple(replace(camera, is_test=camera.name in held_out) for camera in cameras)

    @property
    def gaussians(self) -> Gaussians | None:
        return self.run.trainer.gaussians

    def _whole_splats(self) -> Gaussians | None:
        """Returns the splats with all rows of harmonics that the run's own files have, also those not trained yet."""
        trainer = self.run.trainer
        return trainer.gaussians.with_sh_degree(trainer.config.sh_degree)

    def provenance(self, backend: Backend) -> Provenance:
        return replace(super().provenance(backend), iteration=self.run.trainer.iteration)

    def photographs_read(self, request: ViewRequest) -> int:
        return self.photographs.version if request.photograph else 0

    def load_thumbnails(self, indices: tuple[int, ...]) -> None:
        self.photographs.want_small(indices)

    def begin_survey(self, request: ViewRequest) -> None:
        cameras, data = [named.camera for named in self.scene.info.cameras], self.run.trainer.config.data
        views = listed_views(self._capture)
        self.survey = ViewSurvey(cameras, views, data.alpha, data.masks, self.splats_to_view(), request)

    def obey(self, command: Command) -> None:
        match command:
            case commands.StartTraining():
                self.run.start(command.until)
            case commands.PauseTraining():
                self.run.pause()
            case commands.StepTraining():
                self.run.step()
            case commands.StopTraining():
                self.run.stop(command.save)
            case commands.ScoreNow():
                self.run.score()
            case commands.ForeseeTime():
                self._foresee_time()
            case commands.SetRecipe():
                self.run.set_recipe(command)
                self._follow_run()
            case commands.ResetTraining() | commands.GoBack():
                self._copy = self.survey = None  # both hold splats, whose memory the next run may need
                is_reset = isinstance(command, commands.ResetTraining)
                if self.run.reset() if is_reset else self.run.go_back():
                    self._follow_run()
            case _:
                raise AssertionError(command)

    def _foresee_time(self) -> None:
        """Adds to the page how long a run that has not begun would take, measured on a few photographs."""
        if not self.run.has_begun:
            others = (finding for finding in self.checkup if finding.topic != "time")
            self.checkup = (*others, time_of(self._capture, self.run.trainer.config, self._backend))

    def status(self, view_cost: float) -> EngineStatus:
        return replace(
            super().status(view_cost),
            training=self.run.status(view_cost),
            recipe=self.run.open_recipe,
            checkup=self.checkup,
            thumbnails=self.photographs.thumbnails(),
        )
