"""Writes the files of a run, in the layout of the 2023 release so that other viewers open it.

    point_cloud/iteration_N/point_cloud.ply   the splats
    cfg_args, cameras.json, input.ply         what other viewers look for next to them
    settings.json, metrics.json               our settings and scores
    checkpoints/iteration_N.pt                what `checkpoint.py` writes

Positions are those of the capture's own files: the offset that its reader subtracted to keep numbers small is added.

Every file is written under a temporary name and renamed, so a reader never meets half a file; folders are
made as needed and a failure to write is an InputError. The PLY and camera formats themselves are in the
assets layer. Read `trainer.py` for when each is written.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from plyfile import PlyData, PlyElement

from splatscope.assets.capture import NO_OFFSET, Capture, Offset, PointCloud
from splatscope.assets.files.atomic import atomic_path
from splatscope.assets.splats.ply import write_ply
from splatscope.assets.trained.cameras import write_cameras_json
from splatscope.kernels.types import Gaussians
from splatscope.training.config import DIVISORS, TrainConfig, config_to_dict
from splatscope.training.data.dataset import split_views


def write_start(out_dir: Path, capture: Capture, config: TrainConfig, points: PointCloud | None) -> None:
    """Writes everything known before the first step; `points` are the points of the first splats, if any."""
    _write_text(out_dir / "cfg_args", cfg_args(out_dir, capture, config))
    settings = {"source": os.path.realpath(capture.path), "kind": capture.kind, "training": config_to_dict(config)}
    settings["held_out"] = [view.name for view in split_views(capture, config.data)[1]]
    _write_text(out_dir / "settings.json", json.dumps(settings, indent=2))
    write_cameras_json(out_dir / "cameras.json", (*capture.views, *capture.test_views), capture.offset)
    if points is not None:
        write_points(out_dir / "input.ply", points, capture.offset)


def write_splats(out_dir: Path, capture: Capture, config: TrainConfig, iteration: int, gaussians: Gaussians) -> Path:
    """Writes the splats of an iteration, in the coordinates of the capture's own files and with their filter in a
    comment, and returns the path."""
    path = out_dir / "point_cloud" / f"iteration_{iteration}" / "point_cloud.ply"
    write_ply(path, gaussians, offset=capture.offset, filter=config.antialiasing)
    return path


def write_metrics(out_dir: Path, metrics: dict[str, Any]) -> None:
    """Writes metrics.json."""
    _write_text(out_dir / "metrics.json", json.dumps(metrics, indent=2))


def cfg_args(out_dir: Path, capture: Capture, config: TrainConfig) -> str:
    """Returns the text `Namespace(...)` that the 2023 tools parse. They divide sizes by 1, 2, 4 or 8 and take other
    numbers for widths, so another divisor is written as a width."""
    resolution = config.data.resolution
    if resolution in DIVISORS and resolution not in (1, 2, 4, 8):
        resolution = max(1, round(capture.views[0].camera.width / resolution))
    namespace = Namespace(
        sh_degree=config.sh_degree,
        source_path=os.path.realpath(capture.path),
        model_path=os.path.realpath(out_dir),
        images=config.data.images,
        resolution=resolution,
        white_background=config.data.white_background or capture.white_background,
        data_device="cpu",
        eval=config.data.eval,
    )
    return str(namespace)


def write_points(path: Path, points: PointCloud, offset: Offset = NO_OFFSET) -> None:
    """Writes coloured points with zero normals as binary PLY. Positions are float64 if an offset is added to them."""
    wide = "f4" if offset == NO_OFFSET else "f8"
    names = [("x", wide), ("y", wide), ("z", wide), ("nx", "f4"), ("ny", "f4"), ("nz", "f4")]
    names += [("red", "u1"), ("green", "u1"), ("blue", "u1")]
    rows = np.zeros(len(points.positions), dtype=names)
    for axis, name in enumerate(("x", "y", "z")):
        rows[name] = points.positions[:, axis] + offset[axis]
    for channel, name in enumerate(("red", "green", "blue")):
        rows[name] = points.colors[:, channel]
    with atomic_path(path) as temporary:
        PlyData([PlyElement.describe(rows, "vertex")], byte_order="<").write(str(temporary))


def _write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
