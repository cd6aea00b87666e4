"""The folder that training leaves behind: `point_cloud/iteration_N/point_cloud.ply` and what lies beside it.

The splats are what counts: a damaged `cameras.json` or `cfg_args` becomes a warning, and opening follows no path that
is stored in them. `formats.py` opens the PLY itself.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from splatscope.assets.trained.cameras import read_cameras_json
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera

PLY_NAME = "point_cloud.ply"
_CFG_LIMIT = 1 << 16  # bytes; real ones have about 500

NamedCameras = tuple[tuple[str, Camera], ...]


def iterations(folder: Path) -> dict[int, Path]:
    """Saved iterations of a model folder and their PLY files, lowest first; empty if it is no model folder."""
    found = {}
    for ply in folder.glob(f"point_cloud/iteration_*/{PLY_NAME}"):
        number = re.fullmatch(r"iteration_(\d{1,12})", ply.parent.name)
        if number:
            found[int(number[1])] = ply
    return dict(sorted(found.items()))


def model_of(ply: Path) -> tuple[Path, int] | None:
    """(model folder, iteration) if a PLY lies where training puts it."""
    ply = ply.absolute()
    number = re.fullmatch(r"iteration_(\d{1,12})", ply.parent.name)
    if number is None or ply.parent.parent.name != "point_cloud":
        return None
    return ply.parent.parent.parent, int(number[1])


def read_cameras_beside(folder: Path) -> tuple[NamedCameras, list[str]]:
    """The cameras of `cameras.json` in that folder, and warnings; none of either if there is no such file."""
    path = folder / "cameras.json"
    if not path.is_file():
        return (), []
    try:
        return read_cameras_json(path), []
    except InputError as error:
        return (), [f"Training cameras ignored: {error}"]


def read_background(folder: Path) -> tuple[tuple[float, float, float], list[str]]:
    """RGB that the model was trained over, from `cfg_args`: white if it says so, else black; and warnings."""
    black, white = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    settings = read_cfg_args(folder)
    if settings is None:
        return black, [f"{folder / 'cfg_args'} cannot be understood, so the background is taken to be black."]
    return (white if settings.get("white_background") is True else black), []


def read_cfg_args(folder: Path) -> dict[str, object] | None:
    """What `cfg_args` says by name: nothing if there is no such file, None if it cannot be understood."""
    path = folder / "cfg_args"
    if not path.is_file():
        return {}
    try:
        with open(path, "rb") as file:
            return _parse_namespace(file.read(_CFG_LIMIT).decode("utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _parse_namespace(text: str) -> dict[str, object]:
    """The keywords of `Namespace(name=literal, ...)`. Parsed, never evaluated: the file may be anyone's."""
    call = ast.parse(text.strip(), mode="eval").body
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Namespace"):
        raise ValueError("not a Namespace")
    settings = {}
    for keyword in call.keywords:
        try:
            settings[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            continue  # a value that is no literal belongs to some other tool
    return settings
