"""Renders one picture of a scene: `splatscope render`."""

from __future__ import annotations

from pathlib import Path

from splatscope.app.engine.pictures import save_frame_stats, save_npy
from splatscope.app.opening.scene import Scene, camera_of_view, fit_camera, home_camera, open_scene
from splatscope.app.options import fields
from splatscope.app.options.policy import choose_policy, in_words
from splatscope.app.options.render import RenderOptions
from splatscope.app.provenance import Provenance
from splatscope.app.terminal import say, warn
from splatscope.assets.geometry.recentre import camera_less
from splatscope.assets.photographs.images import write_png
from splatscope.assets.splats.read_as import ReadAs
from splatscope.assets.splats.usable import skipped_in_words
from splatscope.assets.trained.cameras import read_camera
from splatscope.kernels.backends import make_backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Frame, RenderSettings
from splatscope.kernels.wording import counted
from splatscope.viewer.figures import overlays
from splatscope.viewer.figures.tile_values import needs_recording, tile_values
from splatscope.viewer.messages.view import ViewRequest


def run(options: RenderOptions) -> None:
    """Draws and writes the files asked for. Raises InputError."""
    _check(options)
    size = fields.parse_size(options.size, "--size") if options.size else None
    background = fields.parse_color(options.background, "--background")
    toggles = choose_policy(options.step, options.toggle)
    scene = open_scene(options.scene, read_as=ReadAs(options.activated, options.primitive))
    if scene.gaussians is None:
        raise InputError(f"{options.scene} is a capture, not splats; render takes a .ply file or a model folder.")
    warn(scene.info.warnings)
    camera = _camera(options, scene, size)
    backend = make_backend(options.backend)
    warn(toggles.remarks(backend.name, scene.info.primitive))
    policy = toggles.for_scene(scene.info.filter)
    if needs_recording(options.overlay):
        policy = policy.with_value("schedule", "record", "on")
    request = ViewRequest(camera, RenderSettings(background=background), policy, options.overlay)
    frame = backend.render(scene.gaussians, camera, request.settings, request.policy)
    about = Provenance(options.scene, scene.info.iteration, backend.name, backend.device)
    written = _write(options, frame, request, about)
    skipped = skipped_in_words(frame.skipped, scene.gaussians)
    lines = [
        f"{frame.visible:,} of {counted(scene.gaussians.count, 'splat')} visible, "
        f"{counted(frame.instances, 'instance')}{', ' if skipped else ''}{skipped}."
    ]
    if not toggles.is_default:
        lines.append(f"Drawn with {in_words(policy, backend.name)}.")
    say([*lines, "Wrote " + ", ".join(str(path) for path in written)])


def _check(options: RenderOptions) -> None:
    """Raises InputError for options that do not go together, before anything is read."""
    if options.out is None and options.npy is None:
        raise InputError("render needs somewhere to write: --out FILE.png, --npy FILE.npy or both.")
    for option, path, suffix in (
        ("--out", options.out, ".png"),
        ("--npy", options.npy, ".npy"),
        ("--stats", options.stats, ".json"),
    ):  # three files, and none of them the scene itself
        if path is not None and path.suffix.lower() != suffix:
            raise InputError(f"{option} must end in {suffix}, got {path}.")
    if (options.dataset is None) != (options.view is None):
        raise InputError("--dataset and --view go together: the capture, and the name of one of its photographs.")
    if options.camera is not None and options.dataset is not None:
        raise InputError("The camera is given twice: --camera and --dataset; give one.")


def _camera(options: RenderOptions, scene: Scene, size: tuple[int, int] | None) -> Camera:
    """Returns the camera that options name, else the scene's first one, fitted to `size` (width, height)."""
    if options.camera is not None:
        camera = camera_less(read_camera(options.camera), scene.offset)
    elif options.dataset is not None and options.view is not None:
        camera = camera_of_view(options.dataset, options.view, scene.offset)
    else:
        camera = home_camera(scene.info, size)
    return camera if size is None else fit_camera(camera, *size)


def _write(options: RenderOptions, frame: Frame, request: ViewRequest, about: Provenance) -> list[Path]:
    """Writes the picture, the array and the figures that were asked for, and returns their paths.

    Raises InputError for an overlay of something that the backend does not record.
    """
    written: list[Path] = []
    if options.out is not None:
        if options.overlay != "none" and tile_values(options.overlay, frame) is None:
            raise InputError(
                f"--overlay {options.overlay} needs a recording, and the {about.backend} backend makes none here."
            )
        if options.overlay != "none":
            picture = overlays.heatmap_picture(frame, request, about.backend, about.caption)
        else:
            picture = overlays.picture_rgba(frame.image)[..., :3]
        write_png(options.out, picture)
        written.append(options.out)
    if options.npy is not None:
        save_npy(options.npy, frame.image)
        written.append(options.npy)
    if options.stats is not None:
        save_frame_stats(options.stats, frame, request, about.backend)
        written.append(options.stats)
    return written
