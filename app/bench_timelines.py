"""Recorded timelines in `splatscope bench --schedule`: measured SM activity, splats gone through, simulator's error.

`recorded_frame` draws a frame once more under some variants with schedule.record on; `draw_timeline_figures` makes of
it the counterparts of the paper's figures 5 (activity against imbalance), 6 (its distribution over frames) and 17
(splats gone through against splats listed), and one of the simulator against what happened. Times without recording:
`bench_schedule.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from splatscope.kernels.sm_timeline import Recording, checks

if TYPE_CHECKING:
    from splatscope.kernels.passes import Scene
    from splatscope.kernels.policy import Policy
    from splatscope.kernels.renderer import Renderer
    from splatscope.kernels.types import Camera

RECORDED = ("grid", "lpt", "CaT-GS", "seed's policy", "policy")
FRAMES_BEFORE = 2  # the first is launched kernel by kernel
SAMPLED_TILES = 1500  # of each frame, in the scatter


def recorded_frame(
    renderers: Mapping[str, Renderer], policies: Mapping[str, Policy], scene: Scene, camera: Camera
) -> dict[str, Any]:
    """variant -> figures of its recorded frame; of the grid's also what a sample of its tiles came to."""
    found = {}
    for name in (name for name in RECORDED if name in renderers):
        renderer = renderers[name]
        policy = policies[name].with_value("schedule", "record", "on")
        for _ in range(FRAMES_BEFORE + 1):
            renderer.complete(lambda: renderer.forward(scene, camera, policy=policy))  # noqa: B023  (called at once)
        recording = renderer.read_recording()
        assert recording is not None
        found[name] = figures_of(recording, renderer.blend_machine()[1].chunk, with_tiles=name == "grid")
    return found


def figures_of(recording: Recording, chunk_cost: float = 0.0, with_tiles: bool = False) -> dict[str, Any]:
    """What is kept of a recording, ready for JSON."""
    row: dict[str, Any] = {
        "sm_activity": recording.activity,
        "idle_tail": recording.idle_tail,
        "makespan_ms": recording.timeline.makespan / 1e6,
        "units": len(recording),
        "activity_over_time": np.round(recording.timeline.activity(50), 4).tolist(),
        "simulator": {
            check.name: {"makespan": check.makespan_error, "activity": check.activity_error}
            for check in checks(recording, chunk_cost)
        },
    }
    if with_tiles:
        listed, walked = (recording.per_tile(name).ravel() for name in ("listed", "walked"))
        some = np.flatnonzero(listed)[:: max(1, np.count_nonzero(listed) // SAMPLED_TILES)]
        row["tiles"] = {"listed": listed[some].tolist(), "walked": walked[some].tolist()}
    return row


def draw_timeline_figures(results: dict[str, Any], folder: Path) -> list[Path]:
    """Writes schedule-*.png to `folder` from frames that have "recorded"; nothing if none has."""
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    frames = [(scene["name"], frame) for scene in results["scenes"] for frame in scene["frames"] if "recorded" in frame]
    if not frames:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    caption, paths = f"{results['machine']['gpu']}, {results['run']['date'][:10]}", []
    names = [name for name in RECORDED if all(name in frame["recorded"] for _, frame in frames)]

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in names:
        activity = [100 * frame["recorded"][name]["sm_activity"] for _, frame in frames]
        left.step(np.sort(activity), np.arange(1, len(activity) + 1) / len(activity), where="post", label=name)
        right.scatter([frame["ratio"] for _, frame in frames], activity, s=16, label=name)
    left.set(xlim=(0, 101), ylim=(0, 1.02), xlabel="SM activity of a frame, %", ylabel="share of frames at or below")
    right.set(xscale="log", ylim=(0, 103), xlabel="heaviest tile over an even share", ylabel="SM activity, %")
    right.legend(fontsize=8)
    figure.suptitle(f"Measured SM activity: {caption}", fontsize=10)
    paths.append(_saved(figure, folder / "schedule-activity.png"))

    figure = Figure(figsize=(5.5, 5), layout="constrained")
    axes = figure.subplots()
    for scene in dict.fromkeys(name for name, _ in frames):
        tiles = next(frame["recorded"]["grid"]["tiles"] for name, frame in frames if name == scene)
        axes.scatter(tiles["listed"], np.maximum(tiles["walked"], 1), s=3, label=scene)
    top = max(max(frame["recorded"]["grid"]["tiles"]["listed"]) for _, frame in frames)
    axes.plot([1, top], [1, top], color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="splats listed in a tile", ylabel="splats gone through")
    axes.set_title(f"Early stops: {caption}", fontsize=10)
    axes.legend(fontsize=7, markerscale=3)
    paths.append(_saved(figure, folder / "schedule-work.png"))

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name in names:
        errors = [100 * frame["recorded"][name]["simulator"]["walked"]["makespan"] for _, frame in frames]
        axes.scatter([frame["ratio"] for _, frame in frames], errors, s=16, label=name)
    axes.axhline(0.0, color="grey", linewidth=0.8)
    axes.set(xscale="log", xlabel="heaviest tile over an even share", ylabel="simulated over recorded makespan, % off")
    axes.set_title(f"The simulator, given the splats gone through: {caption}", fontsize=10)
    axes.legend(fontsize=8)
    paths.append(_saved(figure, folder / "schedule-simulator.png"))
    return paths


def _saved(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=150)
    return path
