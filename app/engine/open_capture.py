"""All that belongs to an open capture: its training run, its photographs, the page about it.

The engine makes one for each capture it opens and asks it from its own thread. `run/plan.py` is what a run would be,
`run/controller.py` the run, `photograph_cache.py` the pixels.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from splatscope.app.engine.photograph_cache import PhotographCache
from splatscope.app.opening.examine import examine, time_of
from splatscope.app.opening.scene import listed_views, middle_box
from splatscope.app.run.controller import RunController, way_back
from splatscope.app.run.plan import RunPlan
from splatscope.assets.capture import Capture
from splatscope.assets.checks.checkup import Finding
from splatscope.kernels.backend import Backend
from splatscope.kernels.errors import InputError
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.commands import Command, SetRecipe
from splatscope.viewer.messages.view import NamedCamera, Recipe, SceneInfo

if TYPE_CHECKING:  # torch loads only if a capture is opened
    from splatscope.training.trainer import Trainer

TrainerFactory = Callable[[Capture, Backend], "Trainer"]


class OpenCapture:
    """See the module's text."""

    def __init__(
        self,
        capture: Capture,
        factory: TrainerFactory,
        backend: Backend,
        note: Callable[[str, str], None],
        on_news: Callable[[], None],
    ) -> None:
        """Raises InputError if nothing can be trained on."""
        self.capture = capture
        self._backend = backend
        self._note = note
        self._on_news = on_news
        self._shelf_of: object = None
        self._runs = 0  # begun so far
        self._begin_anew(factory)

    def _begin_anew(self, factory: TrainerFactory) -> None:
        """A run that has not begun; everything stays as it is if it cannot be made."""
        session = RunController(factory(self.capture, self._backend), self._note)
        self.factory, self.session = factory, session
        self._runs += 1
        self.recipe = factory.recipe() if isinstance(factory, RunPlan) and factory.begin is None else None
        config = session.trainer.config
        self.checkup: tuple[Finding, ...] = examine(self.capture, config).findings
        look = session.trainer.dataset.background, config.data.alpha, config.data.masks
        if self._shelf_of != look:
            self.close()
            self._shelf_of = look
            self.shelf = PhotographCache(listed_views(self.capture), *look, self._on_news)

    def _begin_instead(self, factory: TrainerFactory) -> None:
        """Another run in place of this one, which is let go of first: a GPU need not have room for both. If the other
        cannot be made, this one stands again where it stood, from a copy on the host; then raises why."""
        from splatscope.training.files.checkpoint import checkpoint_path
        from splatscope.training.trainer import Beginning, Trainer

        trainer, standing = self.session.trainer, self.session.standing
        if standing.state == "error":  # nothing can be asked of it any more
            self._begin_anew(factory)
            return
        kept, config, out = trainer.snapshot(), trainer.config, trainer.out_dir
        self.session.let_go()
        del self.session, trainer
        if (forget := getattr(self._backend, "forget", None)) is not None:
            forget()
        gc.collect()  # steps and their buffers know each other
        try:
            self._begin_anew(factory)
        except BaseException:
            begin = Beginning(checkpoint_path(out, kept.iteration), kept, iteration=kept.iteration)
            self.session = RunController(Trainer(self.capture, config, self._backend, out, begin), self._note)
            self.session.standing = standing
            raise

    def obey(self, command: Command) -> bool:
        """Carries out what is asked of the run; True if it is another run now. Raises InputError if it cannot be."""
        runs = self._runs
        match command:
            case commands.ResetTraining():
                self.reset()
            case commands.SetRecipe():
                self.set_recipe(command)
            case commands.GoBack():
                self.go_back()
            case commands.StartTraining():
                self.session.start(command.until)
            case commands.PauseTraining():
                self.session.pause()
            case commands.StepTraining():
                self.session.step()
            case commands.StopTraining():
                self.session.stop(command.save)
            case commands.ForeseeTime():
                self.foresee_time()
            case commands.ScoreNow():
                self.session.score()
            case _:
                raise AssertionError(command)
        return self._runs != runs

    def go_back(self) -> None:
        """Stands at the newest checkpoint, or at the run's beginning if there is none. Raises InputError while it is
        running, and for a checkpoint that cannot be read. A second request, while nothing is wrong, is none."""
        if not self.session.troubled:
            return
        path = way_back(self.session.trainer)
        if path is None:
            self.reset()
            return
        if self.session.state in ("running", "stopping") or not isinstance(self.factory, RunPlan):
            raise InputError("Training is running; pause it before it goes back.")
        from splatscope.training.files.checkpoint import read_checkpoint
        from splatscope.training.trainer import Beginning

        checkpoint = read_checkpoint(path)
        begin = Beginning(path, checkpoint, iteration=checkpoint.iteration)
        plan = self.factory
        trainer = self.session.trainer  # whose run may have been made longer
        again = replace(plan, config=trainer.config, out=trainer.out_dir, begin=begin)
        del trainer
        self._begin_instead(again)
        self.factory = plan  # a reset still means its beginning
        self.session.state = "paused"
        self._note("info", f"The run is at iteration {checkpoint.iteration:,} again, that of {path}.")

    def reset(self) -> None:
        """Throws the run away. Raises InputError while it is running."""
        if self.session.state in ("running", "stopping"):
            raise InputError("Training is running; pause it before it is reset.")
        if not self.session.has_begun:
            return
        self._begin_instead(self.factory.again() if isinstance(self.factory, RunPlan) else self.factory)
        self._note("info", f"The run is at its beginning again; it will write to {self.session.trainer.out_dir}.")

    def set_recipe(self, wish: SetRecipe) -> None:
        """Another recipe for a run that has not begun. Raises InputError if it cannot be used; the old one stays."""
        if not isinstance(self.factory, RunPlan) or self.open_recipe is None:
            raise InputError("The recipe cannot change once training has begun; reset the run first.")
        try:
            self._begin_anew(self.factory.changed(wish))
        except InputError as error:
            named = (*(name for name, _ in wish.changes), *(("out",) if wish.out is not None else ()))
            self.recipe = replace(self.factory.recipe(), refused=(named, str(error)))
            raise

    def foresee_time(self) -> None:
        """Adds to the page how long a run that has not begun would take, measured on a few photographs."""
        if not self.session.has_begun:
            others = (finding for finding in self.checkup if finding.topic != "time")
            time = time_of(self.capture, self.session.trainer.config, self._backend)
            self.checkup = (*others, time)

    @property
    def open_recipe(self) -> Recipe | None:
        """The recipe while it can be changed."""
        return None if self.session.has_begun else self.recipe

    def describe(self, info: SceneInfo) -> SceneInfo:
        """The scene as it is while this capture is being trained."""
        trainer = self.session.trainer
        gaussians = trainer.gaussians
        box = (info.low, info.high) if self.capture.points else middle_box(gaussians.means)
        config, background = trainer.config, trainer.dataset.background
        info = replace(info, low=box[0], high=box[1], sh_degree=config.sh_degree, background=background)
        return replace(info, cameras=self._cameras(info), filter=config.antialiasing)

    def _cameras(self, info: SceneInfo) -> tuple[NamedCamera, ...]:
        """Those of the scene; the ones that the run holds out say so."""
        if self.capture.test_views:  # the set's own, whatever the run
            return info.cameras
        held_out = {view.name for view in self.session.trainer.dataset.held_out_views}
        return tuple(replace(camera, is_test=camera.name in held_out) for camera in info.cameras)

    def close(self) -> None:
        """Ends the thread that decodes."""
        if self._shelf_of is not None:
            self.shelf.close()
