"""Records frames for the schedule panel, describes the device that blends tiles, and writes a recorded frame's files.

`kernels/schedule/timeline.py` says what the figures mean; `viewer/figures/schedule.py` makes the panel's figures from
tile counts alone. Belongs to the engine's thread, like its caller `measurements.py`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from splatscope.app.provenance import Provenance
from splatscope.assets.files.atomic import atomic_path
from splatscope.assets.photographs.images import write_png
from splatscope.kernels.backend import Backend, BlendingBackend
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import toggle_table
from splatscope.kernels.schedule.rules import imbalance
from splatscope.kernels.schedule.timeline import Recording, checks, lanes
from splatscope.kernels.types import Gaussians
from splatscope.kernels.wording import counted
from splatscope.viewer.figures.schedule import overhead_text
from splatscope.viewer.figures.schedule_plots import gantt_sheet, ranked_sheet
from splatscope.viewer.messages.view import BlendMachine, RecordedFrame, ViewRequest

WARM_UP = 2  # pairs of pictures that do not count
PAIRS, ENOUGH_SECONDS = 7, 1.5  # pairs with and without recording, and the time after which no more are drawn
COLUMNS = ("tile", "chunk", "parts", "multiprocessor", "block", "start", "end", "cycles", "listed", "walked", "again")


def blending_of(backend: Backend) -> BlendMachine | None:
    """Returns the device that blends tiles for a backend that has drawn a picture; None if the backend does not say."""
    if not isinstance(backend, BlendingBackend):
        return None
    return BlendMachine(backend.device, *backend.blend_machine())


def record_frame(backend: Backend, gaussians: Gaussians, request: ViewRequest) -> RecordedFrame:
    """Draws a view with and without recording, by turns, and returns the last recorded frame.

    Raises InputError where tiles are not recorded.
    """
    plain, recorded = (request.policy.with_value("schedule", "record", value) for value in ("off", "on"))

    def draw(policy: Any) -> Any:
        return backend.render(gaussians, request.camera, request.settings, policy)

    frame = draw(recorded)
    if frame.recording is None:
        raise InputError(
            f"The {backend.name} backend cannot say when it blended which tile on this machine; use --backend cuda, or "
            "cpu on Linux or macOS."
        )
    began, times = time.perf_counter(), {False: [], True: []}
    for number in range(WARM_UP + PAIRS):
        for is_recorded, policy in ((False, plain), (True, recorded)):
            frame = draw(policy)
            if number >= WARM_UP:
                times[is_recorded].append(frame.stage_ms.get("blend", 0.0))
        if times[True] and time.perf_counter() - began > ENOUGH_SECONDS:
            break
    on = blending_of(backend)
    assert on is not None
    # The shortest times: other work on this machine makes single frames longer, much longer on a CPU.
    return RecordedFrame(frame.recording, frame.tile_counts, request, on, min(times[True]), min(times[False]))


def summarize(recorded: RecordedFrame) -> str:
    """Describes a recorded frame in one sentence for the log."""
    recording, timeline = recorded.recording, recorded.recording.timeline
    return (
        f"Recorded {counted(len(recording), 'unit')} in {timeline.makespan / 1e6:.3f} ms: {recording.place} activity "
        f"{recording.activity:.1%}, idle tail {recording.idle_tail:.1%}; {overhead_text(recorded)}."
    )


# ---- Files -----------------------------------------------------------------------------------------------------------


def save_recorded_frame(recorded: RecordedFrame, folder: Path, about: Provenance) -> list[Path]:
    """Writes trace, CSV, figures and two pictures; returns the files. Raises InputError if they cannot be written."""
    stem = about.stamped()
    trace, table, figures, gantt, ranked = (
        folder / f"{stem}-{name}"
        for name in ("timeline.json", "units.csv", "schedule.json", "gantt.png", "tile-counts.png")
    )
    write_trace(trace, recorded.recording, about)
    write_units(table, recorded.recording)
    with atomic_path(figures) as temporary:
        temporary.write_text(json.dumps({**about.facts, **describe(recorded)}, indent=2) + "\n")
    caption = ", ".join([about.caption, *list_settings(recorded)])
    write_png(gantt, gantt_sheet(recorded.recording, caption)[..., :3])
    write_png(ranked, ranked_sheet(recorded.counts, recorded.on, caption)[..., :3])
    return [trace, table, figures, gantt, ranked]


def list_toggles(recorded: RecordedFrame) -> list[str]:
    """Lists the toggles of scheduling that were not at their default, except the recording itself."""
    policy = recorded.request.policy
    rows = (row for row in toggle_table("cuda") if row.stage == "schedule" and row.name != "record")
    return [f"{row.name} {value}" for row in rows if (value := policy.value(row.stage, row.name)) != row.default]


def list_settings(recorded: RecordedFrame) -> list[str]:
    """Lists what the caption of a recorded frame's picture names in addition to the device."""
    camera, machine = recorded.request.camera, recorded.on.machine
    each = f"K = {machine.multiprocessors} x {machine.blocks_each} = {machine.workers}"
    return [f"{camera.width} x {camera.height} px", each, *list_toggles(recorded)]


