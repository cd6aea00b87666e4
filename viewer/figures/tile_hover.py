"""Finds the tile under the mouse, its place on the screen and its figures. Pure, no GUI."""

from __future__ import annotations

import numpy as np

from splatscope.kernels.constants import TILE
from splatscope.kernels.schedule.timeline import Recording
from splatscope.kernels.wording import counted
from splatscope.viewer.figures.placement import Box
from splatscope.viewer.messages.view import Picture, RecordedFrame

Tile = tuple[int, int]  # row, column


def tile_at(picture: Picture, box: Box, at: tuple[float, float]) -> Tile | None:
    """Returns the tile at a place of the viewport, for a picture shown in `box`; None outside the picture."""
    height, width = picture.rgba.shape[:2]
    u, v = (at[0] - box[0]) / (box[2] - box[0]), (at[1] - box[1]) / (box[3] - box[1])
    if not (0 <= u < 1 and 0 <= v < 1):
        return None
    row, column = int(v * height) // TILE, int(u * width) // TILE
    rows, columns = picture.frame.tile_counts.shape
    return (row, column) if row < rows and column < columns else None


def tile_box(picture: Picture, box: Box, tile: Tile) -> Box:
    """Returns the box of a tile in the viewport."""
    height, width = picture.rgba.shape[:2]
    x, y = (box[2] - box[0]) / width, (box[3] - box[1]) / height
    top, left = (TILE * k for k in tile)
    right, bottom = min(left + TILE, width), min(top + TILE, height)
    return box[0] + x * left, box[1] + y * top, box[0] + x * right, box[1] + y * bottom


def tile_rows(picture: Picture, recorded: RecordedFrame | None, tile: Tile) -> list[tuple[str, str]]:
    """Returns names and values of a tile, from the picture's own recording, else from a recorded frame of this view."""
    row, column = tile
    listed = int(picture.frame.tile_counts[tile])
    rows = [(f"tile {column}, {row}", counted(listed, "splat"))]
    recording = picture.frame.recording
    if recording is None and recorded is not None and recorded.request.camera == picture.request.camera:
        recording = recorded.recording
    return rows + recorded_rows(recording, row * picture.frame.tile_counts.shape[1] + column) if recording else rows


def recorded_rows(recording: Recording, tile: int) -> list[tuple[str, str]]:
    """Returns names and values of a recorded tile."""
    units = np.flatnonzero(recording.tile == tile)
    if not units.size:
        return []
    listed, walked = int(recording.listed[units].sum()), int(recording.walked[units].sum())
    places = np.unique(recording.multiprocessor[units]).tolist()
    named = f"{recording.place} {places[0]}" if len(places) == 1 else f"{len(places)} {recording.place}s"
    parts = f"{len(units)} chunks on {named}" if len(units) > 1 else named
    start, end = recording.start[units].min() / 1e3, recording.end[units].max() / 1e3
    return [
        ("blended", f"{walked:,} ({walked / max(listed, 1):.0%})"),
        ("took", f"{recording.cycles[units].sum():,.0f} {recording.clock}"),
        ("on", parts),
        ("when", f"{start:,.1f} to {end:,.1f} µs"),
    ]
