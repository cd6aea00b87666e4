"""Finds the photographs that a capture names, whatever happened to their names and sizes since.

A name is tried as written, then ignoring case, then ignoring the extension. Only if not one name of a capture fits are
folders ignored too: otherwise a missing `test/r_0` would be taken from `train`. Decodes nothing; `colmap/captures.py`
and `transforms/captures.py` call it.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import Census, Mask, Sightings, View
from splatscope.assets.files.capture_paths import walk_below
from splatscope.assets.lens import Lens
from splatscope.assets.photographs.exif_turns import Candidate, decided, proof_by_shape, same_shape
from splatscope.assets.photographs.images import EXTENSIONS, UNREAD, ImageHeader, read_header
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted

MASK_FOLDERS = ("masks", "mask")  # `masks.py`
_DYNAMIC_MASK = "dynamic_mask_"  # prefix before the name of the photograph next to it
_NAMED = 3  # most photographs named in a warning
_ENDING = re.compile(r"\.(?=[0-9]?[a-z])[0-9a-z]{3,5}$")  # of a picture or film; not `.0001`, a frame's number
_LONE = re.compile(
    "[\\ud800-\\udc7f\\udd00-\\udfff]"
)  # halves of letters, which JSON may hold; the rest stands for bytes


@dataclass(frozen=True, eq=False)
class Shot:
    """Holds what a capture says of one photograph, before its file is read."""

    name: str
    lens: Lens
    view_from_world: NDArray[np.float64]  # [4, 4]
    upright: bool | None = None  # its camera is for the photograph turned by its EXIF tag; None: shapes decide
    mask: str = ""  # file of its mask, as the capture names it
    sized: bool = True  # the capture gives the lens's size; else it is that of the stored photograph
    sightings: Sightings | None = None


Unreadable = tuple[str, str]  # a photograph's name, and one or two sentences on why it cannot be read
# The mask of a photograph by its key, what is said of it, its header, and whether it is turned as its EXIF tag says.
MaskFinder = Callable[[str, Shot, ImageHeader, bool], Mask | None]


class Photographs:
    """Lists the image files below one folder, subfolders included."""

    def __init__(self, folder: Path, with_masks: bool = False) -> None:
        """Lists the files.

        `with_masks` includes a folder of masks in it, and instant-ngp's masks next to photographs.
        """
        self.folder = folder
        self.paths: dict[str, Path] = {}  # path below the folder, with forward slashes -> file
        self.dynamic_masks: dict[str, Path] = {}  # name of a photograph without extension -> instant-ngp's mask of it
        self.unread: Counter[str] = Counter()  # counts of pictures of kinds that are not read
        self.proofs: dict[str, bool] = {}  # photographs that prove that EXIF tags were applied, or were not
        self._headers: dict[str, ImageHeader] = {}
        for parent, folders, files in walk_below(folder):
            if parent == Path(folder) and not with_masks:
                folders[:] = [name for name in folders if name.casefold() not in MASK_FOLDERS]
            for name in files:
                path = parent / name
                if path.suffix.lower() in EXTENSIONS and not name.startswith("."):
                    self.paths[path.relative_to(folder).as_posix()] = path
                if path.suffix.lower() in UNREAD:
                    self.unread[path.suffix[1:].upper()] += 1
        self._find_dynamic_masks(with_masks)
        self._deepest = max((name.count("/") + 1 for name in self.paths), default=0)  # most parts of a path
        self._by_case: dict[str, str] = {}
        self._by_stem: dict[str, str] = {}
        for relative in self.paths:
            key = _folded(relative)
            self._by_case.setdefault(key, relative)
            self._by_stem.setdefault(_without_extension(key), relative)

    def _find_dynamic_masks(self, stay: bool) -> None:
        """Finds instant-ngp's masks. `stay`: they remain in `paths`, where frames may name them."""
        stems = {os.path.splitext(name)[0] for name in self.paths}
        for name in list(self.paths):
            above, slash, bare = name.rpartition("/")
            if bare.startswith(_DYNAMIC_MASK) and bare.endswith(".png"):
                stem = above + slash + bare[len(_DYNAMIC_MASK) : -len(".png")]
                if stem in stems:
                    self.dynamic_masks[stem] = self.paths[name] if stay else self.paths.pop(name)

    def header(self, key: str) -> ImageHeader:
        """Returns the header of a file of `paths`, read once. Raises InputError if it cannot be read."""
        if key not in self._headers:
            self._headers[key] = read_header(self.paths[key])
        return self._headers[key]

    def find(self, name: str) -> str | None:
        """Returns the key in `paths` of the photograph that a capture calls `name`, or None."""
        plain = name.replace("\\", "/")
        candidates = [os.path.normpath(plain).replace(os.sep, "/")]
        if plain.startswith(("/", "../")) or plain[1:3] == ":/":  # written where the capture was before
            parts = PurePosixPath(plain).parts[1:]
            candidates += ["/".join(parts[-count:]) for count in range(min(len(parts), self._deepest), 0, -1)]
        return next((found for found in map(self._find, candidates) if found is not None), None)

    def _find(self, plain: str) -> str | None:
        if plain in self.paths:
            return plain
        key = _folded(plain)
        # The name may lack an extension and still contain a dot: r_0, IMG.0001.
        for table, wanted in ((self._by_case, key), (self._by_stem, key), (self._by_stem, _stem(key))):
            if wanted in table:
                return table[wanted]
        return None

    def find_ignoring_folders(self, names: Sequence[str]) -> dict[str, str]:
        """Returns name -> key in `paths`, for file names that occur once among the names and once on disk."""
        stored = _once({name: _without_extension(_bare(name)) for name in self.paths})
        wanted = _once({name: _stem(_bare(name)) for name in names})
        spelled = {name: (_without_extension(_bare(name)), stem) for stem, name in wanted.items()}
        found = {name: next((bare for bare in ways if bare in stored), None) for name, ways in spelled.items()}
        return {name: stored[bare] for name, bare in found.items() if bare is not None}


