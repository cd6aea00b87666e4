"""Records frames for `splatscope bench schedule`: SM activity, splats gone through, the simulator's error.

`recorded_frame` draws a frame once more under some variants with schedule.record on, and keeps what figures and tables
need of it. Drawing: `bench/figures/timelines.py`. Times without recording: `bench/schedule.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from splatscope.kernels.schedule.timeline import Recording, checks

if TYPE_CHECKING:
    from splatscope.kernels.cuda.plan.passes import Scene
    from splatscope.kernels.cuda.renderer import Renderer
    from splatscope.kernels.policy import Policy
    from splatscope.kernels.schedule.rules import CostModel
    from splatscope.kernels.types import Camera

RECORDED = ("grid", "lpt", "CaT-GS", "seed's policy", "policy")
FRAMES_BEFORE = 2  # frames before the recorded one; the first is launched kernel by kernel
SAMPLED_TILES = 600  # tiles of each frame in the scatter plot


def recorded_frame(
    renderers: Mapping[str, Renderer], policies: Mapping[str, Policy], scene: Scene, camera: Camera, with_tiles: bool
) -> dict[str, Any]:
    """Returns variant -> figures of its recorded frame.

    `with_tiles` adds a sample of tiles to the figures of the grid.
    """
    found = {}
    for name in (name for name in RECORDED if name in renderers):
        renderer = renderers[name]
        policy = policies[name].with_value("schedule", "record", "on")
        for _ in range(FRAMES_BEFORE + 1):
            renderer.complete(lambda: renderer.forward(scene, camera, policy=policy))  # noqa: B023  (called at once)
        recording = renderer.read_recording()
        assert recording is not None
        found[name] = figures_of(recording, renderer.blend_machine()[1], with_tiles and name == "grid")
    return found


def figures_of(recording: Recording, costs: CostModel | None = None, with_tiles: bool = False) -> dict[str, Any]:
    """Returns the figures kept of a recording, ready for JSON."""
    row: dict[str, Any] = {
        "sm_activity": recording.activity,
        "idle_tail": recording.idle_tail,
        "hand_over_ns": recording.hand_over,
        "makespan_ms": recording.timeline.makespan / 1e6,
        "units": len(recording),
        "chunks": chunk_figures(recording),
        "activity_over_time": np.round(recording.timeline.activity(50), 4).tolist(),
        "simulator": {
            check.name: {"makespan": check.makespan_error, "activity": check.activity_error}
            for check in checks(recording, costs)
        },
    }
    if with_tiles:
        listed, walked = (recording.per_tile(name).ravel() for name in ("listed", "walked"))
        some = np.flatnonzero(listed)[:: max(1, np.count_nonzero(listed) // SAMPLED_TILES)]
        row["tiles"] = {"listed": listed[some].tolist(), "walked": walked[some].tolist()}
    return row


def chunk_figures(recording: Recording) -> dict[str, float]:
    """Counts the splats that chunks listed, went through and went through again.

    Also returns the nanoseconds of a listed splat in chunks and in whole tiles.
    """
    is_chunk = recording.parts > 1
    took = recording.end - recording.start
    columns = {"listed": recording.listed, "walked": recording.walked, "again": recording.again}
    row: dict[str, float] = {name: int(values[is_chunk].sum()) for name, values in columns.items()}
    for name, which in (("ns_a_splat", is_chunk), ("whole_ns_a_splat", ~is_chunk)):
        listed = int(recording.listed[which].sum())
        row[name] = float(took[which].sum()) / listed if listed else 0.0
    return row | {"units": int(is_chunk.sum())}
