"""What a folder holds that can be opened, for the file browser: names, kinds, sizes.

No GUI. What is really in a file is found out when it is opened (`assets/formats.py`); here names must do, because a
folder may hold thousands. Only of a file without a telling ending the first bytes are read. `dialogs/browser.py` shows
the rows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from splatscope.assets.formats import is_splat_file
from splatscope.assets.photographs.images import EXTENSIONS
from splatscope.assets.recognise import is_sog_folder
from splatscope.kernels.errors import InputError

Kind = Literal["folder", "photographs", "capture", "model", "splats"]
MOST = 2000  # rows; a longer folder is cut, and says so

# Names by which a folder is known, in it or one level below it.
_CAPTURE_SIGNS = (
    *("transforms.json", "transforms_train.json", "sparse", "cameras.bin", "cameras.txt"),
    *("colmap/sparse", "dense/sparse", "dense/0/sparse"),
    *("keyframes/corrected_cameras", "keyframes/cameras"),  # Polycam
)
_RECORD3D_SIGNS = (("metadata.json", "rgb"), ("metadata", "rgbd"))
_MODEL_SIGNS = ("point_cloud", "cfg_args")
_LOOKED_AT = 40  # names in a folder, to see whether it holds photographs and nothing else
_FEWEST = 3  # photographs


@dataclass(frozen=True)
class Row:
    """One line of the browser."""

    path: Path
    kind: Kind
    size: int = 0  # bytes, of a file

    @property
    def opens(self) -> bool:
        """True for what the engine can be asked to open; a plain folder is only entered."""
        return self.kind != "folder"


@dataclass(frozen=True)
class Listing:
    """A folder's rows: what can be opened and other folders, each in the order of names."""

    folder: Path
    rows: tuple[Row, ...] = ()
    left_out: int = 0  # rows beyond MOST
    problem: str = ""  # why nothing is listed


def list_folder(folder: Path) -> Listing:
    """Splat files and folders in `folder`. A folder that cannot be read becomes a sentence in `problem`."""
    try:
        with os.scandir(folder) as entries:
            found = [row for entry in entries if (row := _row(entry)) is not None]
    except OSError as error:
        return Listing(folder, problem=f"{folder} cannot be read: {error.strerror or error}.")
    found.sort(key=lambda row: (row.kind == "splats", row.path.name.casefold()))
    return Listing(folder, tuple(found[:MOST]), max(0, len(found) - MOST))


def kind_of(path: Path) -> Kind | None:
    """What a path looks like by its name and, for a folder, by the names in it; None for what cannot be opened."""
    if not path.is_dir():
        return "splats" if path.is_file() and is_splat_file(path) else None
    if any((path / sign).exists() for sign in _MODEL_SIGNS):
        return "model"
    if any((path / sign).exists() for sign in _CAPTURE_SIGNS):
        return "capture"
    if any(all((path / sign).exists() for sign in signs) for signs in _RECORD3D_SIGNS):
        return "capture"
    return _kind_by_names(path)


def _kind_by_names(path: Path) -> Kind:
    """Returns the kind of a folder by the first names in it."""
    with os.scandir(path) as entries:
        some = list(islice(entries, _LOOKED_AT))
    names = [entry.name.lower() for entry in some]
    if any(name.startswith("transform") and name.endswith(".json") for name in names):
        return "capture"  # frames under another name than usual
    pictures = sum(Path(name).suffix in EXTENSIONS for name in names)
    holds_folders = any(entry.is_dir() for entry in some)  # which one might want to enter
    return "photographs" if pictures >= _FEWEST and not holds_folders and not is_sog_folder(names) else "folder"


def folder_of(text: str, current: Path) -> Path:
    """The folder that a typed path names or lies in, seen from `current`. Raises InputError if there is none."""
    path = current / Path(text.strip().strip("\"'")).expanduser()
    for folder in (path, path.parent):
        if folder.is_dir():
            return folder.resolve()
    raise InputError(f"There is no folder {path}; choose one from the list.")


def _row(entry: os.DirEntry[str]) -> Row | None:
    if entry.name.startswith("."):
        return None
    path = Path(entry.path)
    try:
        kind = kind_of(path)
        return None if kind is None else Row(path, kind, entry.stat().st_size if kind == "splats" else 0)
    except OSError:
        return None  # gone since, or not ours to see
