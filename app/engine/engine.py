"""Owns the model, the backend and the run, on one thread; nothing else touches them.

`Engine._take_turn` is the loop. In: the newest view request and a queue of commands. Out: the newest picture and an
immutable status. `EngineClient` in viewer/messages/client.py is the part of this that the window sees.

Read next: `opened.py` (nothing, splats, or a capture with its run), `frame_queue.py` (pictures), `active_policy.py`
(the policy that they are made with), `measurements.py`, and `app/run/controller.py` (the run).
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

from splatscope.app.engine.active_policy import ActivePolicy
from splatscope.app.engine.event_log import PICTURE, TRAINING, EventLog, kind_of
from splatscope.app.engine.frame_queue import FrameQueue
from splatscope.app.engine.mailbox import Mailbox
from splatscope.app.engine.measurements import Measurements
from splatscope.app.engine.opened import Opened
from splatscope.app.engine.pictures import save_screenshot
from splatscope.app.engine.scene_opener import SceneOpener
from splatscope.app.engine.view_budget import ViewBudget
from splatscope.app.opening.opening import NEWS_SECONDS
from splatscope.app.options.policy import NO_CHOICE, PolicyChoice
from splatscope.app.provenance import saved_in_words
from splatscope.app.run.controller import TrainerFactory
from splatscope.kernels.backend import Backend, BackendName
from splatscope.kernels.backends import make_backend, why_not_gpu
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.wording import counted
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.commands import Command
from splatscope.viewer.messages.view import EngineStatus, Picture, ViewRequest

STATUS_SECONDS = 0.1  # how old the published training status may be
COMPILER_SECONDS = 0.02  # pause between two checks whether kernels are compiled
IDLE_SECONDS = 0.5  # longest sleep without news


@dataclass(frozen=True)
class EngineConfig:
    """Lists what the engine needs in addition to messages."""

    backend: BackendName = "auto"
    images: str = "images"
    view_share: float = 0.1  # while training: largest share of the time for pictures of a still camera
    moving_share: float = 0.6  # the share for pictures of a moving camera
    view_rate: float = 32.0  # pictures a second while training, at most; 10 of a still camera
    nvtx: bool = False  # names for profilers
    toggles: PolicyChoice = NO_CHOICE  # toggles that the window begins with


class Engine:
    """Implements `EngineClient`; `close` ends the thread and saves a live run."""

    def __init__(
        self,
        config: EngineConfig,
        make_trainer: TrainerFactory,
        make_backend: Callable[..., Backend] = make_backend,
    ) -> None:
        self._config = config
        self._make_backend = make_backend
        self._mailbox = Mailbox()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._saving = False  # the thread may take long to end
        self._farewell: str | InputError = ""  # what `close` returns or raises
        # The fields below belong to the engine's thread.
        self._backend: Backend | None = None  # None until it is made, and if that fails
        self._backend_tried = False
        self._opened = Opened()
        self._opener = SceneOpener(make_trainer, config.images, self._note, self._mailbox.tell_of_photograph)
        self._policy = ActivePolicy()
        self._measurements = Measurements(self._note)
        self._budget = ViewBudget(config.view_share, config.moving_share, config.view_rate)
        self._frames = FrameQueue(self._budget, self._measurements.add_picture)
        self._log = EventLog()
        self._published = 0.0  # when the newest status was
        self._waiting: tuple[str, ...] = ()  # stages whose toggles training steps change once they are compiled

    # ---- The window's side -------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self, timeout: float = 60.0) -> str:
        """Ends the thread, waits for it and says how a live run was saved. Raises InputError if it cannot be saved."""
        self._mailbox.close()
        self._thread.join(timeout)
        self._thread.join(None if self._saving else 0.0)  # disks may be slow
        if isinstance(self._farewell, InputError):
            raise self._farewell
        return self._farewell

    def request_view(self, request: ViewRequest) -> None:
        """Replaces the wanted picture."""
        self._mailbox.request_view(request)

    def send(self, command: Command) -> None:
        """Queues a command."""
        self._mailbox.send(command)

    def picture(self) -> Picture | None:
        """Returns the newest finished picture."""
        return self._mailbox.picture()

    def status(self) -> EngineStatus:
        """Returns the newest status; while kernels compile, its `busy` says so."""
        status, backend = self._mailbox.status(), self._backend
        return replace(status, busy="compiling…") if backend is not None and backend.compiling else status

    def wait_for_news(self, seconds: float) -> None:
        """Sleeps until there is a new picture or status, for `seconds` at most."""
        self._mailbox.wait_for_news(seconds)

    # ---- The loop ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._mailbox.closing:
            try:
                if not self._take_turn():
                    self._publish()
                    self._sleep()
                elif time.perf_counter() - self._published > STATUS_SECONDS:
                    self._publish()
            except InputError as error:
                self._note("error", str(error))
            except MemoryError as error:
                self._note("error", f"There is not enough memory for this ({error}); use a smaller size.")
            except Exception as error:  # a defect of ours: the window stays, the reason is shown
                traceback.print_exc()
                self._note("error", f"Internal error: {type(error).__name__}: {error}")
                time.sleep(0.2)
        self._save_on_close()

    def _take_turn(self) -> bool:
        """Does what is next; False if there is nothing to do.

        The order is: the backend once, the wanted policy, one command, news of photographs and of a search; then, all
        three in one turn, the picture if one is wanted, a slice of a measurement, and one training event.
        """
        request = self._mailbox.request
        if request is not None and self._policy.want(request.policy, request.camera, self._opened.primitive):
            self._publish()
        if not self._backend_tried:
            self._begin_backend()
            return True
        if (command := self._mailbox.take_command()) is not None:
            self._finish_picture()  # commands may draw too
            with self._measurements.span(type(command).__name__), self._log.doing(kind_of(command)):
                self._obey(command)
            self._publish()
            return True
        if self._mailbox.take_photograph_news():
            self._publish()
            return True
        if (found := self._opener.take_found()) is not None:
            self._open(found)
            return True
        has_drawn = self._draw_if_due()
        has_measured = self._measure()
        has_trained = self._train()
        return has_drawn or has_measured or has_trained

    def _begin_backend(self) -> None:
        """Makes the backend, on this thread: importing kernels takes a second that the window should not wait for."""
        self._backend_tried = True
        wanted, toggles = self._config.backend, self._config.toggles
        self._backend = backend = self._make_backend(wanted, nvtx=self._config.nvtx)
        if wanted == "auto" and backend.name == "cpu" and (reason := why_not_gpu()):
            self._note("info", f"There is a GPU here, but the CPU renders. {reason}")
        for remark in toggles.remarks(backend.name):
            self._note("warning", remark)
        self._policy.begin(backend, toggles.policy)

    def _need_backend(self) -> Backend:
        if self._backend is None:
            raise InputError("Nothing can be rendered: the backend could not be made.")
        return self._backend

    def _sleep(self) -> None:
        is_compiling = bool(self._policy.compiling) or self._measurements.waiting
        seconds = COMPILER_SECONDS if is_compiling else NEWS_SECONDS if self._opener.is_searching else IDLE_SECONDS
        self._mailbox.sleep(seconds, unless=self._picture_is_due)

    def _save_on_close(self) -> None:
        said = self._opener.stop_search()
        try:
            if self._opened.run is not None:
                self._saving = True
                said = f"{said} {self._opened.run.save_on_close()}".strip()
            self._farewell = said
        except InputError as error:
            self._farewell = error

    # ---- Commands ----------------------------------------------------------------------------------

    def _obey(self, command: Command) -> None:
        """Carries out a command. Raises InputError if it cannot be carried out."""
        opened = self._opened
        match command:
            case commands.OpenScene():
                self._open(command)
            case commands.StopSearch():
                self._stop_search()
            case commands.SaveScreenshot():
                self._save_screenshot(command)
            case commands.SavePly():
                opened.save_ply(command.path)
                self._note("info", f"Saved {command.path}.")
            case commands.Compare() | commands.RecordTrace() | commands.RecordFrame():
                backend, splats = self._need_backend(), opened.splats_to_view()
                self._measurements.begin(command, backend, splats, opened.provenance(backend))
            case commands.SaveComparison() | commands.SaveRecordedFrame():
                self._measurements.save(command)
            case commands.DrawAgain():
                self._frames.forget_shown()
            case commands.SetViewShare():
                self._budget.share, self._budget.rate = command.share, command.rate
            case commands.SurveyViews():
                opened.begin_survey(self._policy.adapt(command.request))
            case commands.LoadThumbnails():
                opened.load_thumbnails(command.indices)
            case commands.ResetTraining() | commands.GoBack() if opened.run is not None:
                self._measurements.drop_comparison()  # it holds splats, whose memory the next run may need
                opened.obey(command)
            case _:
                opened.obey(command)

    def _open(self, command: commands.OpenScene) -> None:
        """Opens a path; what is open stays if that fails and while cameras are being found."""
        if self._opened.is_training:
            raise InputError("A training run is live; stop it before opening something else.")
        backend, path = self._need_backend(), command.path
        self._stop_search()
        self._publish(busy=f"opening {path.name}…")
        opened = self._opener.open(command, backend, self._opened.generation + 1)
        if opened is None:
            return
        self._opened.close()
        self._opened = opened
        self._measurements.drop_comparison()
        splats, scene = opened.gaussians, opened.scene
        count = counted(splats.count if splats else 0, "splat")
        self._note("info", f"Opened {path}: {count}. {scene.remark}".rstrip())
        for warning in scene.info.warnings:  # last, as the newest line is the one that the status bar shows
            self._note("warning", warning)
        if command.then_train:
            opened.obey(commands.StartTraining())

    def _stop_search(self) -> None:
        if said := self._opener.stop_search():
            self._note("info", said)

    def _save_screenshot(self, command: commands.SaveScreenshot) -> None:
        backend, request = self._need_backend(), self._policy.adapt(command.request)
        splats = self._opened.splats_to_view()
        frame = backend.render(splats, request.camera, request.settings, request.policy)
        about = self._opened.provenance(backend)
        self._note("info", saved_in_words(save_screenshot(frame, request, command.folder, about.stamped(), about)))

    # ---- Pictures, measurements and training -------------------------------------------------------

    def _picture_is_due(self) -> bool:
        """Returns True if a picture is to be begun or finished."""
        if self._frames.busy:
            return self._frames.ready or not self._opened.is_training
        request, policy = self._mailbox.request, self._policy.current
        if request is None or policy is None:
            return False
        return self._frames.is_due(self._opened, request, policy, self._measurements.recording)

    def _draw_if_due(self) -> bool:
        """Begins or finishes a picture if one is due. While training runs, a GPU's picture is only begun here."""
        if not self._picture_is_due():
            return False
        backend, request, policy = self._need_backend(), self._mailbox.request, self._policy.current
        with self._measurements.span("picture"), self._policy.on_trial(), self._log.doing(PICTURE):
            if not self._frames.busy:
                assert request is not None
                assert policy is not None
                self._frames.begin(backend, self._opened, request, policy)
                if self._opened.is_training and not self._frames.ready:
                    return True
            self._finish_picture()
        self._policy.note_success()
        return True

    def _finish_picture(self) -> None:
        """Shows the picture that is on its way, if there is one."""
        if self._frames.busy:
            self._mailbox.show(self._frames.finish(self._opened.photographs))

    def _measure(self) -> bool:
        """Measures for one picture's time, if anything is to be measured."""
        if self._backend is None:
            return False
        if self._measurements.finish_recording():
            self._publish()
        if (survey := self._opened.survey) is not None and survey.active:
            survey.step(self._backend)
            return True
        was_measuring = self._measurements.measuring
        has_measured = self._measurements.measure(self._backend)
        if was_measuring and not self._measurements.measuring:
            self._publish()
        return has_measured

    def _train(self) -> bool:
        """Takes one training event, unless the splats have to stay as they are."""
        run = self._opened.run
        if run is None or not run.active or self._measurements.measuring or self._opened.is_surveyed:
            return False
        request = self._mailbox.request
        self._waiting = run.trainer.use(request.policy if request else self._config.toggles.policy)
        start, before = time.perf_counter(), run.trainer.iteration
        with self._measurements.span("training event"), self._log.doing(TRAINING):
            if run.advance():
                self._opened.splats_changed()
        if run.trainer.iteration != before:
            self._measurements.add_step(run.progress.stage_ms, start)
        if not run.active:
            self._publish()
        return True

    def _note(self, level: str, text: str) -> None:
        """Adds a line to the user's log."""
        self._log.add(level, text)
        self._publish()

    def _publish(self, busy: str = "") -> None:
        self._published = now = time.perf_counter()
        policy, backend = self._policy, self._backend
        if policy.current is None and policy.compiling:
            busy = busy or "compiling kernels…"
        waiting = self._waiting if self._opened.is_training else ()
        status = self._measurements.add_to(self._opened.status(self._budget.cost(now)))
        self._mailbox.publish(
            replace(
                status,
                busy=busy,
                search=self._opener.searching,
                log=tuple(self._log.lines),
                done=dict(self._log.done),
                backend=backend.name if backend else "",
                device=backend.device if backend else "",
                policy=policy.current or Policy(),
                compiling=tuple(dict.fromkeys((*policy.compiling, *waiting))),
                refused=policy.refused,
            )
        )
