"""Reads the folder that training writes: `point_cloud/iteration_N/point_cloud.ply` and the files next to it.

The splats matter most: a damaged `cameras.json` or `cfg_args` becomes a warning. Opening follows no path that is stored
in these files. `formats.py` opens the PLY itself.
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
    """Returns the saved iterations of a model folder and their PLY files, lowest first; empty if it is none."""
    found = {}
    for ply in folder.glob(f"point_cloud/iteration_*/{PLY_NAME}"):
        number = re.fullmatch(r"iteration_(\d{1,12})", ply.parent.name)
        if number:
            found[int(number[1])] = ply
    return dict(sorted(found.items()))


def model_of(ply: Path) -> tuple[Path, int] | None:
    """Returns (model folder, iteration) if a PLY is where training puts it."""
    ply = ply.absolute()
    number = re.fullmatch(r"iteration_(\d{1,12})", ply.parent.name)
    if number is None or ply.parent.parent.name != "point_cloud":
        return None
    return ply.parent.parent.parent, int(number[1])


def read_cameras_beside(folder: Path) -> tuple[NamedCameras, list[str]]:
    """Returns the cameras of the folder's `cameras.json`, and warnings; both empty if there is no such file."""
    path = folder / "cameras.json"
    if not path.is_file():
        return (), []
    try:
        return read_cameras_json(path), []
    except InputError as error:
        return (), [f"Training cameras ignored: {error}"]


def read_background(folder: Path) -> tuple[tuple[float, float, float], list[str]]:
    """Returns the RGB over which the model was trained, by `cfg_args`: white or else black; and warnings."""
    black, white = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    settings = read_cfg_args(folder)
    if settings is None:
        return black, [f"{folder / 'cfg_args'} cannot be understood, so the background is taken to be black."]
    return (white if settings.get("white_background") is True else black), []


def read_cfg_args(folder: Path) -> dict[str, object] | None:
    """Returns the values of `cfg_args` by name: none if there is no such file, None if it cannot be understood."""
    path = folder / "cfg_args"
    if not path.is_file():
        return {}
    try:
        with open(path, "rb") as file:
            return _parse_namespace(file.read(_CFG_LIMIT).decode("utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _parse_namespace(text: str) -> dict[str, object]:
    """Parses the keywords of `Namespace(name=literal, ...)`. Never evaluates them: the file may come from anyone."""
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
