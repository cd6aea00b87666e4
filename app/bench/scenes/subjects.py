"""What the GPU's benchmark draws: a benchmark scene, or any splat file, from a camera and at a size of one's choice.

Benchmark scenes are drawn by `app/bench/scenes/generated.py` and have counts that must come out; anything else has
none. Read `bench/ladder.py` next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from splatscope.kernels.errors import InputError

if TYPE_CHECKING:
    from splatscope.app.bench.scenes.expected import Picture
    from splatscope.kernels.types import Camera, Gaussians

DEFAULT_SIZE = (1280, 720)  # of a splat file without cameras


@dataclass(frozen=True, eq=False)
class Loaded:
    """Splats, where they are seen from, and what their picture must hold, if that is known."""

    gaussians: Gaussians
    camera: Camera
    bits_match: bool | None  # None: no scene of ours
    expected: Picture | None


@dataclass(frozen=True)
class Subject:
    """One scene to measure; nothing is read until `load`, which may take seconds and gigabytes."""

    name: str  # in tables; of a file its own name, without folders
    words: str  # on the command line
    load: Callable[[], Loaded]


def subject(name: str, camera: Path | None = None, size: tuple[int, int] | None = None) -> Subject:
    """A scene by name or a splat file by path, at `size` (width, height) if given; all its camera saw stays in view.

    Raises InputError for what is neither, before anything is measured.
    """
    from splatscope.app.bench.scenes.generated import SCENE_NAMES

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
    from splatscope.app.bench.scenes.expected import EXPECTED
    from splatscope.app.bench.scenes.generated import make_scene

    made = make_scene(name)
    return Loaded(made.gaussians, made.camera, made.bits_match, EXPECTED[name])


def _file(name: str, size: tuple[int, int] | None) -> Loaded:
    from splatscope.app.opening.scene import home_camera, open_scene

    scene = open_scene(Path(name))
    if scene.gaussians is None:
        raise InputError(f"{name} is a capture, not splats; --scenes takes a .ply file or a model folder.")
    home = home_camera(scene.info, size or (None if scene.info.cameras else DEFAULT_SIZE))
    return Loaded(scene.gaussians, home, None, None)


def _placed(loaded: Loaded, camera: Path | None, size: tuple[int, int] | None) -> Loaded:
    """From that camera and at that size; the counts are then others than the scene's own."""
    seen = loaded.camera
    if camera is not None:
        from splatscope.assets.trained.cameras import read_camera

        seen = read_camera(camera)
    if size is not None:
        from splatscope.app.opening.scene import fit_camera

        seen = fit_camera(seen, *size)
    if seen == loaded.camera:
        return loaded
    return Loaded(loaded.gaussians, seen, loaded.bits_match, None)
