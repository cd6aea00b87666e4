"""The one owner thread: it alone touches the model, the backend and the trainer.

In: a mailbox that holds the newest view request, and a queue of commands. Out: the newest picture and an
immutable status. It alternates: commands, then the picture if one is wanted, then one training event.
`EngineClient` in viewer/messages/client.py is what the window sees of it. `run/controller.py` is the training run,
`active_policy.py` the policy that pictures are made with, `measurements.py` what is measured beside.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from copy import copy
from dataclasses import dataclass, replace

from splatscope.app.engine.active_policy import ActivePolicy
from splatscope.app.engine.event_log import PICTURE, TRAINING, EventLog, kind_of
from splatscope.app.engine.frame_queue import Asked, FrameQueue
from splatscope.app.engine.measurements import Measurements
from splatscope.app.engine.open_capture import OpenCapture, TrainerFactory
from splatscope.app.engine.photograph_cache import PhotographCache
from splatscope.app.engine.pictures import save_screenshot
from splatscope.app.engine.survey import ViewSurvey, survey_of
from splatscope.app.engine.view_budget import ViewBudget
from splatscope.app.opening.opening import NEWS_SECONDS, CameraHunt, open_for
from splatscope.app.opening.scene import Scene
from splatscope.app.options.policy import NO_CHOICE, PolicyChoice
from splatscope.app.provenance import Provenance, saved_in_words
from splatscope.app.run.controller import RunController
from splatscope.app.run.plan import RunPlan
from splatscope.assets.capture import NO_OFFSET
from splatscope.assets.sfm.search import NoCamerasError
from splatscope.assets.splats.ply import write_ply
from splatscope.kernels.backend import Backend, BackendName
from splatscope.kernels.backends import make_backend, why_not_gpu
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Gaussians
from splatscope.kernels.wording import counted
from splatscope.viewer.messages import commands, view
from splatscope.viewer.messages.commands import Command
from splatscope.viewer.messages.view import EngineStatus, Picture, ViewRequest

STATUS_SECONDS = 0.1  # how old the published training status may be
COMPILER_SECONDS = 0.02  # between looks at whether kernels are there
IDLE_SECONDS = 0.5  # without news


@dataclass(frozen=True)
class EngineConfig:
    """What the engine needs beyond messages."""

    backend: BackendName = "auto"
    images: str = "images"
    view_share: float = 0.1  # of the time while training, at most this much goes to pictures of a still camera
    moving_share: float = 0.6  # the same while the camera moves
    view_rate: float = 32.0  # pictures a second while training, at most; 10 of a still camera
    nvtx: bool = False  # names for profilers
    toggles: PolicyChoice = NO_CHOICE  # that the window begins with


class Engine:
    """Implements `EngineClient`; `close` ends the thread and saves a live run."""

    def __init__(self, config: EngineConfig, make_trainer: TrainerFactory) -> None:
        self._config = config
        self._make_trainer = make_trainer
        self._news = threading.Condition()  # guards the fields below, up to the status
        self._request: ViewRequest | None = None
        self._commands: deque[Command] = deque()
        self._closing = self._saving = False
        self._farewell: str | InputError = ""
        self._photographs_came = False
        self._picture: Picture | None = None
        self._status = EngineStatus(busy="starting…")
        self._journal = EventLog()
        # What follows belongs to the engine thread.
        self._backend: Backend | None = None
        self._backend_tried = False
        self._policies: ActivePolicy | None = None
        self._instruments = Measurements(self._note)
        self._viewed: tuple[int, Gaussians] | None = None  # model version and splats
        self._scene: Scene | None = None
        self._hunt: CameraHunt | None = None  # for cameras of photographs that will be opened
        self._generation = 0
        self._desk: OpenCapture | None = None  # of an open capture
        self._survey: ViewSurvey | None = None  # the newest
        self._governor = ViewBudget(config.view_share, config.moving_share, config.view_rate)
        self._feed = FrameQueue(self._governor, self._instruments)
        self._model_version = 0
        self._published = 0.0
        self._waiting: tuple[str, ...] = ()  # stages whose toggles training steps change once they are compiled
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def _session(self) -> RunController | None:
        return self._desk.session if self._desk else None

    @property
    def _shelf(self) -> PhotographCache | None:
        return self._desk.shelf if self._desk else None

    # The window's side ------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self, timeout: float = 60.0) -> str:
        """Ends the thread and waits for it; says what of a live run was saved. Raises InputError if it cannot be."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        self._thread.join(timeout)
        self._thread.join(None if self._saving else 0.0)  # disks may be slow
        if isinstance(self._farewell, InputError):
            raise self._farewell
        return self._farewell

    def request_view(self, request: ViewRequest) -> None:
        """Replaces the wanted picture."""
        with self._news:
            if request != self._request:
                self._request = request
                self._news.notify_all()

    def send(self, command: Command) -> None:
        """Queues a command."""
        with self._news:
            self._commands.append(command)
            self._news.notify_all()

    def picture(self) -> Picture | None:
        """The newest finished picture."""
        with self._news:
            return self._picture

    def status(self) -> EngineStatus:
        """The newest snapshot; while kernels compile it says so."""
        with self._news:
            status = self._status
        backend = self._backend
        if backend is not None and backend.compiling:
            return replace(status, busy="compiling…")
        return status

    def wait_for_news(self, seconds: float) -> None:
        """Sleeps until a picture, a status or a log line is there, at most that long."""
        with self._news:
            self._news.wait(seconds)

    # The engine's side ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            try:
                self._follow_policy()
                if (
                    self._make_backend()
                    or self._take_command()
                    or self._take_photographs()
                    or self._follow_hunt()
                    or self._render_if_wanted() | self._measure() | self._train()
                ):
                    self._publish_if_due()
                else:
                    self._publish()
                    self._sleep()
            except InputError as error:
                self._note("error", str(error))
            except MemoryError as error:
                self._note("error", f"There is not enough memory for this ({error}); use a smaller size.")
            except Exception as error:  # a defect of ours: the window stays, the reason is shown
                traceback.print_exc()
                self._note("error", f"Internal error: {type(error).__name__}: {error}")
                time.sleep(0.2)
        self._save_on_close()

    def _make_backend(self) -> bool:
        """Once, on this thread: importing kernels takes a second that the window should not wait for."""
        if self._backend_tried:
            return False
        self._backend_tried = True
        wanted = self._config.backend
        self._backend = backend = make_backend(wanted, nvtx=self._config.nvtx)
        self._policies = ActivePolicy(backend)
        if wanted == "auto" and backend.name == "cpu" and (reason := why_not_gpu()):
            self._note("info", f"There is a GPU here, but the CPU renders. {reason}")
        for remark in self._config.toggles.remarks(backend.name):
            self._note("warning", remark)
        self._policies.prepare(self._config.toggles.policy)
        return True

    def _follow_policy(self) -> None:
        """Takes the wanted policy once it is compiled."""
        policies, request = self._policies, self._request
        if policies is None or request is None:
            return
        before = policies.current, policies.compiling, policies.refused
        policies.want(request.policy, request.camera)
        if before != (policies.current, policies.compiling, policies.refused):
            self._publish()

    def _sleep(self) -> None:
        is_compiling = bool(self._policies and self._policies.compiling) or self._instruments.waiting
        with self._news:
            if not (self._closing or self._commands or self._photographs_came or self._view_is_due()):
                self._news.wait(COMPILER_SECONDS if is_compiling else NEWS_SECONDS if self._hunt else IDLE_SECONDS)

    def _save_on_close(self) -> None:
        said = self._hunt.stop() if self._hunt else ""
        try:
            if self._session is not None:
                self._saving = True
                said = f"{said} {self._session.save_on_close()}".strip()
            self._farewell = said
        except InputError as error:
            self._farewell = error

    def _take_command(self) -> bool:
        with self._news:
            command = self._commands.popleft() if self._commands else None
        if command is None:
            return False
        if self._feed.busy:  # commands may draw too
            self._show(self._feed.finish(self._need_backend(), self._shelf))
        with self._instruments.span(type(command).__name__), self._journal.doing(kind_of(command)):
            self._obey(command)
        self._publish()
        return True

    def _take_photographs(self) -> bool:
        with self._news:
            came, self._photographs_came = self._photographs_came, False
        if came:
            self._publish()
        return came

    def _obey(self, command: Command) -> None:
        match command:
            case commands.OpenScene():
                self._open(command)
            case commands.StopSearch():
                self._stop_hunt()
            case commands.SaveScreenshot():
                self._screenshot(command)
            case commands.SavePly():
                offset, own = (self._scene.offset, self._scene.info.filter) if self._scene else (NO_OFFSET, "plain")
                splats = self._session.whole_splats() if self._session else self._need_gaussians()
                write_ply(command.path, splats, offset=offset, filter=own)
                self._note("info", f"Saved {command.path}.")
            case commands.Compare() | commands.RecordTrace() | commands.RecordFrame():
                self._instruments.begin(command, self._need_backend(), self._splats_to_view(), self._provenance)
            case commands.SaveComparison() | commands.SaveRecordedFrame():
                self._instruments.save(command)
            case commands.DrawAgain():
                self._feed.shown = None
            case commands.SetViewShare():
                self._governor.share, self._governor.rate = command.share, command.rate
            case commands.SurveyViews():
                request = self._with_policy(command.request) or command.request
                self._survey = survey_of(self._scene, self._desk, self._splats_to_view(), request)
            case commands.LoadThumbnails():
                if self._desk:  # splats have none
                    self._desk.shelf.want_small(command.indices)
            case _:
                self._control_training(command)

    def _control_training(self, command: Command) -> None:
        if self._desk is None:
            why = self._scene.remark if self._scene else ""
            raise InputError(why or "Nothing to train is open; open a capture (photographs with cameras) first.")
        if isinstance(command, commands.ResetTraining | commands.GoBack):  # which let go of the splats there are
            self._viewed = self._survey = None
            self._instruments.drop_comparison()
        if self._desk.obey(command):
            self._show_anew(self._desk)

    def _open(self, command: commands.OpenScene) -> None:
        if self._session is not None and self._session.active:
            raise InputError("A training run is live; stop it before opening something else.")
        backend, path = self._need_backend(), command.path
        self._stop_hunt()
        self._publish(busy=f"opening {path.name}…")
        try:
            scene, factory = open_for(self._make_trainer, path, self._config.images, command.activated)
        except NoCamerasError as error:
            self._hunt = CameraHunt(command, error)
            return
        desk = None
        if scene.capture is not None:
            desk = OpenCapture(scene.capture, factory, backend, self._note, self._wake)
            if isinstance(self._make_trainer, RunPlan):
                self._make_trainer = self._make_trainer.for_another()
        self._generation += 1
        info = replace(scene.info, generation=self._generation)
        if self._desk is not None:
            self._desk.close()
        self._scene, self._desk = replace(scene, info=desk.describe(info) if desk else info), desk
        self._model_version += 1
        self._instruments.drop_comparison()
        self._survey = None
        self._note("info", f"Opened {path}: {counted(self._need_gaussians().count, 'splat')}. {scene.remark}".rstrip())
        for warning in info.warnings:  # last, as the newest line is the one that the status bar shows
            self._note("warning", warning)
        if command.then_train:
            self._control_training(commands.StartTraining())

    def _follow_hunt(self) -> bool:
        """Opens the photographs once their cameras are found."""
        hunt = self._hunt
        if hunt is None or not hunt.over:
            return False
        self._hunt = None
        self._note("info", hunt.finish())
        self._open(hunt.command)
        return True

    def _stop_hunt(self) -> None:
        hunt, self._hunt = self._hunt, None
        if hunt is not None:
            self._note("info", hunt.stop())

    def _show_anew(self, desk: OpenCapture) -> None:
        """The run is another one now."""
        assert self._scene is not None
        self._scene = replace(self._scene, info=desk.describe(self._scene.info))
        self._model_version += 1
        self._survey = None

    def _wake(self) -> None:
        """A photograph is there. Called from another thread."""
        with self._news:
            self._photographs_came = True
            self._news.notify_all()

    def _gaussians(self) -> Gaussians | None:
        if self._session is not None:
            return self._session.trainer.gaussians
        return self._scene.gaussians if self._scene else None

    def _need_gaussians(self) -> Gaussians:
        gaussians = self._gaussians()
        if gaussians is None:
            raise InputError("Nothing is open yet; open a PLY, a model folder or a capture first.")
        return gaussians

    def _splats_to_view(self) -> Gaussians:
        """The splats as a value of their own for each version of the model: backends keep what they were given."""
        if self._viewed is None or self._viewed[0] != self._model_version:
            self._viewed = (self._model_version, copy(self._need_gaussians()))
        return self._viewed[1]

    def _need_backend(self) -> Backend:
        if self._backend is None:
            raise InputError("Nothing can be rendered: the backend could not be made.")
        return self._backend

    @property
    def _provenance(self) -> Provenance:
        assert self._scene is not None
        backend, session, info = self._need_backend(), self._session, self._scene.info
        iteration = session.trainer.iteration if session else info.iteration
        return Provenance(info.path, iteration, backend.name, backend.device)

    # Pictures ---------------------------------------------------------------------------------------

    def _with_policy(self, request: ViewRequest | None) -> ViewRequest | None:
        """The request as it can be drawn now; None if nothing is compiled yet."""
        policy = self._policies.current if self._policies else None
        return None if request is None or policy is None else replace(request, policy=policy)

    def _view_of(self, request: ViewRequest | None) -> Asked:
        """What a picture depends on but for the splats: the request, the photographs that are read."""
        return request, self._desk.shelf.version if self._desk and request and request.photograph else 0

    def _view_is_due(self) -> bool:
        """True if a picture is to be begun or taken."""
        if self._feed.busy:
            return self._feed.ready or not self._is_training
        recording = self._instruments.recording
        rests = self._is_training and not recording
        asked = self._request
        if rests and not self._governor.is_due(time.perf_counter(), self._feed.is_new(self._view_of(asked))):
            return False
        request = self._with_policy(asked)
        if request is None or self._gaussians() is None:
            return False
        return recording or self._feed.shown != (self._view_of(request), self._model_version)

    @property
    def _is_training(self) -> bool:
        return self._session is not None and self._session.active

    def _render_if_wanted(self) -> bool:
        if not self._view_is_due():
            return False
        backend, feed, policies = self._need_backend(), self._feed, self._policies
        assert policies is not None
        with self._instruments.span("picture"), policies.on_trial(), self._journal.doing(PICTURE):
            if not feed.busy:
                request = self._with_policy(asked := self._request)
                assert request is not None
                # Also when it fails: the same request would only fail again.
                feed.shown = self._view_of(request), self._model_version
                feed.begin(backend, self._splats_to_view(), request, self._view_of(asked), self._is_training)
                if self._is_training and not feed.ready:
                    return True
            self._show(feed.finish(backend, self._shelf))
        policies.worked()
        return True

    def _show(self, picture: Picture) -> None:
        with self._news:
            self._picture = picture
            self._news.notify_all()

    def _screenshot(self, command: commands.SaveScreenshot) -> None:
        backend, request = self._need_backend(), self._with_policy(command.request) or command.request
        frame = backend.render(self._splats_to_view(), request.camera, request.settings, request.policy)
        about = self._provenance
        self._note("info", saved_in_words(save_screenshot(frame, request, command.folder, about.stamped(), about)))

    def _measure(self) -> bool:
        if self._backend is None:
            return False
        if self._instruments.finish_recording():
            self._publish()
        if self._survey and self._survey.active:
            self._survey.step(self._backend)
            return True
        was_measuring = self._instruments.measuring
        did = self._instruments.measure(self._backend)
        if was_measuring and not self._instruments.measuring:
            self._publish()
        return did

    # Training ---------------------------------------------------------------------------------------

    def _train(self) -> bool:
        session = self._session
        is_measuring = self._instruments.measuring or (self._survey is not None and self._survey.active)
        if session is None or not session.active or is_measuring:
            return False
        self._waiting = session.trainer.use(self._request.policy if self._request else self._config.toggles.policy)
        start, before = time.perf_counter(), session.trainer.iteration
        with self._instruments.span("training event"), self._journal.doing(TRAINING):
            if session.advance():
                self._model_version += 1
        if session.trainer.iteration != before:
            self._instruments.add_step(session.stage_ms, start)
        if not session.active:
            self._publish()
        return True

    # Out --------------------------------------------------------------------------------------------

    def _note(self, level: str, text: str) -> None:
        """A line for the user's log, and on the terminal for errors."""
        with self._news:
            self._journal.add(level, text)
        self._publish()

    def _publish_if_due(self) -> None:
        if time.perf_counter() - self._published > STATUS_SECONDS:
            self._publish()

    def _publish(self, busy: str = "") -> None:
        self._published = now = time.perf_counter()
        gaussians = self._gaussians()
        idle = view.TrainingStatus(note=self._scene.remark if self._scene else "")
        training = self._session.status(self._governor.cost(now)) if self._session else idle
        backend, policies, waiting = self._backend, self._policies, self._waiting if self._is_training else ()
        if policies is not None and policies.current is None and policies.compiling:
            busy = busy or "compiling kernels…"
        with self._news:
            self._status = EngineStatus(
                scene=self._scene.info if self._scene else None,
                splat_count=gaussians.count if gaussians else 0,
                training=training,
                busy=busy,
                search=self._hunt.status if self._hunt else None,
                log=tuple(self._journal.lines),
                done=dict(self._journal.done),
                backend=backend.name if backend else "",
                device=backend.device if backend else "",
                policy=(policies.current if policies else None) or Policy(),
                compiling=tuple(dict.fromkeys((*(policies.compiling if policies else ()), *waiting))),
                refused=policies.refused if policies else None,
                comparison=self._instruments.comparison,
                recording=self._instruments.recording,
                blending=self._instruments.blending,
                recorded=self._instruments.recorded,
                views=self._survey.figures if self._survey else (),
                recipe=self._desk.open_recipe if self._desk else None,
                checkup=self._desk.checkup if self._desk else (),
                thumbnails=self._desk.shelf.small() if self._desk else {},
            )
            self._news.notify_all()
