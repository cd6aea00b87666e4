"""Makes the table of schedules for documents, from results of `splatscope bench schedule`.

One row a set of frames, speed-ups of blending over the grid; below it what was to be reached and is not. Other tables:
`publish.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from splatscope.app.bench.tables.schedule import Judgement, judgements, least_psnr, mean, speed_ups, with_plan

SEED = "seed's policy"
COLUMNS = ("lpt", "CaT-GS", SEED, "policy", "best fixed", "oracle")


def schedule_table(results: dict[str, Any], links: Sequence[str]) -> str:
    """Returns Markdown; `links` are the paths of the result files, relative to the document."""
    machine, run = results["machine"], results["run"]
    rows = [
        "| set of frames | imbalance | grid, ms | longest first | CaT-GS | seed's policy | policy (worst–best frame) "
        "| its plan counted | best fixed | best of each frame | least PSNR |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for scene in results["scenes"]:
        gains, frames = speed_ups(scene), scene["frames"]
        ratios = [frame["ratio"] for frame in frames]
        grid = mean([frame["blend_ms"]["grid"] for frame in frames])
        shown = {name: f"{mean(gains[name]):.2f}" if name in gains else "" for name in COLUMNS}
        policy = f"**{shown['policy']}** ({min(gains['policy']):.2f}–{max(gains['policy']):.2f})"
        rows.append(
            f"| {scene['name']} | {min(ratios):.3g}–{max(ratios):.3g} | {grid:.3f} | {shown['lpt']} "
            f"| {shown['CaT-GS']} | {shown[SEED]} | {policy} | {mean(with_plan(scene, 'policy')):.2f} "
            f"| {shown['best fixed']} | {shown['oracle']} | {least_psnr(scene, 'policy')} |"
        )
    frames = " or ".join(map(str, sorted({len(scene["frames"]) for scene in results["scenes"]})))
    revision = f", revision {run['revision']}" if run["revision"] else ""
    files = ", ".join(f"[{link.rsplit('/', 1)[-1]}]({link})" for link in links)
    told = [
        "",
        f"Blending over the grid, means of {frames} frames a set, each a median of timed runs in turns; K = "
        f"{machine.get('workers', '?')} blocks at once, on {machine['gpu']}, driver {machine['driver']}; "
        f"{run['date'][:10]}{revision}; from {files}.",
    ]
    missed = [one for one in judgements(results) if not one.is_met]
    if missed:
        told.append(f"Of what was to be reached, missed: {'; '.join(map(_missed, missed))}.")
    return "\n".join([*rows, *told])


def _missed(one: Judgement) -> str:
    found = f"{one.found - 1:+.1%}" if one.claim.startswith("within") else f"{one.found:.2f} x"
    return f"{one.of}, {one.claim} ({found})"
