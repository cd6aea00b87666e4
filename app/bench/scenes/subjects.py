"""Chooses the scenes of the GPU's benchmarks: benchmark scenes or splat files, from any camera and at any size.

Benchmark scenes are made by `app/bench/scenes/generated.py`; the counts of their pictures are known and checked. Those
of a splat file are not. Read `bench/ladder.py` next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from splatscope.app.bench.scenes.expected import EXPECTED, Picture
from splatscope.app.bench.scenes.generated import SCENE_NAMES, make_scene
from splatscope.app.opening.scene import fit_camera, home_camera, open_scene
from splatscope.app.options.fields import parse_size
from splatscope.assets.trained.cameras import read_camera
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Gaussians

LADDER_SCENES = ("S1", "S2", "S3", "S4")  # scenes to measure unless others are named
DEFAULT_SIZE = (1280, 720)  # px of the picture of a splat file without cameras


@dataclass(frozen=True, eq=False)
class Loaded:
    """Holds splats, their camera, and the counts of their picture where these are known."""

    gaussians: Gaussians
    camera: Camera
    bits_match: bool | None  # None: a splat file
    expected: Picture | None


@dataclass(frozen=True)
class Subject:
    """Names one scene to measure; only `load` reads it, which may take seconds and gigabytes."""

    name: str  # name in tables; for a file, its name without folders
    words: str  # on the command line
    load: Callable[[], Loaded]


def chosen_subjects(names: tuple[str, ...], camera: Path | None = None, size: str | None = None) -> list[Subject]:
    """Returns the scenes that a command line names, S1 to S4 unless it names some; `size` is WxH.

    Raises InputError before anything is measured.
    """
    pixels = None if size is None else parse_size(size, "--size")
    return [subject(name, camera, pixels) for name in names or LADDER_SCENES]


def subject(name: str, camera: Path | None = None, size: tuple[int, int] | None = None) -> Subject:
    """Returns a scene by name or a splat file by path, at `size` (width, height) if given.

    At another size everything that the camera saw stays in view. Raises InputError for a name that is neither, before
    anything is measured.
    """
    path = Path(name)
    if name not in SCENE_NAMES and not path.exists():
        raise InputError(
            f"There is no benchmark scene and no splat file {name!r}; choose from {', '.join(SCENE_NAMES)}, or give "
            "the path of a .ply file or a model folder."
        )
    if camera is not None and not camera.is_file():
        raise InputError(f"--camera {camera} is not a file; give a camera as JSON.")
    shown = name if name in SCENE_NAMES else path.resolve().name
    seen = "" if camera is None else f" from {camera.stem}"
    sized = "" if size is None else f" at {size[0]}x{size[1]}"
    read = _scene if name in SCENE_NAMES else _file
    return Subject(f"{shown}{seen}{sized}", shown, lambda: _placed(read(name, size), camera, size))


def _scene(name: str, size: tuple[int, int] | None) -> Loaded:
    made = make_scene(name)
    return Loaded(made.gaussians, made.camera, made.bits_match, EXPECTED[name])


def _file(name: str, size: tuple[int, int] | None) -> Loaded:
    scene = open_scene(Path(name))
    if scene.gaussians is None:
        raise InputError(f"{name} is a capture, not splats; --scenes takes a .ply file or a model folder.")
    home = home_camera(scene.info, size or (None if scene.info.cameras else DEFAULT_SIZE))
    return Loaded(scene.gaussians, home, None, None)


def _placed(loaded: Loaded, camera: Path | None, size: tuple[int, int] | None) -> Loaded:
    """Returns the scene from that camera and at that size, then without the counts of its own picture."""
    seen = loaded.camera
    if camera is not None:
        seen = read_camera(camera)
    if size is not None:
        seen = fit_camera(seen, *size)
    if seen == loaded.camera:
        return loaded
    return Loaded(loaded.gaussians, seen, loaded.bits_match, None)
