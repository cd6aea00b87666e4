"""Masks beside photographs: which file is whose, and whether it fits.

Two customs are followed, and in both what is black does not count. A frame of transforms.json names its mask in
`mask_path` (nerfstudio); or a folder `masks` or `mask` beside that of the photographs has a picture named like each,
with its extension or without (COLMAP: masks/a.jpg.png). Only headers are read here; `view_image.py` puts masks to use,
and a photograph whose mask cannot be used counts whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from splatscope.assets.capture import Mask, View
from splatscope.assets.images import QUARTER_TURNS, ImageHeader, read_header, read_mask
from splatscope.assets.photographs import MASK_FOLDERS, Photographs, Shot
from splatscope.kernels.errors import InputError
from splatscope.kernels.words import counted

_HOLDS_IMAGES = re.compile(r"(?:images|input)(_\w+)?")  # a folder whose masks lie in one beside it: images_4, masks_4
_NAMED = 3  # examples in a sentence


class Masks:
    """Those of one capture; `of` is asked for each photograph, then `sentences` tells what was noticed."""

    def __init__(self, photographs: Photographs, beside: bool = False) -> None:
        """`beside`: the photographs have a folder of their own in the capture, and so may masks."""
        self._photographs, self._beside = photographs, beside
        self._inside: dict[Path, dict[str, Path]] = {}  # folders in a folder, by their names in small letters
        self._folders: dict[Path, Photographs] = {}  # of masks
        self._prefixes: dict[Path, set[str]] = {}  # what photographs' names have before the names of masks in a folder
        self._taken: set[Path] = set()
        self._absent: list[str] = []
        self._damaged: list[str] = []
        self._other_size: list[str] = []

    def of(self, name: str, shot: Shot, header: ImageHeader, turned: bool) -> Mask | None:
        """The mask of the photograph with this name and header, None if it has none that can be used."""
        path = self._find(name, shot)
        if path is None:
            return None
        self._taken.add(path)
        shown = self._shown(path)
        try:
            own = read_header(path)
        except InputError:
            self._damaged.append(shown)
            return None
        width, height = header.width, header.height
        if turned and header.lies_sideways:
            width, height = height, width
        # The size of the photograph, or that of its camera if the photograph was made smaller since.
        allowed = {(width, height), (shot.lens.width, shot.lens.height)}
        turn = own.orientation if own.is_tagged else header.orientation
        for orientation in (turn, 1) if turned else (1,):
            size = (own.height, own.width) if orientation in QUARTER_TURNS else (own.width, own.height)
            if size in allowed:
                return Mask(path, orientation)
        self._other_size.append(f"{shown} is {own.width} x {own.height}, {name} {header.width} x {header.height}")
        return None

    def sentences(self) -> list[str]:
        """One for each thing worth knowing."""
        result = []
        whole = "train whole"
        if self._absent:
            result.append(
                f"Not there: {counted(len(self._absent), 'mask')} that frames name, {_some(self._absent)}; "
                f"those photographs {whole}."
            )
        if self._damaged:
            result.append(
                f"Damaged: {counted(len(self._damaged), 'mask')}, {_some(self._damaged)}. Those photographs {whole}; "
                "copy or export the masks again."
            )
        if self._other_size:
            result.append(
                f"Not as large as their photographs: {counted(len(self._other_size), 'mask')}; {self._other_size[0]}. "
                f"Those photographs {whole}; export the masks at the photographs' size."
            )
        for folder in self._folders.values():
            result.extend(self._strays(folder))
        return result

    def _strays(self, folder: Photographs) -> Iterator[str]:
        """What is said of masks in a folder that no photograph on disk is named like."""
        prefixes = self._prefixes.get(folder.folder, set())

        def is_stray(name: str) -> bool:
            names = (prefix + known for prefix in prefixes for known in (name, os.path.splitext(name)[0]))
            return folder.paths[name] not in self._taken and not any(map(self._photographs.find, names))

        strays = [name for name in folder.paths if is_stray(name)]
        where = self._shown(folder.folder)
        if strays and len(strays) == len(folder.paths):
            some = next(iter(self._photographs.paths), "a.jpg")
            wanted = f"{PurePosixPath(some).name}.png"
            yield (
                f"No masks are used from {where}: none of its {counted(len(strays), 'picture')} is named like a "
                f"photograph, {_some(strays)}. The mask of {some} would be {wanted}."
            )
        elif strays:
            yield f"In {where} {counted(len(strays), 'mask')} {_belong(strays)} to no photograph: {_some(strays)}."

    def _find(self, name: str, shot: Shot) -> Path | None:
        if shot.mask:
            found = self._photographs.find(shot.mask)
            if found is not None and found != name:
                return self._photographs.paths[found]
            self._absent.append(shot.mask)
        for above, ending, below in self._places(name, shot.name):
            for folder in self._masks_in(above, ending):
                if name.endswith(below):
                    self._prefixes.setdefault(folder.folder, set()).add(name.removesuffix(below))
                found = folder.find(below)
                if found is not None:
                    return folder.paths[found]
        return None

    def _places(self, name: str, named: str) -> Iterator[tuple[Path, str, str]]:
        """(folder that may have a folder of masks in it, ending of its name, name of the photograph's mask there)."""
        base, parts = self._photographs.folder, name.split("/")
        for depth in reversed(range(len(parts) - 1)):
            match = _HOLDS_IMAGES.fullmatch(parts[depth])
            if match:
                yield base.joinpath(*parts[:depth]), match[1] or "", "/".join(parts[depth + 1 :])
        match = _HOLDS_IMAGES.fullmatch(base.name)
        if match or self._beside:
            for below in dict.fromkeys((name, named)):  # smaller copies may have other names than the originals
                yield base.parent, (match[1] or "" if match else ""), below
        if not self._beside:
            yield base, "", name

    def _masks_in(self, above: Path, ending: str) -> Iterator[Photographs]:
        """The folders of masks in a folder; one whose name has the ending first."""
        if above not in self._inside:
            self._inside[above] = {}
            with suppress(OSError):  # what lies beside a capture need not be readable
                self._inside[above] = {path.name.casefold(): path for path in above.iterdir() if path.is_dir()}
        for name in dict.fromkeys(f"{name}{end}" for end in (ending, "") for name in MASK_FOLDERS):
            path = self._inside[above].get(name)
            if path is not None:
                if path not in self._folders:
                    self._folders[path] = Photographs(path)
                yield self._folders[path]

    def _shown(self, path: Path) -> str:
        """A path below the capture, as people know it."""
        for above in (self._photographs.folder, self._photographs.folder.parent):
            if path.is_relative_to(above):
                return path.relative_to(above).as_posix()
        return str(path)


def problem_of(view: View) -> str:
    """What is wrong with a view's mask once all of it is read, a few words; empty if nothing is."""
    if view.mask is None:
        return ""
    try:
        kept = read_mask(view.mask.path, view.mask.orientation)
    except InputError:
        return "damaged"
    return "" if kept.any() else "black everywhere"


def _belong(names: Sequence[str]) -> str:
    return "belongs" if len(names) == 1 else "belong"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