def match_views(
    photographs: Photographs,
    shots: Sequence[Shot],
    looked_in: str,
    folders_may_differ: bool,
    mask_of: MaskFinder | None = None,
) -> tuple[tuple[View, ...], list[str], Census]:
    """Pairs shots with their photographs, fits lenses to real sizes, and sorts by name.

    Returns the views, warnings, and counts. A photograph whose header cannot be read is left out. Raises InputError if
    none is found or most are damaged; `looked_in` says where the search was. `folders_may_differ` allows the match by
    bare file name. `mask_of` finds masks.
    """
    keys = {shot.name: photographs.find(shot.name) for shot in shots}
    if folders_may_differ and not any(keys.values()):
        keys |= photographs.find_ignoring_folders(list(keys))
    return pair_views(photographs, shots, keys, looked_in, mask_of)


def note_proofs(photographs: Photographs, shots: Sequence[Shot], keys: dict[str, str | None]) -> None:
    """Remembers what photographs prove of EXIF tags, for all that are paired later. `keys` as in `pair_views`."""
    for shot in shots:
        if (key := keys[shot.name]) is not None:
            with suppress(InputError):  # `pair_views` reports it
                header = photographs.header(key)
                if header.is_tagged and (proof := _proof(shot, header)) is not None:
                    photographs.proofs[key] = proof


def pair_views(
    photographs: Photographs,
    shots: Sequence[Shot],
    keys: dict[str, str | None],
    looked_in: str,
    mask_of: MaskFinder | None = None,
) -> tuple[tuple[View, ...], list[str], Census]:
    """Makes views as `match_views` does, once each name's photograph is known."""
    note_proofs(photographs, shots, keys)
    opened: list[tuple[str, Shot, ImageHeader]] = []
    notes = _Notes()
    first: dict[str, Shot] = {}
    for shot in shots:
        found = keys[shot.name]
        if (earlier := first.setdefault(found or shot.name, shot)) is not shot:
            same = np.allclose(shot.view_from_world, earlier.view_from_world)
            (notes.twins if same else notes.moved).append(shot.name)
            continue
        if found is None:
            notes.missing.append(shot.name)
            continue
        try:
            opened.append((found, shot, photographs.header(found)))
        except InputError as error:
            notes.unreadable.append((found, str(error)))
    candidates = [Candidate(name, header.is_tagged, _proof(shot, header)) for name, shot, header in opened]
    turns, notes.turns = decided(candidates, Counter(photographs.proofs.values()))
    views = []
    for (found, shot, header), turned in zip(opened, turns, strict=True):
        view = _view(found, photographs.paths[found], shot, header, turned, notes)
        views.append(view if mask_of is None else replace(view, mask=mask_of(found, shot, header, turned)))
    refuse_if_too_few(notes.unreadable, len(first) - len(notes.missing))
    kinds = " and ".join(counted(count, f"{kind} file") for kind, count in photographs.unread.items())
    hint = f" Not read: {kinds}; convert them to JPEG." if kinds else ""
    if not views:
        raise InputError(
            f"Not one of the {counted(len(notes.missing), 'photograph')} that the cameras name was found, for example "
            f"{notes.missing[0]}. Looked in {looked_in}, which holds {counted(len(photographs.paths), 'image')}.{hint}"
        )
    census = Census(
        registered=len(first),
        missing=tuple(notes.missing),
        unused=len(photographs.paths) - len({view.image_path for view in views}) - len(dict(notes.unreadable)),
        folder=photographs.folder,
    )
    return tuple(sorted(views, key=lambda v: v.name)), notes.sentences(photographs.folder, len(first), hint), census


def _proof(shot: Shot, header: ImageHeader) -> bool | None:
    if shot.upright is not None:
        return shot.upright
    return proof_by_shape(header, shot.lens) if shot.sized else None


