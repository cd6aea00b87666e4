"""Lists what can be opened in a folder, for the file browser: names, kinds, sizes. No GUI.

Kinds are guessed from names, because a folder may hold thousands of files: `assets/formats.py` reads a file when it is
opened. Only of files without a known ending are the first bytes read. `dialogs/browser.py` shows the rows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

from splatscope.assets.formats import is_splat_file
from splatscope.assets.photographs.images import EXTENSIONS
from splatscope.assets.recognise import is_sog_folder
from splatscope.kernels.errors import InputError

Kind = Literal["folder", "photographs", "capture", "model", "splats"]
MOST = 2000  # rows at most; the browser says how many are left out

# Names that tell a folder's kind, relative to the folder.
_CAPTURE_SIGNS = (
    *("transforms.json", "transforms_train.json", "sparse", "cameras.bin", "cameras.txt"),
    *("colmap/sparse", "dense/sparse", "dense/0/sparse"),
    *("keyframes/corrected_cameras", "keyframes/cameras"),  # Polycam
)
_RECORD3D_SIGNS = (("metadata.json", "rgb"), ("metadata", "rgbd"))
_MODEL_SIGNS = ("point_cloud", "cfg_args")
_LOOKED_AT = 40  # names read of a folder, to decide whether it holds photographs only
_FEWEST = 3  # photographs in a folder of photographs


@dataclass(frozen=True)
class Row:
    """Describes one line of the browser."""

    path: Path
    kind: Kind
    size: int = 0  # bytes, of a file

    @property
    def opens(self) -> bool:
        """Returns True if the engine can open the path; a plain folder is only entered."""
        return self.kind != "folder"


@dataclass(frozen=True)
class Listing:
    """Holds a folder's rows: folders first, then splat files, each sorted by name."""

    folder: Path
    rows: tuple[Row, ...] = ()
    left_out: int = 0  # rows beyond MOST
    problem: str = ""  # the reason why nothing is listed


def list_folder(folder: Path) -> Listing:
    """Lists the splat files and folders in `folder`. If it cannot be read, `problem` says why."""
    try:
        with os.scandir(folder) as entries:
            found = [row for entry in entries if (row := _row(entry)) is not None]
    except OSError as error:
        return Listing(folder, problem=f"{folder} cannot be read: {error.strerror or error}.")
    found.sort(key=lambda row: (row.kind == "splats", row.path.name.casefold()))
    return Listing(folder, tuple(found[:MOST]), max(0, len(found) - MOST))


def kind_of(path: Path) -> Kind | None:
    """Returns the kind of a path by its name and, for a folder, by the names in it; None if it cannot be opened."""
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
    holds_folders = any(entry.is_dir() for entry in some)  # a person may want to enter them
    return "photographs" if pictures >= _FEWEST and not holds_folders and not is_sog_folder(names) else "folder"


def folder_of(text: str, current: Path) -> Path:
    """Returns the folder of a typed path, relative to `current`. Raises InputError if there is none."""
    path = current / Path(text.strip().strip("\"'")).expanduser()
    for folder in (path, path.parent):
        if folder.is_dir():
            return folder.resolve()
    raise InputError(f"There is no folder {path}; choose one from the list.")


def typed_path(text: str) -> Path | None:
    """Returns the path in a typed or pasted text, None for nothing. Quotes, spaces, ~ and file:// are understood."""
    path = text.strip().strip("\"'")
    if path.startswith("file:"):
        path = url2pathname(urlsplit(path).path)
    return Path(path).expanduser() if path else None


def _row(entry: os.DirEntry[str]) -> Row | None:
    if entry.name.startswith("."):
        return None
    path = Path(entry.path)
    try:
        kind = kind_of(path)
        return None if kind is None else Row(path, kind, entry.stat().st_size if kind == "splats" else 0)
    except OSError:
        return None  # deleted meanwhile, or not readable for us
