"""Scores splats against photographs and leaves both on disk, in the layout and numbers the field compares.

    test/ours_N/renders/00000.png, gt/00000.png      pictures and photographs, in order of their names
    results.json                                     {"ours_N": {"SSIM": …, "PSNR": …, "LPIPS": …}}
    per_view.json                                    the same for each picture
    test/ours_N/protocol.json                        how it was measured, and which photograph is which picture

The caller decides which views are scored; `metrics.py` and `perceptual.py` compute the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from splatscope.assets.capture import View
from splatscope.assets.files.atomic import atomic_path
from splatscope.assets.files.json_fields import read_json
from splatscope.assets.photographs.images import write_png
from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import host_math
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Gaussians, RenderSettings
from splatscope.training import metrics
from splatscope.training.config import DataConfig
from splatscope.training.data.dataset import load_photograph
from splatscope.training.scores.perceptual import find_lpips

_DEFAULT_POLICY = Policy()
Precision = Literal["8bit", "float"]


@dataclass(frozen=True)
class ViewScore:
    """Holds the scores of one view against its photograph."""

    name: str  # name of the photograph
    width: int
    height: int
    psnr: float  # dB
    ssim: float
    lpips: float | None  # None where it cannot be computed
    counted: float = 1.0  # share of the pixels that count; below 1 where a mask leaves some out


def score_views(
    backend: Backend,
    gaussians: Gaussians,
    views: Sequence[View],
    data: DataConfig,
    settings: RenderSettings,
    precision: Precision,
    folder: Path,
    policy: Policy = _DEFAULT_POLICY,
) -> Iterator[ViewScore]:
    """Renders under `policy` and scores each view, and writes picture and photograph below `folder`.

    Views that a mask covers whole are skipped. With "8bit" the picture is rounded to 8 bits before it is
    scored, as the 2023 code does by way of its PNGs.
    """
    lpips, _ = find_lpips()
    host = host_math(backend)
    number = -1
    for view in views:
        photograph = load_photograph(view, data, settings.background)
        if not photograph.counts:
            continue
        number += 1
        target, weights = photograph.target(settings.background), photograph.weights()
        image = np.clip(backend.render(gaussians, photograph.camera, settings, policy).image, 0, 1)
        rounded = np.round(image * 255).astype(np.uint8)
        if precision == "8bit":
            image = np.multiply(rounded, np.float32(1 / 255), dtype=np.float32)
        write_png(folder / "renders" / f"{number:05}.png", rounded)
        write_png(folder / "gt" / f"{number:05}.png", np.round(target * 255).astype(np.uint8))
        psnr, ssim = metrics.score(image, target, host, weights)
        distance = None if lpips is None else lpips(metrics.weighted(image, weights), metrics.weighted(target, weights))
        width, height = photograph.camera.width, photograph.camera.height
        yield ViewScore(view.name, width, height, psnr, ssim, distance, photograph.counted_share)


def mean(scores: Sequence[ViewScore]) -> dict[str, float]:
    """Returns means over views, in the names and order of the field's files; LPIPS only where it was computed."""
    columns = _columns(scores)
    return {name: float(np.mean(list(values))) for name, values in columns.items()}


def write_results(out: Path, method: str, scores: Sequence[ViewScore], protocol: dict[str, Any], folder: Path) -> None:
    """Writes the three JSON files. Entries of other methods in the two shared files stay. Raises InputError."""
    pictures = [f"{number:05}.png" for number in range(len(scores))]
    per_view = {name: dict(zip(pictures, values, strict=True)) for name, values in _columns(scores).items()}
    _merge(out / "results.json", method, mean(scores))
    _merge(out / "per_view.json", method, per_view)
    names = {picture: score.name for picture, score in zip(pictures, scores, strict=True)}
    _write(folder / "protocol.json", {**protocol, "views": names})


def _columns(scores: Sequence[ViewScore]) -> dict[str, list[float]]:
    columns = {"SSIM": [s.ssim for s in scores], "PSNR": [s.psnr for s in scores]}
    distances = [s.lpips for s in scores if s.lpips is not None]
    return {**columns, "LPIPS": distances} if len(distances) == len(scores) else columns


def _merge(path: Path, method: str, values: dict[str, Any]) -> None:
    try:
        stored = read_json(path)
    except InputError:  # none yet, or not ours to mend
        stored = {}
    _write(path, {**(stored if isinstance(stored, dict) else {}), method: values})


def _write(path: Path, values: dict[str, Any]) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