def describe(recorded: RecordedFrame) -> dict[str, Any]:
    """Returns the figures of a recorded frame: measured ones, those of its tile counts, and the simulator's errors."""
    recording, on = recorded.recording, recorded.on
    even = imbalance(recorded.counts, on.machine)
    return {
        "on": on.name,
        "multiprocessors": on.machine.multiprocessors,
        "blocks_each": on.machine.blocks_each,
        "schedule": list_toggles(recorded) or ["defaults"],
        "units": len(recording),
        "makespan_ms": recording.timeline.makespan / 1e6,
        "sm_activity": recording.activity,
        "idle_tail": recording.idle_tail,
        "hand_over_ns": recording.hand_over,
        "imbalance_ratio": even.ratio,
        "heaviest_tile": even.heaviest,
        "splats_listed": even.total,
        "splats_walked": int(recording.walked.sum()),
        "recording_overhead": recorded.overhead,
        "simulator": {
            check.name: {"makespan_error": check.makespan_error, "activity_error": check.activity_error}
            for check in checks(recording, on.costs)
        },
    }


def write_units(path: Path, recording: Recording) -> None:
    """Writes one CSV row for each unit of work, in the order in which they began; times in ns since the first began."""
    columns = [np.rint(getattr(recording, name)).astype(np.int64) for name in COLUMNS]
    header = ",".join({"start": "start_ns", "end": "end_ns", "cycles": recording.clock}.get(n, n) for n in COLUMNS)
    with atomic_path(path) as temporary:
        np.savetxt(temporary, np.stack(columns, 1), fmt="%d", delimiter=",", header=header, comments="")


def write_trace(path: Path, recording: Recording, about: Provenance) -> None:
    """Writes a Chrome trace: one process for each multiprocessor, with as many rows as it had units at once."""
    columns = recording.tiles[1]
    events: list[dict[str, Any]] = []
    for place in np.unique(recording.multiprocessor).tolist():
        name = {"name": f"{recording.place} {place}"}
        events.append({"ph": "M", "name": "process_name", "pid": place, "args": name})
        events.append({"ph": "M", "name": "process_sort_index", "pid": place, "args": {"sort_index": place}})
    arrays = [getattr(recording, name).tolist() for name in COLUMNS]
    for row, unit in zip(lanes(recording).tolist(), zip(*arrays, strict=True), strict=True):
        tile, chunk, parts, place, block, start, end, cycles, listed, walked, again = unit
        where = f"tile {tile % columns},{tile // columns}"
        facts = {"block": block, recording.clock: cycles, "listed": listed, "walked": walked, "again": again}
        events.append(
            {
                "ph": "X",
                "name": where if parts == 1 else f"{where} chunk {chunk + 1}/{parts}",
                "pid": place,
                "tid": row,
                "ts": start / 1e3,  # microseconds
                "dur": (end - start) / 1e3,
                "args": facts,
            }
        )
    content = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about.facts}
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content))
