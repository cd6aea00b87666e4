"""Saves a run in the background: a thread fetches and writes the state after an iteration, while steps continue.

- One save at a time, in order.
- A save that could not be written becomes one event, not an error: training continues.
- On a GPU a step waits only for the copy that `kernels/cuda/launch/readback.py` makes there. The copy is dropped as
  soon as it is on the host, before a byte is written.
- On disk there are at most `checkpoint.keep` checkpoints and the one being written.

`output.py` and `checkpoint.py` write the files; read `run_record.py` for what is in a checkpoint.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from splatscope.assets.capture import Capture, PointCloud
from splatscope.kernels.cuda.launch.readback import Held, on_host
from splatscope.kernels.errors import InputError, NoRoomError
from splatscope.training.config import TrainConfig
from splatscope.training.errors import NotSavedError
from splatscope.training.events import Saved, SavedThing, SaveFailed
from splatscope.training.files import output
from splatscope.training.files.checkpoint import (
    Checkpoint,
    checkpoint_path,
    remove_half_written,
    remove_old,
    set_aside_later,
    write_checkpoint,
)
from splatscope.training.files.folder import FolderLock, newest_iteration, newest_on_disk, resume_line
from splatscope.training.splats import rows
from splatscope.training.splats.rows import SplatTensors

FIRST_SECONDS = 2.0  # age of a run at its first checkpoint; each later one comes when the age has doubled
STALL_SHARE = 1 / 50  # the most of a run's time that steps may wait for checkpoints
Job = Callable[[], Saved | None]  # writes one thing; returns the event to report


class Snapshot:
    """Holds a run after one iteration. Its tensors may lie on the GPU until one thread at a time asks for them."""

    def __init__(
        self, tensors: Mapping[str, Tensor], others: dict[str, Any], info: dict[str, Any], is_held: bool
    ) -> None:
        """Copies `tensors` and takes over `others` and `info`; lists in `others` become tensors later.

        `is_held`: the copy stays on the GPU, so that the next steps may be launched at once. Otherwise, and if the GPU
        has no room for a copy, the caller waits here until everything is on the host.
        """
        self._others, self._info = others, info
        self._held: Held | None = None
        self._copies: dict[str, Tensor] = {}
        self._made: Checkpoint | None = None
        if is_held:
            try:
                self._held = Held(tensors)
                return
            except NoRoomError:  # a full GPU must end neither the run nor its growth; steps wait instead, seldom
                pass
        self._copies = on_host(tensors)

    @property
    def iteration(self) -> int:
        return int(self._info["iteration"])

    def checkpoint(self) -> Checkpoint:
        """Returns the run on the host: the same object each time."""
        if self._made is None:
            copies = self._copies if self._held is None else self._held.to_host()
            others = {name: torch.as_tensor(value) for name, value in self._others.items()}
            self._made, self._held = Checkpoint({**copies, **others}, self._info), None
        return self._made


class RunFiles:
    """Decides when a run is saved, and writes its files. One thread makes and calls it."""

    def __init__(self, capture: Capture, config: TrainConfig, out_dir: Path) -> None:
        self._capture, self.config, self._out_dir = capture, config, out_dir
        self.lock: FolderLock | None = None  # held on the folder while a run writes there
        self._points: PointCloud | None = None
        self._has_begun = False
        self._writer = BackgroundWriter()
        self._began = self._newest = -1.0  # time of the first step and of the newest save; -1: not known yet
        self._stall = 0.0  # seconds that the newest save held up the steps

    def due(self, iteration: int, last: bool) -> tuple[SavedThing, ...]:
        """Returns what to save after this iteration.

        Splats are due where settings ask for them, and at the end. A checkpoint is due with splats, and when its time
        has come, unless something is still being written: a slow disk gets no queue.
        """
        c, now = self.config.checkpoint, time.monotonic()
        if self._began < 0:
            self._began = self._newest = now
        with_splats = last or iteration in self.config.save_iterations
        alone = self._is_time(now) or (c.interval > 0 and iteration % c.interval == 0)
        has_checkpoint = c.enabled and (with_splats or (alone and not self._writer.busy))
        return (("splats",) if with_splats else ()) + (("checkpoint",) if has_checkpoint else ())

    def _is_time(self, now: float) -> bool:
        """Returns True if a checkpoint is due by the clock. A young run has little to lose but may be over soon, so it
        is saved whenever its age has doubled.
        """
        longest, age = self.config.checkpoint.seconds, self._newest - self._began
        least = max(min(longest, max(FIRST_SECONDS, age)), self._stall / STALL_SHARE)
        return longest > 0 and now - self._newest >= least

    def begin(self, points: PointCloud | None, iteration: int, known: int) -> int:
        """Makes the folder ready for a run that continues from `iteration`, and returns how many later checkpoints it
        set aside.

        Writes the files known before the first step; `points` are the points that the first splats were placed on, if
        any. Raises InputError, and then nothing has changed, if the folder has a checkpoint after iteration `known`:
        another run has written it since this run looked.
        """
        newest = newest_iteration(self._out_dir)
        if newest > max(known, iteration):
            raise InputError(
                f"Another run has written to {self._out_dir} meanwhile and is at iteration {newest:,}. Continue from "
                f"there: {resume_line(self._out_dir)}, or give another --out."
            )
        remove_half_written(self._out_dir)
        set_aside = set_aside_later(self._out_dir, iteration)
        output.write_start(self._out_dir, self._capture, self.config, points)
        self._points, self._has_begun = points, True
        return set_aside

    def save(self, things: tuple[SavedThing, ...], take: Callable[[], Snapshot], scores: dict[str, Any] | None) -> None:
        """Hands the snapshot that `take` returns to the writer, and with it new scores if there are any."""
        start = time.monotonic()
        snapshot = take()
        self._writer.submit(snapshot.iteration, self._jobs(things, snapshot.checkpoint, scores))
        self._newest = time.monotonic()
        self._stall = self._newest - start

    @property
    def are_awaited(self) -> bool:
        """Returns True while `finished` has yet to return the events of a save."""
        return self._writer.is_awaited

    def finished(self, wait: bool) -> list[Saved | SaveFailed]:
        """Returns the events of finished saves, in order. With `wait`, as at the end of a run, waits for all saves."""
        return self._writer.finished(wait)

    def wait(self) -> None:
        """Returns once nothing is being written; `finished` returns the events later."""
        self._writer.wait()

    def write(self, checkpoint: Checkpoint, scores: dict[str, Any]) -> Path:
        """Writes everything now and returns the path of the splats. A part that fails does not keep the others from
        being written. Raises NotSavedError if one part failed."""
        things: tuple[SavedThing, ...] = ("splats", "checkpoint") if self.config.checkpoint.enabled else ("splats",)
        told = _saved(checkpoint.iteration, self._jobs(things, lambda: checkpoint, scores))
        path = next((event.path for event in told if isinstance(event, Saved)), None)
        failed = next((event for event in told if isinstance(event, SaveFailed)), None)
        if failed is None:
            assert path is not None
            return path
        splats = f"Its splats are: {path}. " if path else ""
        raise NotSavedError(
            f"Iteration {checkpoint.iteration:,}: {' and '.join(failed.what)} not saved. {failed.reason} {splats}"
            f"{newest_on_disk(self._out_dir)}",
            failed.what,
            path,
        )

    def _jobs(
        self, things: tuple[SavedThing, ...], take: Callable[[], Checkpoint], scores: dict[str, Any] | None
    ) -> dict[SavedThing, Job]:
        """Returns a job for each of these things, and for new scores if there are any."""
        jobs: dict[SavedThing, Job] = {}
        if "splats" in things:
            jobs["splats"] = lambda: self._write_splats(take())
        if "checkpoint" in things:
            jobs["checkpoint"] = lambda: self._write_checkpoint(take())
        if scores is not None:
            jobs["scores"] = lambda: self.write_scores(scores)
        return jobs

    def _see_to_folder(self) -> None:
        """Makes the folder whole again if it was removed meanwhile: holds it and writes its first files. Raises
        InputError if another run writes there."""
        if self.lock is not None:
            self.lock.renew()
        if self._has_begun and not (self._out_dir / "settings.json").exists():
            with suppress(InputError):  # a disk that refuses this refuses the next write too, which is reported
                output.write_start(self._out_dir, self._capture, self.config, self._points)

    def write_scores(self, scores: dict[str, Any]) -> None:
        """Writes metrics.json. Raises InputError."""
        self._see_to_folder()
        output.write_metrics(self._out_dir, scores)

    def _write_splats(self, checkpoint: Checkpoint) -> Saved:
        """Writes the splats, with rows up to the run's full degree."""
        self._see_to_folder()
        raw = SplatTensors(**{f.name: checkpoint.tensors[f"raw.{f.name}"] for f in fields(SplatTensors)})
        full = rows.as_gaussians(raw.with_sh_degree(self.config.sh_degree), self.config.primitive)
        path = output.write_splats(self._out_dir, self._capture, self.config, checkpoint.iteration, full)
        return Saved(checkpoint.iteration, path)

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Writes the checkpoint, then removes the oldest ones."""
        self._see_to_folder()
        write_checkpoint(checkpoint_path(self._out_dir, checkpoint.iteration), checkpoint)
        remove_old(self._out_dir, self.config.checkpoint.keep)


class BackgroundWriter:
    """Writes saves in a thread of its own, in order. One thread makes and calls it."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[list[Saved | SaveFailed]]] = deque()

    @property
    def busy(self) -> bool:
        """Returns True while something is being written."""
        return any(not future.done() for future in self._waiting)

    def submit(self, iteration: int, jobs: Mapping[SavedThing, Job]) -> None:
        """Queues one save of the state of that iteration. Waits if two saves are being written or queued already."""
        wait([future for future in self._waiting if not future.done()][:-1])  # a slow disk must not fill the memory
        if self._pool is None:  # made late: a trainer that is only looked at has no thread
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self._waiting.append(self._pool.submit(_saved, iteration, jobs))

    def wait(self) -> None:
        """Returns once nothing is being written; `finished` returns the events later."""
        wait(list(self._waiting))

    @property
    def is_awaited(self) -> bool:
        """Returns True while `finished` has yet to return the events of a save."""
        return bool(self._waiting)

    def finished(self, wait: bool = False) -> list[Saved | SaveFailed]:
        """Returns the events of finished saves, in order. With `wait`, as at the end of a run, waits for all saves."""
        events: list[Saved | SaveFailed] = []
        while self._waiting and (wait or self._waiting[0].done()):
            events += self._waiting.popleft().result()
        return [replace(event, last=wait) if isinstance(event, SaveFailed) else event for event in events]


def _saved(iteration: int, jobs: Mapping[SavedThing, Job]) -> list[Saved | SaveFailed]:
    """Runs each job, even after one has failed. A full disk refuses all jobs for one reason, which is reported once."""
    events: list[Saved | SaveFailed] = []
    failed: dict[SavedThing, str] = {}
    for what, job in jobs.items():
        try:
            saved = job()
        except InputError as error:
            failed[what] = str(error)
        except MemoryError:
            failed[what] = "There is not enough memory to write it."
        else:
            events += [] if saved is None else [saved]
    if failed:
        distinct = {reason.rpartition(": ")[2]: reason for reason in reversed(failed.values())}  # the first of each
        events.append(SaveFailed(iteration, tuple(failed), " ".join(reversed(distinct.values()))))
    return events
