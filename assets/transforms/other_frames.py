"""Finds files of frames that are not called transforms.json, such as transform_train.json, by their content.

Poses are too valuable to be skipped because of a file's name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from splatscope.assets.capture import IMAGES, Capture
from splatscope.assets.choices import AxesChoice
from splatscope.assets.files.lfs import starts
from splatscope.assets.photographs.find import Photographs
from splatscope.assets.transforms.captures import SINGLE, TEST, TRAIN, read_frames
from splatscope.kernels.errors import InputError

_HEAD = 1 << 16  # bytes within which the first frame begins
_MOST = 20  # most JSON files of a folder that are read, the largest; a file for each photograph has no frames
_POSE = b'"transform_matrix"'


def is_frames_file(file: Path) -> bool:
    """Returns True for a JSON file that begins with poses of frames, in any encoding of text, damaged or not."""
    return file.suffix.lower() == ".json" and _POSE in starts(file, _HEAD).replace(b"\0", b"")


def has_other_frames(folder: Path) -> bool:
    """Returns True if a folder holds such files, and photographs or no PLY that could be meant instead."""
    return bool(_other_frames(folder)) and (not any(folder.glob("*.ply")) or bool(Photographs(folder).paths))


def read_other_frames(folder: Path, images: str = IMAGES, axes: AxesChoice = "auto") -> Capture:
    """Reads the only such file of a folder, with a warning that names it. Raises InputError if there are several."""
    files = _other_frames(folder)
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise InputError(
            f"{folder} has no {SINGLE}, but {len(files)} files with frames under other names: {names}. Call the one to "
            f"train on {SINGLE}; or call it {TRAIN}, and one to test with {TEST}."
        )
    capture = read_frames(files[0], images, axes)
    told = (
        f"There is no {SINGLE}, so the cameras are read from {files[0].name}. If that is right, rename it to {SINGLE}."
    )
    return replace(capture, warnings=(told, *capture.warnings))


def _other_frames(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    files = [file for file in folder.glob("*.[jJ][sS][oO][nN]") if file.is_file()]
    largest = sorted(files, key=lambda file: file.stat().st_size, reverse=True)[:_MOST]
    return sorted(filter(is_frames_file, largest))
