"""What each subcommand does. Imports are inside the functions: rendering must not load torch or a GUI."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from splatscope.app import cli
from splatscope.kernels.errors import InputError

if TYPE_CHECKING:
    from splatscope.assets.capture import Capture
    from splatscope.kernels.api import Backend
    from splatscope.training.config import TrainConfig
    from splatscope.training.trainer import Trainer


def run(options: object) -> None:
    """Carries out one parsed command line. Raises InputError with a sentence for the user."""
    match options:
        case cli.View():
            _view(options)
        case cli.Train():
            _train(options)
        case cli.Render():
            _render(options)
        case cli.Demo():
            from splatscope.app.demo import run_demo

            run_demo(options)
        case _:
            from splatscope.app.bench import BenchOptions, run_bench

            assert isinstance(options, BenchOptions)
            run_bench(options)


def display_is_present() -> bool:
    """True if a window can be opened here: there is a display and it answers."""
    from splatscope.viewer.display import find_display

    try:
        find_display()
    except InputError:
        return False
    return True


def default_out(name: str) -> Path:
    """output/<name>-<date> below the current folder; never the same twice."""
    return Path("output") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def _view(options: cli.View) -> None:
    from splatscope.app.window import open_window
    from splatscope.training.config import TrainConfig

    size = cli.parse_size(options.size, "--size")
    if options.path is not None and not options.path.exists():
        raise InputError(f"{options.path} does not exist; give a .ply file, a model folder or a capture folder.")
    open_window(
        options.path,
        backend=options.backend,
        size=size,
        ui_scale=options.ui_scale,
        training=lambda: TrainConfig(),
        images="images",
        out=None,
        autostart=False,
    )


def training_config(options: cli.Train) -> TrainConfig:
    """The recipe a `train` command line asks for."""
    from splatscope.training.config import DataConfig, preset

    data = DataConfig(options.images, options.resolution, options.white_background, options.eval)
    return replace(
        preset(options.preset),
        iterations=options.iterations,
        sh_degree=options.sh_degree,
        seed=options.seed,
        save_iterations=options.save_iterations,
        test_iterations=options.test_iterations,
        test_interval=options.test_interval,
        data=data,
    )


def _train(options: cli.Train) -> None:
    if options.dataset is not None and options.source_path is not None and options.dataset != options.source_path:
        raise InputError(
            f"The capture is given twice: {options.dataset} and --source-path {options.source_path}; give one."
        )
    path = options.dataset or options.source_path
    if path is None:
        raise InputError("train needs a capture: splatscope train FOLDER (a COLMAP folder or transforms_train.json).")
    if not path.exists():
        raise InputError(f"{path} does not exist; give a capture folder: COLMAP or transforms_train.json.")
    out = options.out or default_out(path.resolve().name)
    if not options.headless and display_is_present():
        from splatscope.app.window import open_window

        open_window(
            path,
            backend=options.backend,
            size=(1600, 1000),
            ui_scale=0.0,
            training=lambda: training_config(options),
            images=options.images,
            out=out,
            autostart=not options.paused,
        )
        return
    from splatscope.app.headless import train_in_terminal
    from splatscope.assets.formats import open_capture
    from splatscope.kernels.api import make_backend

    capture = open_capture(path, options.images)
    train_in_terminal(make_trainer(capture, training_config(options), make_backend(options.backend), out))


def make_trainer(capture: Capture, config: TrainConfig, backend: Backend, out: Path | None) -> Trainer:
    """A trainer that writes below `out`, or below output/<capture>-<date>."""
    from splatscope.training.trainer import Trainer

    out = out or default_out(capture.path.resolve().name)
    if (out / "point_cloud").exists():
        raise InputError(f"{out} already holds a trained model; give another --out or remove that folder first.")
    return Trainer(capture, config, backend, out)


def _render(options: cli.Render) -> None:
    from splatscope.app.pictures import save_frame_stats, save_npy
    from splatscope.app.scene import camera_of_view, fit_camera, home_camera, open_scene
    from splatscope.assets.cameras import read_camera
    from splatscope.assets.images import write_png
    from splatscope.kernels.api import make_backend
    from splatscope.kernels.types import RenderSettings
    from splatscope.viewer import overlays
    from splatscope.viewer.messages import ViewRequest

    if options.out is None and options.npy is None:
        raise InputError("render needs somewhere to write: --out FILE.png, --npy FILE.npy or both.")
    if options.out is not None and options.out == options.npy:
        raise InputError(f"--out and --npy name the same file, {options.out}; give two.")
    if options.out is not None and options.out.suffix.lower() != ".png":
        raise InputError(f"--out must end in .png, got {options.out}.")
    if (options.dataset is None) != (options.view is None):
        raise InputError("--dataset and --view go together: the capture, and the name of one of its photographs.")
    if options.camera is not None and options.dataset is not None:
        raise InputError("The camera is given twice: --camera and --dataset; give one.")
    size = cli.parse_size(options.size, "--size") if options.size else None
    background = cli.parse_color(options.background, "--background")
    scene = open_scene(options.scene)
    if scene.gaussians is None:
        raise InputError(f"{options.scene} is a capture, not splats; render takes a .ply file or a model folder.")
    for warning in scene.info.warnings:
        print(f"splatscope: warning: {warning}", file=sys.stderr)
    if options.camera is not None:
        camera = read_camera(options.camera)
    elif options.dataset is not None and options.view is not None:
        camera = camera_of_view(options.dataset, options.view)
    else:
        camera = home_camera(scene.info, size)
    if size is not None:
        camera = fit_camera(camera, *size)
    backend = make_backend(options.backend)
    request = ViewRequest(camera, RenderSettings(background=background), overlay=options.overlay)
    frame = backend.render(scene.gaussians, camera, request.settings, request.policy)
    written: list[Path] = []
    if options.out is not None:
        if options.overlay == "tiles":
            picture = overlays.heatmap_picture(frame, request.overlay_opacity, request.policy, backend=backend.name)
        else:
            picture = overlays.picture_rgba(frame.image)[..., :3]
        write_png(options.out, picture)
        written.append(options.out)
    if options.npy is not None:
        save_npy(options.npy, frame.image)
        written.append(options.npy)
    if options.stats is not None:
        save_frame_stats(options.stats, frame, request, backend.name)
        written.append(options.stats)
    skipped = f", {frame.skipped:,} not finite and skipped" if frame.skipped else ""
    print(f"{frame.visible:,} of {scene.gaussians.count:,} splats visible, {frame.instances:,} instances{skipped}.")
    print("Wrote " + ", ".join(str(path) for path in written))
