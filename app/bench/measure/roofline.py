"""Counts the fewest bytes that each stage must move, and reads the compiler's report on its kernel.

Counted, not measured; `bench/ladder.py` measures, `bench/tables/ladder.py` divides one by the other.
"""

from __future__ import annotations

from typing import Any

from splatscope.kernels.cuda.launch.compiler import MULTIPROCESSORS
from splatscope.kernels.cuda.plan.operations import Launch
from splatscope.kernels.cuda.plan.passes import KEY_BINS
from splatscope.kernels.cuda.plan.planner import Plan


def kernel_reports(plan: Plan) -> dict[str, dict[str, Any]]:
    """Returns the compiler's report on each kernel of a plan: registers, spills, shared memory, occupancy."""
    import cupy  # pyright: ignore[reportMissingImports]

    architecture, found = int(cupy.cuda.Device().compute_capability), {}
    for launch in [*plan.forward, *plan.backward]:
        if not isinstance(launch, Launch) or (report := launch.kernel.report) is None:
            continue
        row: dict[str, Any] = {
            "registers": report.registers,
            "spill_bytes": report.spill_bytes,
            "shared_bytes": report.shared_bytes,
        }
        if architecture in MULTIPROCESSORS:
            row["occupancy"] = round(report.occupancy(launch.block[0], architecture), 3)
        found[launch.kernel.name] = row
    return found


def heaviest_kernel(kernels: dict[str, dict[str, Any]], stage: str) -> dict[str, Any]:
    """Returns the report on the kernel of a stage with most registers; an empty one where there is none."""
    reports = [report for name, report in kernels.items() if stage_of(name) == stage]
    return max(reports, key=lambda report: report["registers"], default={})


def stage_of(kernel: str) -> str:
    """Returns the stage that a kernel belongs to, by its name as C++ spells it."""
    name = kernel.partition("<")[0].removesuffix("_queue").removesuffix("_plan")
    if name == "sort_pass":  # depths are sorted by longer digits
        return "depth_sort" if f".bins = {KEY_BINS}" in kernel else "tile_sort"
    return {"histogram": "depth_sort", "offsets": "emit"}.get(name, name)


def least_bytes(plan: Plan, count: int, counts: dict[str, int], camera: Any) -> dict[str, int]:
    """Returns the fewest bytes each stage must move, each array once; a roofline divides them by the copy rate."""
    made_for, policy = plan.made_for, plan.made_for.policy
    visible, pairs, pixels = counts["visible"], counts["instances"], camera.width * camera.height
    row = 192 if policy.project.sh_dtype == "f32" else 96  # bytes of a splat's harmonics
    entry = made_for.key_bytes + 4
    stages = {
        # Means and half axes of all; the other parameters and the harmonics of the visible; splat, footprint, depth.
        "project": 24 * count + visible * (20 + row + 48 + 8 + 4),
        # A histogram, three passes over (key, slot); the first reads no slots, the last writes no keys but footprints.
        "depth_sort": 60 * visible if policy.sort.scheme == "two_stage" else 0,
        # Footprint and slot in, place and tiles out and in again; pairs.
        "emit": 44 * visible + entry * pairs,
        "tile_sort": 2 * entry * pairs * made_for.key_passes,
        "ranges": made_for.key_bytes * pairs + 4 * made_for.tiles,
        "blend": 4 * pairs + 48 * visible + 20 * pixels,
        "blend_backward": 4 * pairs + 96 * visible + 20 * pixels,
        "project_backward": visible * (96 + 44 + row) + count * (4 * 13 + row),
    }
    return {stage: size for stage, size in stages.items() if size}
