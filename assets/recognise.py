"""Names files that do not open, and says what to do with them.

`KNOWN` is the table: exports of other programs, archives, videos, meshes, photographs of kinds that are not read. A new
kind is one row. `formats.py` decides what opens and asks here last.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from splatscope.assets.files.lfs import LFS_SENTENCE, lfs_pointer, starts
from splatscope.assets.photographs.images import UNREAD
from splatscope.kernels.wording import counted

_FILES, _FOLDERS = 2000, 50  # how many of a folder are looked at
_COLMAP = "Export as COLMAP (cameras, images and points3D as .txt or .bin)"
_ZIP = rb"PK\x03\x04"


@dataclass(frozen=True)
class Known:
    """Describes a kind of file that does not open."""

    name: str
    endings: tuple[str, ...]  # ends of names, lower case; () for any
    begins: bytes  # a regular expression for its first bytes; b"" if the ending is enough
    advice: str  # what to do, in one sentence
    has_cameras: bool = False  # the file has cameras of photographs


def _cameras(name: str, endings: tuple[str, ...], begins: bytes, how: str) -> Known:
    advice = f"{_COLMAP}: {how}." if how else f"{_COLMAP}."
    return Known(name, endings, begins, advice, has_cameras=True)


def _mesh(name: str, endings: tuple[str, ...], begins: bytes) -> Known:
    return Known(name, endings, begins, "Export the Gaussian splats as PLY, or the photographs and cameras.")


_UNPACK = "Unpack it and open the folder."
_TO_NERFSTUDIO = "Convert it to a transforms.json of nerfstudio, or to COLMAP."
_IN_METASHAPE = "in Metashape with File > Export > Export Cameras"
_IN_REALITY = "in RealityScan (RealityCapture) with Export > Registration > COLMAP"

KNOWN = (
    _cameras("a camera file of Metashape", (".xml",), rb"(?s).*<document[^>]*>\s*<chunk", _IN_METASHAPE),
    _cameras("a Metashape project", (".psx", ".psz"), b"", _IN_METASHAPE),
    _cameras("a camera file of BlocksExchange", (".xml",), rb"(?s).*<BlocksExchange", ""),
    _cameras("a camera file of RealityScan (RealityCapture)", (".csv",), rb"#name,.*(alt|heading|yaw|f)", _IN_REALITY),
    _cameras(
        "a camera file of RealityScan (RealityCapture)", (".xmp",), rb"(?s).*\bxcr:(Rotation|Position)", _IN_REALITY
    ),
    _cameras("a project of RealityScan (RealityCapture)", (".rcproj", ".rsproj"), b"", _IN_REALITY),
    _cameras("a camera file of Bundler", (".out",), rb"# Bundle file", ""),
    _cameras("a camera file of VisualSFM", (".nvm",), rb"NVM_V", ""),
    _cameras("a camera file of Meshroom", (".sfm", ".json"), rb'(?s).*"(featuresFolders|matchesFolders)"', ""),
    _cameras(
        "a camera file of OpenMVG", (".json",), rb'\s*\{\s*"sfm_data_version"', "with openMVG_main_openMVG2Colmap"
    ),
    _cameras(
        "a camera file of OpenSfM or OpenDroneMap", (".json",), rb'\s*\[\s*\{\s*"cameras"', "with opensfm export_colmap"
    ),
    _cameras("a camera file of Pix4D", ("_calibrated_camera_parameters.txt",), b"", ""),
    Known("a camera of 3D Scanner App", (".json",), rb'(?s).*"cameraPoseARFrame"', _TO_NERFSTUDIO, has_cameras=True),
    Known("the path of Stray Scanner", ("odometry.csv",), b"", _TO_NERFSTUDIO, has_cameras=True),
    Known("a recording of Record3D", (".r3d",), b"", "It is a ZIP archive: unpack it and open the folder."),
    Known("an archive", (".zip", ".7z", ".rar", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst"), b"", _UNPACK),
    Known("an archive", (), rb"\x1f\x8b|Rar!|7z\xbc\xaf|" + _ZIP, _UNPACK),
    Known(
        "a video",
        (".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".insv", ".360", ".mts"),
        b"",
        "Take photographs from it, two a second for example: mkdir images && ffmpeg -i {file} -vf fps=2 -qscale:v 2 "
        "images/%05d.jpg; then open the folder images.",
    ),
    Known(
        "a photograph in {ENDING}",
        tuple(UNREAD),
        b"",
        "Convert all to JPEG, for example with ImageMagick: magick mogrify -format jpg {pattern}.",
    ),
    _mesh("a mesh", (".obj", ".fbx", ".stl", ".usdz", ".usd", ".dae", ".3mf", ".blend"), b""),
    _mesh("a point cloud", (".las", ".laz", ".e57", ".pcd", ".pts", ".xyz"), b""),
)


def is_ply(start: bytes) -> bool:
    """Returns True for a file that begins as PLY does."""
    return re.match(rb"ply[ \t]*[\r\n]", start) is not None


def is_spz(start: bytes) -> bool:
    """Returns True for a gzip archive that holds the splats of an SPZ file."""
    try:
        return zlib.decompressobj(31).decompress(start, 4) == b"NGSP"
    except zlib.error:
        return start.startswith(b"NGSP")


def is_sog(start: bytes) -> bool:
    """Returns True for a ZIP archive whose first member is one of a SOG scene."""
    return re.match(_ZIP + rb"(?s:.{26})(meta\.json|means_[lu]|quats|scales|sh0|shN)", start) is not None


def is_glb(start: bytes) -> bool:
    """Returns True for a binary glTF file."""
    return start.startswith(b"glTF")


def is_sog_folder(names: Sequence[str]) -> bool:
    """Returns True for the names in a folder that holds an unpacked SOG scene."""
    return "meta.json" in names and any(name.startswith("means") for name in names)


def known(file: Path, start: bytes | None = None) -> Known | None:
    """Returns the first row of the table that fits a file, None if none does.

    Without `start`, its first bytes, only files are looked into whose names fit a row.
    """
    name = file.name.lower()
    rows = [row for row in KNOWN if name.endswith(row.endings) or (start is not None and not row.endings)]
    if start is None:
        start = starts(file) if any(row.begins for row in rows) else b""
    return next((row for row in rows if re.match(row.begins, start)), None)


def said_of(file: Path) -> str:
    """Returns one or two sentences about a file that does not open; empty if its kind is not known."""
    start = starts(file)
    if lfs_pointer(start):
        return f"{file} does not open: {LFS_SENTENCE}"
    row = known(file, start)
    return f"{file} is {_name(row, file)}, which is not read. {_advice(row, file)}" if row else ""


def other_cameras(folder: Path) -> str:
    """Returns a sentence about cameras in a folder of photographs that another program wrote; empty if none are there.

    Only the folder is looked into, and the folders right in it.
    """
    for row, file in _known_in(folder):
        if row.has_cameras:
            return (
                f"{folder} holds photographs and {row.name} ({file.relative_to(folder).as_posix()}), which is not "
                f"read. {_advice(row, file)} To have cameras found from the photographs alone, move that file away."
            )
    return ""


def nothing_else(folder: Path) -> str:
    """Returns a sentence about the files in a folder where nothing opens; empty if no row of the table fits any."""
    found: dict[Known, list[Path]] = {}
    for row, file in _known_in(folder):
        found.setdefault(row, []).append(file)
    if not found:
        return ""
    row = max(found, key=lambda row: (row.has_cameras, len(found[row])))
    first, count = found[row][0], len(found[row])
    which = first.relative_to(folder).as_posix()
    more = f" (as {counted(count - 1, 'other file')} there)" if count > 1 else ""
    what = f"{_name(row, first)}{more}, which is not read"
    return f"{folder} holds nothing that opens: {which} is {what}. {_advice(row, first)}"


def _known_in(folder: Path) -> Iterator[tuple[Known, Path]]:
    """Yields the known files of a folder and of the folders right in it, in the order of their names."""
    for place in (folder, *_children(folder, Path.is_dir)[:_FOLDERS]):
        for file in _children(place, Path.is_file)[:_FILES]:
            if (row := known(file)) is not None:
                yield row, file


def _children(folder: Path, is_kind: Callable[[Path], bool]) -> list[Path]:
    try:
        return sorted(child for child in folder.iterdir() if child.name[0] != "." and is_kind(child))
    except OSError:
        return []


def _name(row: Known, file: Path) -> str:
    return row.name.replace("{ENDING}", file.suffix[1:].upper())


def _advice(row: Known, file: Path) -> str:
    quoted = f'"{file.name}"' if re.search(r"[^\w.-]", file.name) else file.name
    return row.advice.replace("{file}", quoted).replace("{pattern}", f"*{file.suffix}")
