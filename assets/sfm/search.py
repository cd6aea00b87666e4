"""Finds cameras for a bare folder of photographs: structure from motion by pycolmap, kept in the user's cache.

Results are kept by the names and contents of the photographs and their masks, so a folder that was moved or copied is
recognised. Nothing is written into the folder. Another process (`worker.py`) does the work; it can be ended at any time
and later continues. `formats.py` opens known results, and raises `NoCamerasError` if a search would help.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Literal

from splatscope.assets.capture import Mask
from splatscope.assets.files.json_fields import read_json
from splatscope.assets.photographs.find import Photographs
from splatscope.assets.photographs.images import EXTENSIONS
from splatscope.assets.photographs.masks import Masks
from splatscope.assets.photographs.view_pixels import MASK_USES, MaskUse
from splatscope.assets.sfm.worker import FEWEST_PLACED, Job, laid_out_name
from splatscope.kernels.caches import cache_folder, cache_path, private_folder
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted

FOLDERS = ("", "images", "input")  # folders of a bare capture where its photographs may be
_READ = 1 << 16  # bytes at the start and the end of a photograph that identify it
_KEPT_DAYS = 30  # days for which an interrupted search can be continued
_END_SECONDS = 5.0  # seconds before a process that was asked to end is killed
_NAMED = 3
_HOW = "Take 20 or more sharp pictures that overlap by two thirds, moving around the scene rather than turning in place"

Stage = Literal["reading", "features", "matching", "placing"]


class NoCamerasError(InputError):
    """Tells that nobody has searched for the cameras of these photographs yet; `CameraSearch` finds them."""

    def __init__(self, path: Path, folder: Path, count: int, masks: MaskUse = "use") -> None:
        super().__init__(
            f"{path} holds {counted(count, 'photograph')} without cameras. `splatscope train {path}`, or opening it "
            f"in the window, finds where they were taken."
        )
        self.path, self.folder = path, folder  # the path to open; the folder of photographs
        self.masks: MaskUse = masks

    def search(self) -> CameraSearch:
        """Begins the search. Raises InputError if there are too few photographs."""
        return CameraSearch(self.folder, self.masks, beside=self.folder != self.path)

    def lost(self, begun: Path) -> InputError:
        """Returns the error for a resumed run whose cameras are gone.

        Finding them again would give another coordinate frame.
        """
        return InputError(
            f"The cameras that were found for {self.path} are no longer in {_cache()}, or its photographs or masks "
            f"are others now, and new ones would not fit the splats of {begun}. Begin a new run, or give a capture "
            f"with the cameras that belong to them."
        )


@dataclass(frozen=True)
class SearchProgress:
    """Tells how far a search is."""

    stage: Stage = "reading"
    done: int = 0
    total: int = 0

    def sentence(self) -> str:
        """Returns the progress for people."""
        match self.stage:
            case "reading":
                return f"Reading photographs: {self.done:,} of {self.total:,}"
            case "features":
                return f"Finding features: {self.done:,} of {counted(self.total, 'photograph')}"
            case "matching":
                return f"Matching: {self.done:,} of {counted(self.total, 'pair')}"
            case _:
                return f"Placing cameras: {self.done:,} of {self.total:,} registered"


@dataclass(frozen=True)
class FoundCameras:
    """Holds the result of a search."""

    model: Path  # a COLMAP model; its photographs have other names than on disk
    names: dict[str, str]  # name in the model -> name below the folder, of all photographs
    placed: int
    error: float  # px, mean reprojection
    others: tuple[int, ...]  # photographs in smaller models
    masked: int = 0  # photographs that were searched only where a mask allows
    upright: bool = False  # all were turned as their EXIF tags say; earlier versions made quarter turns only

    def remark(self) -> str:
        """Returns a sentence on what was left out; empty if nothing was."""
        missing = len(self.names) - self.placed
        if not missing:
            return ""
        apart = f", of which {' and '.join(map(str, self.others))} fit together among themselves" if self.others else ""
        return (
            f"Cameras were found for {self.placed} of {len(self.names)} photographs; {missing} "
            f"{'is' if missing == 1 else 'are'} left out{apart}."
        )


def bare_photographs(path: Path, images: str) -> tuple[Path, int] | None:
    """Returns the folder of photographs that `path` means, and their number; None if there are none."""
    for name in dict.fromkeys((images, *FOLDERS)):
        folder = path / name
        # Looks only in the folder itself: photographs in subfolders do not count.
        if folder.is_dir() and any(child.suffix.lower() in EXTENSIONS for child in folder.iterdir()):
            return folder, len(Photographs(folder).paths)
    return None


def known_cameras(folder: Path, masks: Sequence[MaskUse] = MASK_USES, beside: bool = False) -> FoundCameras | None:
    """Returns the result of an earlier search in these photographs.

    `masks` lists how it may have used masks, the preferred way first. `beside`: the photographs have their own folder
    in the capture, next to which masks may be.
    """
    with suppress(OSError, InputError):
        contents = _Contents(folder, beside)
        kept = (_read_found(_cache() / contents.key(use)) for use in masks)
        return next(filter(None, kept), None)
    return None


class CameraSearch:
    """Runs one search in another process. `poll` it until `over`; `close` it whatever happens."""

    def __init__(self, folder: Path, masks: MaskUse = "use", beside: bool = False) -> None:
        """Begins a search, or continues an interrupted one. Raises InputError if there are too few photographs.

        `masks` says how masks are used: only what they leave is looked at. `beside` as for `known_cameras`.
        """
        self.folder = folder
        contents = _Contents(folder, beside)
        self._names = list(contents.photographs)
        if len(self._names) < FEWEST_PLACED:
            raise InputError(
                f"{folder} holds {counted(len(self._names), 'photograph')}; cameras can be found from "
                f"{FEWEST_PLACED} on. {_HOW}."
            )
        used = contents.used(masks)
        self.masked, self._masks = len(used), masks  # `masked`: number of photographs
        self._key = contents.key(masks)
        self._work = _cache() / f"{self._key}.upright.work"  # not that of versions which did not turn
        self._reached = {"reading": SearchProgress(total=len(self._names))}  # by stage, in order
        self._told: dict[str, Any] = {}
        self._lock = _hold(self._work, folder)
        try:
            _remove_old(_cache(), self._work)
            paths = contents.photographs
            Job(list(paths.values()), [used.get(name) for name in paths], masks == "invert").write(self._work)
            self._log = (self._work / "log.txt").open("wb")
        except OSError as error:
            raise _unwritable(self._work, error) from error
        self._process = subprocess.Popen(
            [sys.executable, "-m", "splatscope.assets.sfm.worker", str(self._work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C should reach this process only
        )
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, lines: IO[bytes]) -> None:
        for line in lines:
            with suppress(ValueError):
                told = json.loads(line)
                if "stage" in told:
                    self._reached = {**self._reached, told["stage"]: SearchProgress(**told)}
                else:
                    self._told = told

    def poll(self) -> SearchProgress:
        """Returns the newest progress at once."""
        return self.reached()[-1]

    def reached(self) -> tuple[SearchProgress, ...]:
        """Returns how far each stage has come that has begun, the newest last; at once."""
        return tuple(self._reached.values())

    @property
    def over(self) -> bool:
        """Returns True once `result` returns without waiting."""
        return self._process.poll() is not None and not self._reader.is_alive()

    def wait(self, seconds: float) -> bool:
        """Waits at most that long; returns True once the search is over."""
        deadline = time.monotonic() + seconds
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            self._reader.join(max(0.0, deadline - time.monotonic()))
        return self.over

    def result(self) -> FoundCameras:
        """Keeps and returns what was found. Raises InputError, in one sentence, if nothing was."""
        told = self._told
        if "placed" not in told:
            raise InputError(self._why_not(told.get("problem", "")))
        names = {laid_out_name(number, Path(name)): name for number, name in enumerate(self._names)}
        figures = {"placed": len(told["placed"]), "error": told["error"], "others": told["others"], "names": names}
        figures |= {"upright": True, "masked": self.masked}
        place = _cache() / self._key
        try:
            (self._work / "model" / "found.json").write_text(json.dumps(figures), encoding="utf-8")
            shutil.rmtree(place, ignore_errors=True)
            os.replace(self._work / "model", place)
        except OSError as error:
            raise _unwritable(place, error) from error
        self.close()
        shutil.rmtree(self._work, ignore_errors=True)
        found = _read_found(place)
        assert found is not None
        return found

    def _why_not(self, problem: str) -> str:
        what = f"No cameras were found for the {counted(len(self._names), 'photograph')} in {self.folder}"
        if problem == "unreadable":
            few = self._told.get("readable") or "none"
            return f"{what}: {few} of them can be read, and {FEWEST_PLACED} are needed. Copy or export them again."
        how = f"{_HOW}."
        if self.masked:
            other = "invert" if self._masks == "use" else "use"
            how += (
                f" What masks leave out of {self.masked} of them was not looked at (data.masks = {self._masks}): if "
                f"that is the wrong part, set {other}; ignore looks at whole photographs."
            )
        if problem == "no pair":
            return f"{what}: not two of them show enough of the same. {how}"
        if problem == "no model":
            return (
                f"{what}: some show the same, but from places too close together, or too little of it to tell where "
                f"they were taken. {how}"
            )
        with suppress(OSError):
            if shutil.disk_usage(self._work).free < 1 << 24:
                return f"{what}: the disk that holds {self._work.parent} is full; free some space and try again."
        return (
            f"{what}: the search ended early (status {self._process.returncode}). Try again, which goes on where it "
            f"was; {self._work / 'log.txt'} has what pycolmap said."
        )

    def close(self) -> None:
        """Ends the process if it still runs. The next search continues from what it has done."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(_END_SECONDS)  # it reads the process's last lines
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._log.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _cache() -> Path:
    return cache_path() / "cameras"


