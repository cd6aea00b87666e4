"""Measures while the engine works: one policy against another, and what ran when. Writes the files.

`ab_measurement.py`, `trace.py` and `schedule_view.py` do the measuring; this module decides when it begins and ends.
Belongs to the engine's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from splatscope.app.engine.ab_measurement import Measurement, save_comparison
from splatscope.app.engine.active_policy import first_error
from splatscope.app.engine.schedule_view import blending_of, record_frame, save_recorded_frame, summarize
from splatscope.app.engine.trace import TRAINING, TraceRecorder, lay_out_stages
from splatscope.app.provenance import Provenance, saved_in_words
from splatscope.kernels.backend import Backend, LiveBackend
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Frame, Gaussians
from splatscope.viewer.messages.commands import Compare, RecordFrame, RecordTrace, SaveComparison, SaveRecordedFrame
from splatscope.viewer.messages.view import BlendMachine, Comparison, EngineStatus, RecordedFrame

Note = Callable[[str, str], None]


class Measurements:
    """Keeps the newest measurement, the newest recorded frame and the trace that is being recorded."""

    def __init__(self, note: Note) -> None:
        """Prepares without measuring. `note` takes a level and a line for the user."""
        self._note = note
        self._measurement: Measurement | None = None
        self._recorder: TraceRecorder | None = None
        self._recording: RecordTrace | None = None
        self._pictures = 0  # pictures in all traces
        self.blending: BlendMachine | None = None  # what blended the newest picture
        self.recorded: RecordedFrame | None = None  # the newest frame
        self._recorded_about: Provenance | None = None

    def begin(
        self, wanted: Compare | RecordTrace | RecordFrame, backend: Backend, gaussians: Gaussians, about: Provenance
    ) -> None:
        """Begins what is wanted, on these splats. Raises InputError where it cannot be measured."""
        match wanted:
            case Compare():  # a comparison that runs is dropped
                self._measurement = Measurement(wanted, gaussians, about)
            case RecordTrace():
                self._record(wanted, backend, about)
            case RecordFrame():  # a frame whose units write down when they ran
                self.recorded, self._recorded_about = record_frame(backend, gaussians, wanted.request), about
                self._note("info", summarize(self.recorded))

    def save(self, wanted: SaveComparison | SaveRecordedFrame) -> None:
        """Writes the newest comparison or recorded frame. Raises InputError if there is none."""
        if isinstance(wanted, SaveComparison):
            self._save_comparison(wanted.folder)
        elif self.recorded is None or self._recorded_about is None:
            raise InputError("There is no recorded frame to save; record one first.")
        else:
            paths = save_recorded_frame(self.recorded, wanted.folder, self._recorded_about)
            self._note("info", saved_in_words(paths))

    # Two policies -----------------------------------------------------------------------------------

    @property
    def comparison(self) -> Comparison | None:
        """Returns the newest comparison, finished or not."""
        return self._measurement.result if self._measurement else None

    @property
    def measuring(self) -> bool:
        """Returns True while splats must stay as they are."""
        return self._measurement is not None and self._measurement.active

    @property
    def waiting(self) -> bool:
        """Returns True while a measurement waits for the compiler."""
        return self.measuring and bool(self._measurement and self._measurement.result.waiting)

    def drop_comparison(self) -> None:
        """Forgets comparison and recorded frame, because other splats will be shown."""
        self._measurement = self.recorded = None

    def measure(self, backend: Backend) -> bool:
        """Draws the next picture of a measurement; True if there was something to do."""
        measurement = self._measurement
        if measurement is None or not measurement.active:
            return False
        try:
            if isinstance(backend, LiveBackend) and measurement.wait(backend):
                return False
            measurement.advance(backend)
        except Exception as error:  # any failure of a picture: the log reports it, and the engine continues
            reason = first_error(error)
            measurement.give_up(reason)
            self._note("error", f"The measurement was given up. {reason}")
        return True

    def _save_comparison(self, folder: Path) -> None:
        """Writes the newest comparison. Raises InputError if there is none or it is not finished."""
        if self._measurement is None or self._measurement.active or self._measurement.result.problem:
            raise InputError("There is no finished measurement to save; measure against another setting first.")
        path = folder / f"{self._measurement.about.stamped()}-comparison.json"
        save_comparison(path, self._measurement)
        self._note("info", saved_in_words([path]))

    # What ran when ----------------------------------------------------------------------------------

    @property
    def recording(self) -> bool:
        """Returns True while pictures are to be drawn without a rest."""
        return self._recorder is not None

    def _record(self, wanted: RecordTrace, backend: Backend, about: Provenance) -> None:
        """Begins a recording, unless one runs."""
        if self._recorder is None:
            if isinstance(backend, LiveBackend):
                backend.start_clock()
            self._recording, self._recorder = wanted, TraceRecorder(about)

    def span(self, name: str) -> AbstractContextManager[None]:
        """Names the work inside in the trace, if one is being recorded."""
        return self._recorder.span(name) if self._recorder else nullcontext()

    def add_picture(self, backend: Backend, frame: Frame, start: float) -> None:
        """Takes in a picture that was begun at `start`, in seconds of time.perf_counter."""
        self.blending = blending_of(backend)
        if self._recorder is not None:
            self._pictures += 1
            is_live = isinstance(backend, LiveBackend)
            stages = backend.newest_spans() if is_live else lay_out_stages(frame.stage_ms, start)
            self._recorder.add_stages("picture", stages, number=self._pictures, instances=frame.instances)

    def add_step(self, stage_ms: dict[str, float], start: float) -> None:
        """Takes in a training step that was begun at `start`, in seconds of time.perf_counter."""
        if self._recorder is not None:
            self._recorder.add_stages("training step", lay_out_stages(stage_ms, start), TRAINING)

    def finish_recording(self) -> bool:
        """Writes the trace once its time is over; True if it did."""
        recorder, wanted = self._recorder, self._recording
        if recorder is None or wanted is None or time.perf_counter() - recorder.start < wanted.seconds:
            return False
        self._recorder = self._recording = None
        path = wanted.folder / f"{recorder.about.stamped()}-trace.json"
        recorder.write(path)
        self._note("info", f"{saved_in_words([path])} chrome://tracing and ui.perfetto.dev open it.")
        return True

    # For the window ---------------------------------------------------------------------------------

    def add_to(self, status: EngineStatus) -> EngineStatus:
        """Returns the status with what has been measured."""
        return replace(
            status,
            comparison=self.comparison,
            recording=self.recording,
            blending=self.blending,
            recorded=self.recorded,
        )
