"""Finding the photographs that a capture names, whatever happened to their names since.

A name is tried as it stands, then ignoring case, then ignoring the extension, then by the bare file name
where that is unique. Nothing is decoded here; `colmap.py` and `transforms.py` are the callers.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
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
        self._by_bare_name: dict[str, str | None] = {}  # None: several files share it
        for relative in self.paths:
            key = _folded(relative)
            self._by_case.setdefault(key, relative)
            self._by_stem.setdefault(_without_extension(key), relative)
            bare = PurePosixPath(_without_extension(key)).name
            self._by_bare_name[bare] = None if bare in self._by_bare_name else relative

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
        return self._by_bare_name.get(PurePosixPath(stem).name)


def match_views(
    photographs: Photographs, cameras: Sequence[tuple[str, Camera]], looked_in: str
) -> tuple[tuple[View, ...], list[str]]:
    """Pairs named cameras with their photographs, fits intrinsics to real sizes, and sorts by name.

    Returns the views and one warning for each thing worth knowing. Raises InputError if no photograph is
    found; `looked_in` says where the search was.
    """
    views, missing, resized, reshaped = [], [], [], []
    for name, camera in cameras:
        found = photographs.find(name)
        if found is None:
            missing.append(name)
            continue
        path = photographs.paths[found]
        width, height = image_size(path)
        if (width, height) != (camera.width, camera.height):
            sentence = f"{found} is {width} x {height}, its camera {camera.width} x {camera.height}"
            stretch = (width * camera.height) / (height * camera.width)
            (resized if abs(stretch - 1) < 0.02 else reshaped).append(sentence)
            camera = camera.resized(width, height)
        views.append(View(found, path, camera))
    if not views:
        examples = ", ".join(missing[:3])
        raise InputError(
            f"None of the {len(missing)} photographs that the cameras name were found, for example {examples}. "
            f"Looked in {looked_in}, which holds {len(photographs.paths)} images."
        )
    warnings = []
    if missing:
        warnings.append(
            f"{len(views)} of {len(cameras)} photographs found in {photographs.folder}, {len(missing)} missing, "
            f"for example {missing[0]}."
        )
    if resized:
        warnings.append(f"Intrinsics rescaled to the real size of {len(resized)} photographs: {resized[0]}.")
    if reshaped:
        warnings.append(
            f"{len(reshaped)} photographs have another shape than their cameras, so they may not be those the "
            f"cameras were computed from: {reshaped[0]}."
        )
    return tuple(sorted(views, key=lambda view: view.name)), warnings


def all_have_alpha(views: Sequence[View]) -> bool:
    """True for a set of cut-out pictures: then the background is a choice, white unless asked otherwise."""
    return all(has_alpha(view.image_path) for view in views)


def with_prefix(views: Sequence[View], prefix: str) -> tuple[View, ...]:
    """The same views with names below another folder."""
    return tuple(replace(view, name=prefix + view.name) for view in views)


def _folded(name: str) -> str:
    # macOS stores é as two characters, other systems as one.
    return unicodedata.normalize("NFC", name).casefold()


def _without_extension(name: str) -> str:
    stem, extension = os.path.splitext(name)
    return stem if extension in EXTENSIONS else name