def _view(found: str, path: Path, shot: Shot, header: ImageHeader, turned: bool, notes: _Notes) -> View:
    """Returns the view of one photograph, with its lens fitted to the size of the turned picture."""
    lens, width, height = shot.lens, header.width, header.height
    if turned:
        width, height = (height, width) if header.lies_sideways else (width, height)
        notes.turned.append(found)
    if (width, height) != (lens.width, lens.height):
        sentence = f"{found} is {width} x {height}, its camera {lens.width} x {lens.height}"
        (notes.resized if same_shape(width, height, lens) else notes.reshaped).append(sentence)
        lens = lens.resized(width, height)
    camera = lens.camera(shot.view_from_world)
    bent = None if lens.is_pinhole else lens
    return View(readable(found), path, camera, bent, turned, header.has_alpha, None, shot.sightings)


@dataclass
class _Notes:
    """Collects what was noticed while matching, for the warnings."""

    twins: list[str] = field(default_factory=list)  # names of a photograph that an earlier name has, with the same pose
    moved: list[str] = field(default_factory=list)  # the same, with another pose
    missing: list[str] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    turned: list[str] = field(default_factory=list)
    turns: str = ""  # what is odd about which photographs are turned
    resized: list[str] = field(default_factory=list)
    reshaped: list[str] = field(default_factory=list)

    def sentences(self, folder: Path, expected: int, hint: str) -> list[str]:
        result = []
        if self.twins:
            count = counted(len(self.twins), "photograph")
            result.append(f"Listed more than once, with the same pose: {count}, {_some(self.twins)}.")
        if self.moved:
            result.append(
                f"Listed more than once, with different poses: {counted(len(self.moved), 'photograph')}, "
                f"{_some(self.moved)}; the first pose of each is used. Take out the wrong ones; perhaps two models "
                "were merged."
            )
        if self.missing:
            result.append(
                f"{expected - len(self.missing)} of {counted(expected, 'photograph')} found in {folder}, "
                f"{len(self.missing)} missing, for example {self.missing[0]}; training goes on without them.{hint}"
            )
        if self.unreadable:
            result.append(left_out(self.unreadable))
        if self.turned:
            result.append(
                f"Turned as their EXIF tag says, to fit the camera: {counted(len(self.turned), 'photograph')}."
            )
        if self.turns:
            result.append(self.turns)
        if self.resized:
            result.append(
                f"Intrinsics rescaled to the real size of {counted(len(self.resized), 'photograph')}: "
                f"{self.resized[0]}."
            )
        if self.reshaped:
            result.append(
                f"Not shaped like the camera: {counted(len(self.reshaped), 'photograph')}; {self.reshaped[0]}. "
                "Perhaps the cameras were computed from other versions of the photographs."
            )
        return result


def left_out(unreadable: Sequence[Unreadable]) -> str:
    """Returns sentences on photographs that cannot be read, and why the first cannot."""
    names, reason = [name for name, _ in unreadable], unreadable[0][1]
    return f"Left out: {counted(len(names), 'photograph')}, {_some(names)}. {reason}"


def refuse_if_too_few(unreadable: Sequence[Unreadable], found: int) -> None:
    """Raises InputError if more than half of the photographs found cannot be read."""
    if 2 * len(unreadable) > found:
        names, reason = [name for name, _ in unreadable], unreadable[0][1]
        raise InputError(
            f"{len(names)} of {counted(found, 'photograph')} cannot be read, {_some(names)}, which leaves too few. "
            f"{reason}"
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def readable(name: str) -> str:
    """Returns the name with letters for bytes that are not UTF-8, which Python holds as surrogates.

    The bytes are taken for Latin-1, as programs for Windows write it.
    """
    raw = _LONE.sub("?", name).encode("utf-8", "surrogateescape")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def all_have_alpha(views: Sequence[View]) -> bool:
    """Returns True if all pictures have alpha: their background is then a choice, white by default."""
    return all(view.has_alpha for view in views)


def _once(spelled: Mapping[str, str]) -> dict[str, str]:
    """Returns value -> key, for values that occur once."""
    count = Counter(spelled.values())
    return {value: name for name, value in spelled.items() if count[value] == 1}


def _bare(name: str) -> str:
    return PurePosixPath(_folded(name.replace("\\", "/"))).name


def _folded(name: str) -> str:
    # macOS stores é as two characters, other systems as one.
    return unicodedata.normalize("NFC", readable(name)).casefold()


def _without_extension(name: str) -> str:
    stem, extension = os.path.splitext(name)
    return stem if extension in EXTENSIONS else name


def _stem(name: str) -> str:
    """Returns the name without the ending of any picture or film: photographs are often converted afterwards."""
    stem = _without_extension(name)
    return _ENDING.sub("", name) if stem == name else stem
