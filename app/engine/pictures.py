"""Makes pictures of frames for people: heatmaps on the screen, files on disk."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splatscope.app.provenance import Provenance
from splatscope.assets.files.atomic import atomic_path
from splatscope.assets.photographs.images import write_png
from splatscope.kernels.types import Float32, Frame
from splatscope.viewer.figures import overlays
from splatscope.viewer.figures.tables import write_table
from splatscope.viewer.figures.tile_values import column_of, tile_values
from splatscope.viewer.messages.view import ViewRequest


def blend_heatmap(rgba: NDArray[np.uint8], frame: Frame, request: ViewRequest) -> NDArray[np.uint8]:
    """Blends the wanted heatmap into `rgba` [H, W, 4], in place, if the frame has its values; returns `rgba`."""
    values = tile_values(request.overlay, frame)
    if values is not None:
        overlays.blend_tile_heatmap(rgba, values, request.overlay_opacity, request.scale)
    return rgba


def save_screenshot(frame: Frame, request: ViewRequest, folder: Path, stem: str, about: Provenance) -> list[Path]:
    """Writes the picture at its exact pixels, and with an overlay also its heatmap, legend and values of tiles.

    Returns the files. Raises InputError if the folder cannot be written.
    """
    paths = [folder / f"{stem}.png"]
    write_png(paths[0], overlays.picture_rgba(frame.image)[..., :3])
    values = tile_values(request.overlay, frame)
    if values is not None:
        paths += [folder / f"{stem}-{request.overlay}.{kind}" for kind in ("png", "npy", "csv")]
        write_png(paths[1], overlays.heatmap_picture(frame, request, about.backend, about.caption))
        save_npy(paths[2], values)
        rows, columns = np.indices(values.shape)
        table = np.stack([columns, rows, values], -1).reshape(-1, 3).tolist()
        write_table(paths[3], ("tile_column", "tile_row", column_of(request.overlay, frame)), table)
    return paths


def save_npy(path: Path, array: Float32 | NDArray[np.int32]) -> None:
    """Writes an array whole or not at all."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)


def save_frame_stats(path: Path, frame: Frame, request: ViewRequest, backend: str) -> None:
    """Writes counts and stage times of one frame as JSON."""
    counts = frame.tile_counts
    stats = {
        "backend": backend,
        "width": request.camera.width,
        "height": request.camera.height,
        "visible": frame.visible,
        "instances": frame.instances,
        "skipped": frame.skipped,
        "tiles": list(counts.shape),
        "tile_count_max": int(counts.max()),
        "tile_count_mean": float(counts.mean()),
        "stage_ms": frame.stage_ms,
        "camera": asdict(request.camera),
        "settings": asdict(request.settings),
        "policy": asdict(request.policy),
    }
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(stats, indent=2) + "\n")
