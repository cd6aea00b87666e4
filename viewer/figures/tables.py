"""Writes figures that the window shows as CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from splatscope.assets.files.atomic import atomic_path
from splatscope.kernels.wording import printable
from splatscope.viewer.messages.run import Curve, TrainingStatus
from splatscope.viewer.messages.view import NamedCamera, ViewFigures


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Writes a CSV with a heading, whole or not at all; returns its path. Raises InputError if that fails."""
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in rows:
            writer.writerow([printable(cell) if isinstance(cell, str) else cell for cell in row])
    return path


def curve_rows(training: TrainingStatus) -> tuple[tuple[str, ...], list[list[object]]]:
    """Returns (columns, rows): all curves of a run by iteration, empty where a curve has no point. Curves of a long run
    hold the means of neighbouring iterations."""
    curves: dict[str, Curve] = {
        "loss": training.loss_curve,
        training.psnr_label.replace(" ", "_"): training.psnr_curve,
        "splats": training.count_curve,
        "ms_a_step": training.step_curve,
    }
    places = np.unique(np.concatenate([curve.x for curve in curves.values()]))
    found = [dict(zip(curve.x.tolist(), curve.y.tolist(), strict=True)) for curve in curves.values()]
    return ("iteration", *curves), [[f"{x:g}", *(values.get(x, "") for values in found)] for x in places.tolist()]


def view_rows(
    figures: Iterable[ViewFigures], cameras: Sequence[NamedCamera]
) -> tuple[tuple[str, ...], list[list[object]]]:
    """Returns (columns, rows): the time of each view, and how well it fits its photograph."""
    columns = ("view", "held_out", "width", "height", "ms", "instances", "psnr")
    rows: list[list[object]] = []
    for view in figures:
        camera = cameras[view.index]
        fit = "" if view.psnr is None else f"{view.psnr:.4f}"
        rows.append([camera.name, int(camera.is_test), *view.size, f"{view.ms:.4f}", view.instances, fit])
    return columns, rows
