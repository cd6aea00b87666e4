"""Opens whatever a person points at: a splat file, a trained model's folder, or a dataset.

Two tables drive it. To add a splat format, write its reader in its own file and name it in `FILE_FORMATS`. To add a
kind of folder, add a row to `FOLDER_FORMATS`. Nothing else needs to change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from splatscope.assets.capture import NO_OFFSET, Capture, Offset
from splatscope.assets.choices import AxesChoice
from splatscope.assets.colmap.captures import (
    find_models,
    read_colmap,
    read_found,
    refuse_half_a_model,
    undistorted_copies,
)
from splatscope.assets.files.lfs import LFS_SENTENCE, lfs_pointer, starts
from splatscope.assets.geometry.recentre import camera_less, far_offset
from splatscope.assets.photographs.images import EXTENSIONS
from splatscope.assets.photographs.view_pixels import MASK_USES, MaskUse
from splatscope.assets.recognise import (
    is_glb,
    is_ply,
    is_sog,
    is_sog_folder,
    is_spz,
    nothing_else,
    other_cameras,
    said_of,
)
from splatscope.assets.sfm.search import NoCamerasError, bare_photographs, known_cameras
from splatscope.assets.splats.activated import with_raw_values
from splatscope.assets.splats.ply import read_filter, read_ply
from splatscope.assets.splats.read_as import AS_USUAL, ReadAs
from splatscope.assets.splats.usable import unusable_in_words, usable_rows
from splatscope.assets.trained import model_folder
from splatscope.assets.trained.model_folder import NamedCameras
from splatscope.assets.transforms.captures import SINGLE, TEST, TRAIN, is_blender, read_blender, read_frames
from splatscope.assets.transforms.other_frames import has_other_frames, is_frames_file, read_other_frames
from splatscope.assets.transforms.phone_apps import is_polycam, is_record3d, read_polycam, read_record3d
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Filter
from splatscope.kernels.types import Gaussians

_OFFSET_SAMPLE = 100_000  # positions tested for being far from the origin


@dataclass(frozen=True, eq=False)
class SplatFile:
    """Holds splats from disk and what is known about their training."""

    path: Path  # the file itself, even if its model folder was opened
    kind: Literal["splats", "model"]  # a file on its own, or one in a model folder
    gaussians: Gaussians
    cameras: NamedCameras  # training cameras, () if unknown
    background: tuple[float, float, float]  # RGB the splats were trained over; black if unknown
    iteration: int | None  # training iteration, None if unknown
    warnings: tuple[str, ...] = ()  # one sentence each
    offset: Offset = NO_OFFSET  # subtracted from every position and camera; `write_ply` adds it back
    filter: Filter = "plain"  # filter of `ProjectPolicy` for which the splats were trained, if the file says it
    reading: str = ""  # the warning among `warnings` that tells how values were read, empty if as usual


@dataclass(frozen=True)
class FileFormat:
    """Describes a splat format by the end of its name. Without a reader, such a file is refused by name."""

    suffix: str  # lower case; longer ones come first
    name: str
    read: Callable[[Path, Offset], Gaussians] | None  # subtracts the offset from positions in float64
    begins: Callable[[bytes], bool] | None = None  # recognises the format by a file's first bytes, whatever its name


@dataclass(frozen=True)
class FolderFormat:
    """Describes a kind of folder: how to recognise it, what to say of it, how to open it."""

    name: str
    contents: str  # what was looked for, in words
    matches: Callable[[Path], bool]
    read: Callable[[Path, str, AxesChoice], SplatFile | Capture]


def open_path(
    path: Path | str, images: str = "images", masks: Sequence[MaskUse] = MASK_USES, axes: AxesChoice = "auto"
) -> SplatFile | Capture:
    """Opens a splat file, a model folder (its highest iteration) or a dataset folder.

    A path that is one level too deep (`images`, `sparse`, `point_cloud`) or too high (a folder with only one thing to
    open) works too. `images` names the folder of photographs. `masks` lists how masks may have been used to find
    cameras, the preferred way first. `axes` are those of the cameras in the files. Raises InputError.
    """
    path = _absolute(path)
    with _system_errors_explained(path):
        if path.is_file():
            return _open_file(path, images, axes)
        if path.is_dir():
            return _open_folder(path, images, masks, axes)
        if path.exists():
            raise InputError(f"{path} is neither a regular file nor a folder but a pipe or device, which is not read.")
    raise InputError(f"There is no file or folder {path}{_nearest_existing(path)}.")


def open_capture(
    path: Path | str, images: str = "images", masks: Sequence[MaskUse] = MASK_USES, axes: AxesChoice = "auto"
) -> Capture:
    """Opens a dataset, and nothing else, for training. Otherwise like `open_path`. Raises InputError."""
    folder = _absolute(path)
    with _system_errors_explained(folder):
        dataset = next((f for f in _DATASETS if folder.is_dir() and f.matches(folder)), None)
        opened = dataset.read(folder, images, axes) if dataset else open_path(folder, images, masks, axes)
    if isinstance(opened, Capture):
        return opened
    raise InputError(
        f"{folder} holds trained splats, not photographs with cameras. Give the dataset folder it was trained from."
    )


@np.errstate(over="ignore", invalid="ignore")  # numbers of damaged files; the warnings name them
def read_splat_file(path: Path, read_as: ReadAs = AS_USUAL) -> SplatFile:
    """Reads splats from one file, with cameras and background if it is in a model folder.

    `read_as` tells what the file itself does not. Raises InputError.
    """
    read = _reader(path)
    gaussians = read(path, NO_OFFSET)
    offset = far_offset(gaussians.means[:: 1 + gaussians.count // _OFFSET_SAMPLE])
    if offset != NO_OFFSET:
        gaussians = read(path, offset)
    gaussians, reading = with_raw_values(path, read_as.of_primitive(path, gaussians), read_as.activated)
    model = model_folder.model_of(path)
    folder = model[0] if model else path.parent
    cameras, warnings = model_folder.read_cameras_beside(folder)
    background, more = model_folder.read_background(folder)
    iteration = model[1] if model else None
    kind = "model" if model else "splats"
    if offset != NO_OFFSET:
        cameras = tuple((name, camera_less(camera, offset)) for name, camera in cameras)
        place = ", ".join(f"{value:,.0f}" for value in offset)
        warnings.append(f"The scene lies far from the origin, about ({place}); it is shown near the origin.")
    unusable = unusable_in_words(path, gaussians, usable_rows(gaussians))
    unusable = unusable and f"Not usable: {unusable}."
    told = tuple(text for text in (*warnings, *more, unusable, reading) if text)
    filter = read_filter(path) if read is read_ply else "plain"
    return SplatFile(path, kind, gaussians, cameras, background, iteration, told, offset, filter, reading)


def reread(opened: SplatFile | Capture, read_as: ReadAs) -> SplatFile | Capture:
    """Reads a splat file again if it is to be read in another way than usual. Raises InputError."""
    is_other = isinstance(opened, SplatFile) and read_as != AS_USUAL
    return read_splat_file(opened.path, read_as) if is_other else opened


def _read_model(path: Path, images: str, axes: AxesChoice) -> SplatFile:
    return read_splat_file(list(model_folder.iterations(path).values())[-1])


FILE_FORMATS = (
    FileFormat(".compressed.ply", "a compressed PLY", None),
    FileFormat(".ply", "PLY", read_ply, is_ply),
    FileFormat(".spz", "an SPZ file", None, is_spz),
    FileFormat(".sog", "a SOG file", None, is_sog),
    FileFormat(".ksplat", "a KSPLAT file", None),
    FileFormat(".splat", "a .splat file", None),
    FileFormat(".glb", "a glTF file", None, is_glb),
    FileFormat(".gltf", "a glTF file", None),
)

FOLDER_FORMATS = (
    FolderFormat(
        "trained model",
        "point_cloud/iteration_N/point_cloud.ply",
        lambda folder: bool(model_folder.iterations(folder)),
        _read_model,
    ),
    FolderFormat(
        "COLMAP dataset",
        "cameras and images (.bin or .txt) in sparse/0 or sparse",
        lambda folder: bool(find_models(folder)),
        read_colmap,
    ),
    FolderFormat(
        "Blender, instant-ngp or nerfstudio dataset",
        f"{TRAIN} or {SINGLE}",
        is_blender,
        read_blender,
    ),
    FolderFormat(
        "undistorted COLMAP dataset",
        "the same in dense/0/sparse or dense/sparse",
        lambda folder: bool(undistorted_copies(folder)),
        read_colmap,
    ),
    FolderFormat("raw data of Polycam", "keyframes with cameras and images", is_polycam, read_polycam),
    FolderFormat("recording of Record3D", "metadata with rgb or rgbd", is_record3d, read_record3d),
    FolderFormat("dataset under another name", "a JSON file with frames", has_other_frames, read_other_frames),
)

_DATASETS = FOLDER_FORMATS[1:]  # training may have written its model into the dataset's folder
_INNER_FOLDERS = ("images", "input", "sparse", "point_cloud", "train", "test", "val", "corrected_images", "rgb", "rgbd")
_ANY_ENDINGS = ("", ".txt", ".bin", ".bak", ".old", ".tmp", ".part", ".download")  # endings that a PLY may have
_MODEL_FILES = tuple(f"{name}{suffix}" for name in ("cameras", "images", "points3D") for suffix in (".bin", ".txt"))


@contextmanager
def _system_errors_explained(path: Path) -> Iterator[None]:
    """Turns an error of the operating system, in any walk through folders, into one sentence."""
    try:
        yield
    except OSError as error:
        place = f" at {error.filename}" if error.filename else ""
        raise InputError(f"{path} cannot be read: {error.strerror or 'the system refused it'}{place}.") from error


def _absolute(path: Path | str) -> Path:
    """Returns the path without "~", "." and "..", so that its names and parents are real."""
    return Path(os.path.abspath(os.path.expanduser(path)))


def _reader(path: Path) -> Callable[[Path, Offset], Gaussians]:
    file_format = _file_format(path)
    if file_format is None:
        raise InputError(
            said_of(path)
            or f"{path} is not something that opens here: open a splat file (.ply), the folder of a trained model, a "
            "capture (COLMAP, nerfstudio, instant-ngp, Blender, raw data of Polycam or Record3D), or a folder of "
            "photographs."
        )
    if file_format.read is None:
        raise InputError(
            f"{path.name} is {file_format.name}; only plain PLY files open. Convert it to PLY first, for example "
            "with SuperSplat or splat-transform."
        )
    return file_format.read


def _open_file(path: Path, images: str, axes: AxesChoice) -> SplatFile | Capture:
    if path.name in (TRAIN, TEST, SINGLE) and is_blender(path.parent):
        return read_blender(path.parent, images, axes)
    if path.name in _MODEL_FILES and _recognised(path.parent) is not None:
        return _open_folder(path.parent, images, MASK_USES, axes)
    if is_frames_file(path):
        return read_frames(path, images, axes)
    if path.suffix.lower() in EXTENSIONS and not is_ply(starts(path)):
        raise InputError(f"{path} is a picture; open the dataset folder that it belongs to.")
    return read_splat_file(path)


def _open_folder(path: Path, images: str, masks: Sequence[MaskUse], axes: AxesChoice) -> SplatFile | Capture:
    folder_format = _recognised(path)
    if folder_format is not None:
        return folder_format.read(path, images, axes)
    is_images = path.name.startswith("images")  # also images_4 and similar: these photographs are meant
    above = _recognised(path.parent) if is_images or path.name in _INNER_FOLDERS else None
    if above is not None:
        return above.read(path.parent, path.name if is_images else images, axes)
    children = sorted(child for child in path.iterdir() if not child.name.startswith("."))
    if is_sog_folder([child.name for child in children]):
        raise InputError(f"{path} is an unpacked SOG scene; only PLY opens. Convert it to PLY first.")
    below = [child for child in children if _can_open(child)]
    if len(below) == 1:
        only = below[0]
        return _open_file(only, images, axes) if only.is_file() else _open_folder(only, images, masks, axes)
    if not below:
        refuse_half_a_model(path)
    refused = [child for child in children if child.is_file() and _format_by_name(child)]
    if refused and not below:
        return _open_file(refused[0], images, axes)  # its error says what the file is and what to do
    if not below and (bare := bare_photographs(path, images)) is not None:
        return _open_bare(path, *bare, masks)
    raise InputError(_nothing_to_open(path, children, below))


def _open_bare(path: Path, folder: Path, count: int, masks: Sequence[MaskUse]) -> Capture:
    """Opens photographs whose cameras an earlier search found."""
    found = known_cameras(folder, masks, beside=folder != path)
    if found is None:
        if said := other_cameras(path):
            raise InputError(said)
        first = min(child for child in folder.iterdir() if child.suffix.lower() in EXTENSIONS)
        if lfs_pointer(starts(first)):
            raise InputError(f"The image {first} cannot be read: {LFS_SENTENCE}")
        raise NoCamerasError(path, folder, count, masks[0])
    return read_found(path, folder, found)


def _recognised(folder: Path) -> FolderFormat | None:
    return next((f for f in FOLDER_FORMATS if f.matches(folder)), None)


def _file_format(path: Path) -> FileFormat | None:
    """Returns the format of a file by its first bytes, else by its name."""
    start = starts(path)
    return next((f for f in FILE_FORMATS if f.begins is not None and f.begins(start)), _format_by_name(path))


def _format_by_name(path: Path) -> FileFormat | None:
    return next((f for f in FILE_FORMATS if path.name.lower().endswith(f.suffix)), None)


def _can_open(child: Path) -> bool:
    try:
        if child.is_dir():
            return _recognised(child) is not None or any(map(is_splat_file, _splat_files(child)))
    except OSError:  # a folder without read permission does not stop the search
        return False
    return is_splat_file(child)


def _splat_files(folder: Path) -> Iterator[Path]:
    """Yields the files of a folder whose name ends as that of a format that opens."""
    return chain.from_iterable(folder.glob(f"*{f.suffix}") for f in FILE_FORMATS if f.read is not None)


def is_splat_file(file: Path) -> bool:
    """Returns True for a file that opens as splats by its name, or begins as PLY and has no telling ending."""
    file_format = _format_by_name(file)
    if file_format is None:
        return file.suffix.lower() in _ANY_ENDINGS and is_ply(starts(file, 8))
    return file_format.read is not None and file.name != "points3D.ply"  # COLMAP's points


def _nothing_to_open(path: Path, children: list[Path], below: list[Path]) -> str:
    """Returns the error about a path that does not open: what was looked for, what was found, and the nearest match."""
    if below:
        return f"{path} holds {len(below)} things that could be opened; choose one: {_names(below)}."
    if said := nothing_else(path):
        return said
    looked_for = "; ".join(f"{f.contents} ({f.name})" for f in FOLDER_FORMATS)
    found = _names(children) if children else "an empty folder"
    return f"{path} holds nothing that opens. Looked for: a .ply file; {looked_for}. Found: {found}."


def _names(paths: list[Path]) -> str:
    shown = ", ".join(p.name + ("/" if p.is_dir() else "") for p in paths[:8])
    return shown + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")


def _nearest_existing(path: Path) -> str:
    """Returns the longest part of a path that exists, for the sentence about a path that does not."""
    parent = next((p for p in path.parents if p.is_dir()), None)
    if parent is None:
        return ""
    here = sorted(p for p in parent.iterdir() if not p.name.startswith("."))
    return f"; {parent} has {_names(here)}" if here else f"; {parent} is empty"
