"""Reads and writes splats as PLY, in the layout of the 2023 reference code, and reads coloured points.

Properties are found by name. Order, byte order, text or binary, float or double, and extra properties therefore do not
matter. Values stay raw (log scales, logit opacities, unnormalised quaternions). Two scales make a disk (2dgs). A
comment "primitive 3dgut" tells Gaussians along rays from flattened ones. Positions far from the origin are float64 in
the file, and float32 about an offset in memory (`geometry/recentre.py`). `formats.py` adds other splat formats. Read
`ply_table.py` next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plyfile import PlyData, PlyElement

from splatscope.assets.capture import NO_OFFSET, Offset, PointCloud
from splatscope.assets.files.atomic import atomic_path
from splatscope.assets.splats.ply_header import shown_name
from splatscope.assets.splats.ply_table import BLOCK_ROWS, VertexTable, open_vertices
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Filter
from splatscope.kernels.primitive import FLAT_LOG_SCALE, PRIMITIVES, Primitive
from splatscope.kernels.types import Gaussians
from splatscope.kernels.wording import counted

_POSITION = ["x", "y", "z"]
_NORMAL = ["nx", "ny", "nz"]  # written as zero, because others expect them; never read
_COLORS = (
    ["red", "green", "blue"],
    ["diffuse_red", "diffuse_green", "diffuse_blue"],
    ["r", "g", "b"],
)  # of points
_CONSTANT = ["f_dc_0", "f_dc_1", "f_dc_2"]
_SCALE = ["scale_0", "scale_1", "scale_2"]
_ROTATION = ["rot_0", "rot_1", "rot_2", "rot_3"]  # w, x, y, z
_OF_DISK = _SCALE[:2]
_REQUIRED = [*_POSITION, *_CONSTANT, "opacity", *_SCALE, *_ROTATION]
# Names of the filters of `ProjectPolicy` in SplatRenderMode comments: Brush's, and Faster-GS's for mip.
_FILTERS: dict[str, Filter] = {"default": "plain", "mip": "compensated", "mip-0.1": "mip"}
_PRIMITIVE = "primitive "  # a comment: Gaussians along rays (3dgut) have the same columns as flattened ones
_REST_COUNTS = {0: 1, 9: 4, 24: 9, 45: 16}  # f_rest properties -> rows of `sh` (degree 0 to 3)


def read_ply(path: Path | str, offset: Offset = NO_OFFSET) -> Gaussians:
    """Reads splats from a PLY file, every value bit for bit as stored (doubles are rounded to float32).

    `offset` is subtracted from the positions in float64, before they are rounded. Raises InputError if the file is no
    PLY, cut short, holds no splats, or has a wrong number of f_rest.
    """
    table = open_vertices(path)
    rest = _check_splats(table.path, table.names)
    bands, primitive = len(rest) // 3, _primitive_of(table)
    scales = _OF_DISK if primitive == "2dgs" else _SCALE
    if table.count == 0:
        raise InputError(f"{table.path} holds 0 splats, so there is nothing to show.")

    # The file has all red coefficients first, then green, then blue; ours is [N, K, 3].
    interleaved = [f"f_rest_{channel * bands + band}" for band in range(bands) for channel in range(3)]
    order = [*_POSITION, *_ROTATION, "opacity", *scales, *_CONSTANT, *interleaved]
    colors = 8 + len(scales)
    means = np.empty((table.count, 3), np.float32)
    log_scales = np.full((table.count, 3), FLAT_LOG_SCALE, np.float32)
    quats = np.empty((table.count, 4), np.float32)
    logit_opacities = np.empty(table.count, np.float32)
    sh = np.empty((table.count, 3 * (bands + 1)), np.float32)
    moved = offset != NO_OFFSET
    for rows, values in table.blocks(order, np.float64 if moved else np.float32):
        means[rows] = values[:, 0:3] - offset if moved else values[:, 0:3]
        quats[rows] = values[:, 3:7]
        logit_opacities[rows] = values[:, 7]
        log_scales[rows, : len(scales)] = values[:, 8:colors]
        sh[rows] = values[:, colors:]
    harmonics = sh.reshape(table.count, bands + 1, 3)
    return Gaussians(means, log_scales, quats, logit_opacities, harmonics, primitive=primitive)


def _primitive_of(table: VertexTable) -> Primitive:
    """Returns what the rows of a file of splats are. Raises InputError if its comment does not fit its columns."""
    by_columns = ("3dgs", "3dgut") if _SCALE[2] in table.names else ("2dgs",)
    named = [name for name in PRIMITIVES if _PRIMITIVE + name in table.comments]
    if not named:
        return by_columns[0]
    for primitive in by_columns:
        if primitive in named:
            return primitive
    raise InputError(
        f'{table.path} has the comment "{_PRIMITIVE}{named[0]}", but the scales of {" or ".join(by_columns)}. '
        "Remove the comment."
    )


def read_filter(path: Path | str) -> Filter:
    """Returns the filter of `ProjectPolicy` for which the splats of a PLY were trained.

    The last SplatRenderMode comment with a known name counts; without one it is plain. Raises InputError if the file is
    no PLY.
    """
    modes = (re.fullmatch(r"SplatRenderMode:\s*(\S+)\s*", comment) for comment in open_vertices(path).comments)
    found: Filter = "plain"
    for mode in modes:
        found = _FILTERS.get(mode[1], found) if mode else found
    return found


def write_ply(
    path: Path | str,
    gaussians: Gaussians,
    comments: Iterable[str] = (),
    offset: Offset = NO_OFFSET,
    text: bool = False,
    filter: Filter = "plain",
) -> None:
    """Writes splats as binary little-endian float32, or as text; reading them back gives the same bits.

    A non-zero `offset` is added to the positions, which are then float64. `comments` become header comments, one line
    of ASCII each. Another comment names the `filter` for which the splats were trained, unless it is plain, and one
    says that the splats are Gaussians along rays. Disks are written with two scales. Raises InputError if `path` cannot
    be written.
    """
    bands = gaussians.sh.shape[1] - 1
    rest = [f"f_rest_{i}" for i in range(3 * bands)]
    scales = _OF_DISK if gaussians.primitive == "2dgs" else _SCALE
    names = [*_POSITION, *_NORMAL, *_CONSTANT, *rest, "opacity", *scales, *_ROTATION]
    # An array of the right length that takes no memory: plyfile writes the header with it, and blocks follow.
    wide = _POSITION if offset != NO_OFFSET else []
    record = np.dtype([(name, "<f8" if name in wide else "<f4") for name in names])
    rows = np.broadcast_to(np.zeros(1, record), (gaussians.count,))
    lines = [" ".join(c.encode("ascii", "replace").decode().split()) for c in comments]
    modes = [f"SplatRenderMode: {mode}" for mode, name in _FILTERS.items() if name == filter and name != "plain"]
    modes += [_PRIMITIVE + gaussians.primitive] if gaussians.primitive == "3dgut" else []
    lines += [mode for mode in modes if mode not in lines]
    vertices = PlyElement.describe(rows, "vertex")
    header = PlyData([vertices], text=text, byte_order="=" if text else "<", comments=lines).header
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(header.encode("ascii") + b"\n")
        for start in range(0, gaussians.count, BLOCK_ROWS):
            chosen = slice(start, start + BLOCK_ROWS)
            block = _rows_in_file_order(gaussians, chosen, len(names))
            if text:
                file.write(_as_text(block, gaussians.means[chosen], offset))
            else:
                file.write(_with_wide_positions(block, gaussians.means[chosen], offset) if wide else block.data)


def read_point_cloud(path: Path | str) -> PointCloud:
    """Reads positions and colours of a point cloud or mesh; grey if the file has no colours.

    Colours may be integers (0..255, or 0..65535 as some scanners' software writes them) or floats (0..1). Points that
    are not finite are left out with a remark. Raises InputError.
    """
    table = open_vertices(path)
    missing = [name for name in _POSITION if name not in table.names]
    if missing:
        raise InputError(f"{table.path} holds no points: it lacks {', '.join(missing)}.")
    names = next((names for names in _COLORS if set(names) <= set(table.names)), [])
    stored = {table.type_of(name) for name in names}
    positions = np.empty((table.count, 3))
    is_narrow = stored <= {np.dtype(np.uint8)}
    colors: NDArray[Any] = np.full((table.count, 3), 128, np.uint8 if is_narrow else np.float32)
    kept, brightest = 0, 0.0
    for _, values in table.blocks([*_POSITION, *names], np.float64):
        values = values[np.isfinite(values).all(axis=1)]
        rows = slice(kept, kept := kept + len(values))
        positions[rows] = values[:, :3]
        if names:
            brightest = max(brightest, values[:, 3:].max(initial=0.0))
            colors[rows] = values[:, 3:].clip(0, 255 if is_narrow else 1e9)
    if not is_narrow:
        is_float = table.type_of(names[0]).kind == "f"
        colors = _eight_bits(colors, _measure(is_float, brightest))
    bad = table.count - kept
    remark = f"Left out: {bad:,} of {counted(table.count, 'point')} in {table.path}, whose numbers are not finite."
    return PointCloud(positions[:kept], colors[:kept], (remark,) if bad else ())


def _measure(is_float: bool, brightest: float) -> float:
    """Returns the factor that brings the colours of a file to the range 0 to 255."""
    if is_float:
        return 255.0 if brightest <= 1 else 1.0
    return 1 / 257 if brightest > 255 else 1.0  # 65535 becomes 255


def _eight_bits(colors: NDArray[np.float32], measure: float) -> NDArray[np.uint8]:
    """Returns the colours [P, 3], rounded. Works by blocks: copies of all would take several times the file."""
    result = np.empty(colors.shape, np.uint8)
    for start in range(0, len(colors), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        result[rows] = np.clip(np.round(colors[rows].astype(np.float64) * measure), 0, 255)
    return result


def _rows_in_file_order(gaussians: Gaussians, rows: slice, width: int) -> np.ndarray:
    """Returns one block of the body, [rows, width] little-endian float32."""
    sh = gaussians.sh[rows]
    count, bands = sh.shape[0], sh.shape[1] - 1
    block = np.zeros((count, width), "<f4")
    block[:, 0:3] = gaussians.means[rows]
    block[:, 6:9] = sh[:, 0]
    block[:, 9 : 9 + 3 * bands] = sh[:, 1:].transpose(0, 2, 1).reshape(count, 3 * bands)
    scales = 2 if gaussians.primitive == "2dgs" else 3
    block[:, -5 - scales] = gaussians.logit_opacities[rows]
    block[:, -4 - scales : -4] = gaussians.log_scales[rows, :scales]
    block[:, -4:] = gaussians.quats[rows]
    return block


def _with_wide_positions(block: np.ndarray, means: np.ndarray, offset: Offset) -> bytes:
    """Returns the same rows with their positions, offset added, as float64."""
    positions = means.astype("<f8") + offset
    return np.hstack((positions.view(np.uint8), block[:, 3:].copy().view(np.uint8))).tobytes()


def _as_text(block: np.ndarray, means: np.ndarray, offset: Offset) -> bytes:
    """Returns the same rows as lines. Nine digits distinguish every float32, seventeen every float64."""
    wide = offset != NO_OFFSET
    positions = means.astype(np.float64) + offset if wide else block[:, :3]
    line = " ".join(["%.17g" if wide else "%.9g"] * 3 + ["%.9g"] * (block.shape[1] - 3)) + "\n"
    rows = np.hstack((positions, block[:, 3:])).tolist()
    return "".join(line % tuple(row) for row in rows).encode("ascii")


def _check_splats(path: Path, names: Sequence[str]) -> list[str]:
    """Returns the f_rest properties. Raises InputError, which says what the file is if it has no splats."""
    missing = [name for name in _REQUIRED if name not in names]
    if missing == _SCALE[2:] and sum(name.startswith("scale_") for name in names) == 2:  # a disk
        missing = []
    if "packed_position" in names:
        raise InputError(
            f"{path} is a compressed PLY (packed_position and chunks), which is not read. "
            "Convert it to a plain PLY first, for example with SuperSplat or splat-transform."
        )
    if missing:
        is_other = {"opacity", "f_dc_0", "scale_0", "rot_0"} <= set(missing)
        kind = "is a mesh or point cloud, not splats" if is_other else "cannot be used as splats"
        has = _shortened(names) if names else "no properties"
        raise InputError(f"{path} {kind}: its vertices lack {_ranges(missing)} (they have {has}).")
    rest = [name for name in names if re.fullmatch(r"f_rest_\d+", name)]
    if len(rest) not in _REST_COUNTS:
        more = " (72 is degree 4, which is not supported)" if len(rest) == 72 else ""
        raise InputError(
            f"{path} has {len(rest)} f_rest properties; 0, 9, 24 or 45 are allowed, for SH degree 0, 1, 2 or 3{more}."
        )
    if set(rest) != {f"f_rest_{i}" for i in range(len(rest))}:
        raise InputError(f"{path} has {len(rest)} f_rest properties that are not numbered 0 to {len(rest) - 1}.")
    return rest


def _ranges(missing: Sequence[str]) -> str:
    """Joins the names of whole groups: f_dc_0 to f_dc_2."""
    words = ", ".join(missing)
    for group in (_CONSTANT, _SCALE, _ROTATION):
        words = words.replace(", ".join(group), f"{group[0]} to {group[-1]}")
    return words


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(map(shown_name, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
