"""Finding the photographs that a capture names, whatever happened to their names since.

A name is tried as it stands, then ignoring case, then ignoring the extension. Only if not one name of a
capture fits are folders ignored too: otherwise a missing `test/r_0` would be taken from `train`. Nothing is
decoded here; `colmap.py` and `transforms.py` are the callers.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from splatscope.assets.capture import View
from splatscope.assets.images import EXTENSIONS, has_alpha, image_size
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera


class Photographs:
    """The image files below one folder, subfolders included."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: dict[str, Path] = {}  # path below the folder, with forward slashes -> file
        for parent, folders, files in os.walk(folder):
            folders.sort()
            for name in sorted(files):
                path = Path(parent, name)
                if path.suffix.lower() in EXTENSIONS and not name.startswith("."):
                    self.paths[path.relative_to(folder).as_posix()] = path
        self._by_case: dict[str, str] = {}
        self._by_stem: dict[str, str] = {}
        for relative in self.paths:
            key = _folded(relative)
            self._by_case.setdefault(key, relative)
            self._by_stem.setdefault(_without_extension(key), relative)

    def find(self, name: str) -> str | None:
        """The key in `paths` of the photograph that a capture calls `name`, or None."""
        plain = name.replace("\\", "/").removeprefix("./")
        if plain in self.paths:
            return plain
        key = _folded(plain)
        stem = _without_extension(key)
        # A name may itself lack its extension, and may have a dot of its own: r_0, IMG.0001.
        for table, wanted in ((self._by_case, key), (self._by_stem, key), (self._by_stem, stem)):
            if wanted in table:
                return table[wanted]
        return None

    def find_ignoring_folders(self, names: Sequence[str]) -> dict[str, str]:
        """Name -> key in `paths`, for bare file names that occur once among the names and once on disk."""
        wanted, stored = _once(names), _once(self.paths)
        return {wanted[bare]: stored[bare] for bare in wanted.keys() & stored.keys()}


def match_views(
    photographs: Photographs, cameras: Sequence[tuple[str, Camera]], looked_in: str, folders_may_differ: bool
) -> tuple[tuple[View, ...], list[str]]:
    """Pairs named cameras with their photographs, fits intrinsics to real sizes, and sorts by name.

    Returns the views and one warning for each thing worth knowing. Raises InputError if no photograph is
    found; `looked_in` says where the search was. `folders_may_differ` allows the match by bare file name.
    """
    paths = {name: photographs.find(name) for name, _ in cameras}
    if folders_may_differ and not any(paths.values()):
        paths |= photographs.find_ignoring_folders(list(paths))
    views, notes = [], _Notes()
    for name, camera in cameras:
        found = paths[name]
        if found is None:
            notes.missing.append(name)
            continue
        try:
            width, height = image_size(photographs.paths[found])
        except InputError:
            notes.damaged.append(found)
            continue
        if (width, height) != (camera.width, camera.height):
            stretch = (width * camera.height) / (height * camera.width)
            sentence = f"{found} is {width} x {height}, its camera {camera.width} x {camera.height}"
            (notes.resized if abs(stretch - 1) < 0.02 else notes.reshaped).append(sentence)
            camera = camera.resized(width, height)
        views.append(View(found, photographs.paths[found], camera))
    if not views:
        raise InputError(notes.nothing_found(looked_in, len(photographs.paths)))
    return tuple(sorted(views, key=lambda view: view.name)), notes.sentences(photographs.folder, len(cameras))


@dataclass(frozen=True)
class _Notes:
    """What was noticed while matching, in the words of the warnings."""

    missing: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    reshaped: list[str] = field(default_factory=list)

    def sentences(self, folder: Path, expected: int) -> list[str]:
        result = []
        if self.missing:
            result.append(
                f"{expected - len(self.missing)} of {expected} photographs found in {folder}, {len(self.missing)} "
                f"missing, for example {self.missing[0]}."
            )
        if self.damaged:
            result.append(f"Left out as damaged: {_counted(self.damaged)}, for example {self.damaged[0]}.")
        if self.resized:
            result.append(f"Intrinsics rescaled to the real size of {_counted(self.resized)}: {self.resized[0]}.")
        if self.reshaped:
            result.append(
                f"Not shaped like the camera: {_counted(self.reshaped)}; {self.reshaped[0]}. Perhaps the "
                "cameras were computed from other versions of the photographs."
            )
        return result

    def nothing_found(self, looked_in: str, stored: int) -> str:
        if self.damaged:
            return (
                f"None of the photographs in {looked_in} can be read, for example {self.damaged[0]}. Copy them again."
            )
        return (
            f"Not one of the {_counted(self.missing)} that the cameras name was found, for example "
            f"{self.missing[0]}. Looked in {looked_in}, which holds {stored} images."
        )


def _counted(items: Collection[object]) -> str:
    """ "1 photograph", "12 photographs"."""
    return f"{len(items)} photograph" + ("" if len(items) == 1 else "s")


def all_have_alpha(views: Sequence[View]) -> bool:
    """True for a set of cut-out pictures: then the background is a choice, white unless asked otherwise."""
    return all(has_alpha(view.image_path) for view in views)


def _once(names: Collection[str]) -> dict[str, str]:
    """Bare file name -> name, for those that no other shares."""
    bare = [PurePosixPath(_without_extension(_folded(name.replace("\\", "/")))).name for name in names]
    count = Counter(bare)
    return {key: name for key, name in zip(bare, names, strict=True) if count[key] == 1}


def _folded(name: str) -> str:
    # macOS stores é as two characters, other systems as one.
    return unicodedata.normalize("NFC", name).casefold()


def _without_extension(name: str) -> str:
    stem, extension = os.path.splitext(name)
    return stem if extension in EXTENSIONS else name