class _Contents:
    """Holds the photographs of a folder and their masks. Raises InputError if one cannot be read."""

    def __init__(self, folder: Path, beside: bool) -> None:
        photographs = Photographs(folder)
        self.photographs = photographs.paths
        self.masks = Masks(photographs, beside).all()  # by the photographs' names
        self._digest = hashlib.sha256()
        for name, path in self.photographs.items():
            with _readable(path) as file:
                size = os.fstat(file.fileno()).st_size
                self._digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape") + file.read(_READ))
                file.seek(max(0, size - _READ))
                self._digest.update(file.read(_READ))

    def used(self, masks: MaskUse) -> dict[str, Mask]:
        """Returns the masks that are used."""
        return {} if masks == "ignore" else self.masks

    def key(self, masks: MaskUse) -> str:
        """Returns a name for this content, wherever it is: from the photographs' names, sizes, first and last bytes,
        and the masks that are used, and how.
        """
        digest = self._digest.copy()
        for name, mask in self.used(masks).items():
            with _readable(mask.path) as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            words = f"{masks}\0{name}\0{mask.orientation}\0{mask.is_dynamic}\0{content}"
            digest.update(words.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:32]


@contextmanager
def _readable(path: Path) -> Iterator[BufferedReader]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise InputError(f"The image {path} cannot be read: {error.strerror}.") from error


