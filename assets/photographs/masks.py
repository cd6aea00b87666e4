"""Finds the masks of photographs, and checks whether they fit.

Three conventions are tried in this order:
- a frame of transforms.json names its mask in `mask_path` (nerfstudio);
- dynamic_mask_a.png is next to the photograph a.jpg (instant-ngp);
- a folder `masks` or `mask` next to that of the photographs has a picture named like each photograph, with its
  extension or without (COLMAP: masks/a.jpg.png).

Black pixels do not count. In a dynamic mask, which shows what moves, pixels that are not black do not count.

Reads headers only. `view_pixels.py` uses masks in training, `sfm/worker.py` in the search for cameras. A photograph
whose mask cannot be used counts as a whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import Mask, View
from splatscope.assets.photographs.find import MASK_FOLDERS, Photographs, Shot, Unreadable
from splatscope.assets.photographs.images import QUARTER_TURNS, ImageHeader, read_header, read_mask
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted

_HOLDS_IMAGES = re.compile(r"(?:images|input)(_\w+)?")  # its masks are in a folder next to it: images_4, masks_4
_NAMED = 3  # most examples in a sentence


class Masks:
    """Finds the masks of one capture. Ask `of` for each photograph; then `sentences` tells what was noticed.

    `all` lists them before there are cameras.
    """

    def __init__(self, photographs: Photographs, beside: bool = False) -> None:
        """Prepares the search.

        `beside`: the photographs have their own folder in the capture, next to which masks may be.
        """
        self._photographs, self._beside = photographs, beside
        self._inside: dict[Path, dict[str, Path]] = {}  # folders in a folder, by their names in lower case
        self._folders: dict[Path, Photographs] = {}  # folders of masks
        self._prefixes: dict[Path, set[str]] = {}  # what photographs' names have before names of masks
        self._taken: set[Path] = set()
        self._absent: list[str] = []
        self._unreadable: list[Unreadable] = []
        self._other_size: list[str] = []

    def of(self, name: str, shot: Shot, header: ImageHeader, turned: bool) -> Mask | None:
        """Returns the mask of the photograph with this name and header, or None if it has no usable one."""
        mask = self._find(name, shot.name, shot.mask)
        # Sizes of the photograph, and of its camera if the photograph was made smaller since.
        return mask and self._fitted(mask, name, header, turned, {(shot.lens.width, shot.lens.height)})

    def all(self) -> dict[str, Mask]:
        """Returns photograph -> mask, for photographs that will be turned as their EXIF tags say.

        Damaged ones have none.
        """
        result = {}
        for name, path in self._photographs.paths.items():
            mask = self._find(name, name)
            if mask is not None:
                with suppress(InputError):
                    header = read_header(path)
                    result[name] = self._fitted(mask, name, header, header.is_tagged, set())
        return {name: mask for name, mask in result.items() if mask is not None}

    def _fitted(
        self, mask: Mask, name: str, header: ImageHeader, turned: bool, sizes: set[tuple[int, int]]
    ) -> Mask | None:
        """Returns the mask turned as its photograph is, or None if its size is neither the photograph's nor one of
        `sizes`.
        """
        self._taken.add(mask.path)
        shown = self._shown(mask.path)
        try:
            own = read_header(mask.path)
        except InputError as error:
            self._unreadable.append((shown, str(error)))
            return None
        width, height = header.width, header.height
        if turned and header.lies_sideways:
            width, height = height, width
        turn = own.orientation if own.is_tagged else header.orientation
        for orientation in (turn, 1) if turned else (1,):
            size = (own.height, own.width) if orientation in QUARTER_TURNS else (own.width, own.height)
            if size in {(width, height), *sizes}:
                return replace(mask, orientation=orientation)
        self._other_size.append(f"{shown} is {own.width} x {own.height}, {name} {header.width} x {header.height}")
        return None

    def sentences(self) -> list[str]:
        """Returns a sentence for each thing worth knowing."""
        result = []
        whole = "train whole"
        if self._absent:
            result.append(
                f"Not there: {counted(len(self._absent), 'mask')} that frames name, {_some(self._absent)}; "
                f"those photographs {whole}."
            )
        if self._unreadable:
            names, reason = [name for name, _ in self._unreadable], self._unreadable[0][1]
            result.append(
                f"Not read: {counted(len(names), 'mask')}, {_some(names)}; those photographs {whole}. {reason}"
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
        """Returns a sentence on masks in a folder that no photograph on disk is named like."""
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

    def _find(self, name: str, named: str, mask: str = "") -> Mask | None:
        """Returns the mask of the photograph at `name`. The capture calls it `named` and may call its mask `mask`."""
        if mask:
            found = self._photographs.find(mask)
            if found is not None and found != name:
                return Mask(self._photographs.paths[found])
            self._absent.append(mask)
        dynamic = self._photographs.dynamic_masks.get(os.path.splitext(name)[0])
        if dynamic is not None:
            return Mask(dynamic, is_dynamic=True)
        for above, ending, below in self._places(name, named):
            for folder in self._masks_in(above, ending):
                if name.endswith(below):
                    self._prefixes.setdefault(folder.folder, set()).add(name.removesuffix(below))
                found = folder.find(below)
                if found is not None:
                    return Mask(folder.paths[found])
        return None

    def _places(self, name: str, named: str) -> Iterator[tuple[Path, str, str]]:
        """Yields where a mask may be:

        (folder that may hold a folder of masks, ending of that folder's name, mask's name).
        """
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
        """Returns the folders of masks in a folder, first the one whose name has the ending."""
        if above not in self._inside:
            self._inside[above] = {}
            with suppress(OSError):  # folders next to a capture need not be readable
                self._inside[above] = {path.name.casefold(): path for path in above.iterdir() if path.is_dir()}
        for name in dict.fromkeys(f"{name}{end}" for end in (ending, "") for name in MASK_FOLDERS):
            path = self._inside[above].get(name)
            if path is not None:
                if path not in self._folders:
                    self._folders[path] = Photographs(path)
                yield self._folders[path]

    def _shown(self, path: Path) -> str:
        """Returns a path below the capture, for people."""
        for above in (self._photographs.folder, self._photographs.folder.parent):
            if path.is_relative_to(above):
                return path.relative_to(above).as_posix()
        return str(path)


def kept_by(mask: Mask, inverted: bool = False) -> NDArray[np.bool_]:
    """Returns [h, w] of the mask turned as its photograph is: True where the photograph counts, or the opposite if
    `inverted`.

    Raises InputError if the mask is damaged.
    """
    bright = read_mask(mask.path, mask.orientation, strictly=mask.is_dynamic)
    return bright == (mask.is_dynamic == inverted)


def problem_of(view: View) -> str:
    """Reads all of a view's mask; returns what is wrong with it in a few words, empty if nothing is."""
    if view.mask is None:
        return ""
    try:
        kept = kept_by(view.mask)
    except InputError:
        return "damaged"
    return "" if kept.any() else "black nowhere" if view.mask.is_dynamic else "black everywhere"


def _belong(names: Sequence[str]) -> str:
    return "belongs" if len(names) == 1 else "belong"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
