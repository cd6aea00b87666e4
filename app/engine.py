"""The one owner thread: it alone touches the model, the backend and the trainer.

In: a mailbox that holds the newest view request, and a queue of commands. Out: the newest picture and an
immutable status. It alternates: commands, then the picture if one is wanted, then one training event.
`EngineClient` in viewer/messages.py is what the window sees of it. `session.py` is the training run.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from splatscope.app.pictures import compose, save_screenshot
from splatscope.app.scene import Scene, middle_box, open_scene
from splatscope.app.session import TrainingSession
from splatscope.assets.capture import Capture
from splatscope.assets.ply import write_ply
from splatscope.kernels.api import Backend, BackendName, gpu_is_present, make_backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Gaussians
from splatscope.viewer import messages
from splatscope.viewer.messages import Command, EngineStatus, LogLine, Picture, ViewRequest

if TYPE_CHECKING:  # torch loads only when a capture is opened
    from splatscope.training.trainer import Trainer

LOG_LINES = 300
STATUS_SECONDS = 0.1  # how old the published training status may be
MOVING_SECONDS = 0.3  # a camera that changed this recently counts as moving

TrainerFactory = Callable[[Capture, Backend], "Trainer"]


@dataclass(frozen=True)
class EngineConfig:
    """What the engine needs beyond messages."""

    backend: BackendName = "auto"
    images: str = "images"
    view_share: float = 0.25  # of the time while training, at most this much goes to pictures of a still camera
    moving_share: float = 0.6  # the same while the camera moves


class Engine:
    """Implements `EngineClient`; `close` ends the thread and saves a live run."""

    def __init__(self, config: EngineConfig, make_trainer: TrainerFactory) -> None:
        self._config = config
        self._make_trainer = make_trainer
        self._news = threading.Condition()  # guards the fields below, up to the status
        self._request: ViewRequest | None = None
        self._commands: deque[Command] = deque()
        self._closing = False
        self._picture: Picture | None = None
        self._status = EngineStatus(busy="starting…")
        self._log: deque[LogLine] = deque(maxlen=LOG_LINES)
        self._log_serial = 0
        # What follows belongs to the engine thread.
        self._backend: Backend | None = None
        self._backend_tried = False
        self._scene: Scene | None = None
        self._generation = 0
        self._session: TrainingSession | None = None
        self._shown: tuple[ViewRequest, int] | None = None  # request and model version on screen
        self._model_version = 0
        self._serial = 0
        self._request_changed = 0.0
        self._picture_done = 0.0
        self._picture_seconds = 0.0
        self._view_cost = 0.0
        self._published = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # The window's side ------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self, timeout: float = 60.0) -> None:
        """Saves a live run, ends the thread and waits for it."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        self._thread.join(timeout)

    def request_view(self, request: ViewRequest) -> None:
        """Replaces the wanted picture."""
        with self._news:
            if request != self._request:
                self._request = request
                self._request_changed = time.perf_counter()
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
                if self._make_backend() or self._take_command() or self._render_if_wanted() | self._train():
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
        self._backend = make_backend(self._config.backend)
        if self._config.backend == "auto" and gpu_is_present():
            self._note("info", "There is a GPU here; --backend cuda renders on it. Training is not fast there yet.")
        return True

    def _sleep(self) -> None:
        with self._news:
            if not self._closing and not self._commands and not self._view_is_due():
                self._news.wait(0.5)

    def _save_on_close(self) -> None:
        session = self._session
        if session is not None and session.state in ("running", "paused", "stopping"):
            try:
                print(f"Training stopped at iteration {session.trainer.iteration}; saved {session.trainer.save()}")
            except InputError as error:
                print(f"splatscope: {error}")

    def _take_command(self) -> bool:
        with self._news:
            command = self._commands.popleft() if self._commands else None
        if command is None:
            return False
        match command:
            case messages.OpenScene():
                self._open(command.path)
                if command.then_train:
                    self._control_training(messages.StartTraining())
            case messages.SaveScreenshot():
                self._screenshot(command)
            case messages.SavePly():
                write_ply(command.path, self._need_gaussians())
                self._note("info", f"Saved {command.path}.")
            case _:
                self._control_training(command)
        self._publish()
        return True

    def _control_training(self, command: Command) -> None:
        session = self._session
        if session is None:
            raise InputError(
                "Nothing to train is open; open a capture (a COLMAP folder or transforms_train.json) first."
            )
        match command:
            case messages.StartTraining():
                session.start()
            case messages.PauseTraining():
                session.pause()
            case messages.StepTraining():
                session.step()
            case messages.StopTraining():
                session.stop()
            case _:
                raise AssertionError(command)

    def _open(self, path: Path) -> None:
        if self._session is not None and self._session.active:
            raise InputError("A training run is live; stop it before opening something else.")
        if self._backend is None:
            raise InputError("Nothing can be rendered: the backend could not be made.")
        self._publish(busy=f"opening {path.name}…")
        scene = open_scene(path, self._config.images)
        session = None
        if scene.capture is not None:
            session = TrainingSession(self._make_trainer(scene.capture, self._backend), self._note)
        self._generation += 1
        info = replace(scene.info, generation=self._generation)
        if session is not None:
            gaussians = session.trainer.gaussians
            low, high = (info.low, info.high) if scene.capture and scene.capture.points else middle_box(gaussians.means)
            info = replace(
                info,
                low=low,
                high=high,
                sh_degree=session.trainer.config.sh_degree,
                background=session.trainer.dataset.background,
            )
        self._scene = replace(scene, info=info)
        self._session = session
        self._model_version += 1
        self._shown = None
        for warning in info.warnings:
            self._note("warning", warning)
        self._note("info", f"Opened {path}: {self._need_gaussians().count:,} splats.")

    def _gaussians(self) -> Gaussians | None:
        if self._session is not None:
            return self._session.trainer.gaussians
        return self._scene.gaussians if self._scene else None

    def _need_gaussians(self) -> Gaussians:
        gaussians = self._gaussians()
        if gaussians is None:
            raise InputError("Nothing is open yet; open a PLY, a model folder or a capture first.")
        return gaussians

    # Pictures ---------------------------------------------------------------------------------------

    def _view_is_due(self) -> bool:
        request, now = self._request, time.perf_counter()
        if request is None or self._backend is None or self._gaussians() is None:
            return False
        if self._shown == (request, self._model_version):
            return False
        if self._session is None or not self._session.active:
            return True
        share = self._config.moving_share if now - self._request_changed < MOVING_SECONDS else self._config.view_share
        return now - self._picture_done >= self._picture_seconds * (1.0 - share) / share

    def _render_if_wanted(self) -> bool:
        if not self._view_is_due():
            return False
        request, backend, version = self._request, self._backend, self._model_version
        assert request is not None
        assert backend is not None
        start = time.perf_counter()
        self._shown = (request, version)  # also when it fails: the same request would only fail again
        frame = backend.render(self._need_gaussians(), request.camera, request.settings, request.policy)
        rgba = compose(frame, request)
        end = time.perf_counter()
        self._serial += 1
        picture = Picture(rgba, frame, request, self._serial, (end - start) * 1e3)
        spent, since = end - start, end - self._picture_done
        self._view_cost += 0.2 * (min(1.0, spent / max(since, 1e-6)) - self._view_cost)
        self._picture_seconds, self._picture_done = spent, end
        with self._news:
            self._picture = picture
            self._news.notify_all()
        return True

    def _screenshot(self, command: messages.SaveScreenshot) -> None:
        backend = self._backend
        if backend is None:
            raise InputError("Nothing can be rendered: the backend could not be made.")
        request = command.request
        frame = backend.render(self._need_gaussians(), request.camera, request.settings, request.policy)
        name = self._scene.info.path.stem if self._scene else "scene"
        stem = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
        paths = save_screenshot(frame, request, command.folder, stem, backend.name)
        self._note("info", "Saved " + ", ".join(str(p) for p in paths))

    # Training ---------------------------------------------------------------------------------------

    def _train(self) -> bool:
        session = self._session
        if session is None or not session.active:
            return False
        if session.advance():
            self._model_version += 1
        if not session.active:
            self._publish()
        return True

    # Out --------------------------------------------------------------------------------------------

    def _note(self, level: str, text: str) -> None:
        """A line for the user's log, and on the terminal for errors."""
        levels: dict[str, Literal["info", "warning", "error"]] = {"warning": "warning", "error": "error"}
        with self._news:
            self._log_serial += 1
            self._log.append(LogLine(levels.get(level, "info"), text, self._log_serial))
        self._publish()

    def _publish_if_due(self) -> None:
        if time.perf_counter() - self._published > STATUS_SECONDS:
            self._publish()

    def _publish(self, busy: str = "") -> None:
        self._published = time.perf_counter()
        gaussians = self._gaussians()
        training = self._session.status(self._view_cost) if self._session else messages.TrainingStatus()
        backend = self._backend
        with self._news:
            self._status = EngineStatus(
                scene=self._scene.info if self._scene else None,
                splat_count=gaussians.count if gaussians else 0,
                training=training,
                busy=busy,
                log=tuple(self._log),
                backend=backend.name if backend else "",
                device=backend.device if backend else "",
            )
            self._news.notify_all()