def _read_found(place: Path) -> FoundCameras | None:
    """Returns the result kept there; None if there is none, or it is damaged."""
    try:
        kept = read_json(place / "found.json")
        figures = kept["names"], kept["placed"], kept["error"], tuple(kept["others"])
        return FoundCameras(place, *figures, kept.get("masked", 0), kept.get("upright", False))
    except (InputError, KeyError, TypeError, AttributeError):
        return None


def _hold(work: Path, folder: Path) -> int | None:
    """Locks the folder for this process until it is closed; returns None if the system has no such locks."""
    try:
        cache_folder("cameras")
        private_folder(work)
    except OSError as error:
        raise _unwritable(work, error) from error
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    held = os.open(work, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(held)
        raise InputError(f"Cameras for {folder} are being found already; wait until that search is over.") from error
    except OSError:  # a file system without locks
        pass
    return held


def _remove_old(cache: Path, work: Path) -> None:
    """Removes searches interrupted long ago."""
    for other in cache.glob("*.work"):
        with suppress(OSError):
            if other != work and time.time() - other.stat().st_mtime > _KEPT_DAYS * 86400:
                shutil.rmtree(other)


def _unwritable(place: Path, error: OSError) -> InputError:
    return InputError(
        f"{place} cannot be written: {error.strerror or 'the system refused it'}. Cameras are kept there; on Linux "
        f"XDG_CACHE_HOME names another folder for that."
    )
