"""What each subcommand does. Imports are inside the functions: rendering must not load torch or a GUI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from splatscope.app import cli
from splatscope.kernels.errors import InputError
from splatscope.kernels.words import counted

if TYPE_CHECKING:
    from splatscope.assets.capture import Capture
    from splatscope.kernels.api import Backend
    from splatscope.training.config import TrainConfig
    from splatscope.training.trainer import Beginning, Trainer


def run(options: object) -> None:
    """Carries out one parsed command line. Raises InputError with a sentence for the user."""
    match options:
        case cli.View():
            _view(options)
        case cli.Train():
            _train(options)
        case cli.Render():
            _render(options)
        case cli.Eval():
            from splatscope.app.evaluate import run_eval

            run_eval(options)
        case cli.Convert():
            from splatscope.app.convert import run_convert

            run_convert(options)
        case cli.Doctor():
            from splatscope.app.doctor import run_doctor

            run_doctor(options)
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


def _view(options: cli.View) -> None:
    from splatscope.app.policy_options import choose_policy
    from splatscope.app.window import open_window
    from splatscope.training.config import TrainConfig

    toggles = choose_policy(options.step, options.toggle)
    size = cli.parse_size(options.size, "--size")
    if options.path is not None and not options.path.exists():
        raise InputError(f"{options.path} does not exist; give a .ply file, a model folder or a capture folder.")
    open_window(
        options.path,
        backend=options.backend,
        size=size,
        ui_scale=options.ui_scale,
        nvtx=options.nvtx,
        training=lambda: TrainConfig(),
        images="images",
        out=None,
        autostart=False,
        toggles=toggles,
        activated=options.activated,
    )


def _train(options: cli.Train) -> None:
    from splatscope.app.plan import RunPlan
    from splatscope.app.policy_options import choose_policy
    from splatscope.app.terminal import warn
    from splatscope.app.training_setup import plan_training

    toggles = choose_policy(options.step, options.toggle)
    size = cli.parse_size(options.size, "--size")
    plan = plan_training(options)
    RunPlan(plan.config, plan.out, plan.begin).check_folder(plan.out)  # a search for cameras takes minutes
    warn(filter(None, [plan.remark]))
    images = plan.config.data.images
    if not options.headless and display_is_present():
        from splatscope.app.window import open_window

        open_window(
            plan.capture,
            backend=options.backend,
            size=size,
            ui_scale=options.ui_scale,
            nvtx=options.nvtx,
            training=lambda: plan.config,
            images=images,
            out=plan.out,
            autostart=not options.paused,
            begin=plan.begin,
            toggles=toggles,
        )
        return
    from splatscope.app.find_cameras import open_or_find
    from splatscope.app.headless import train_in_terminal
    from splatscope.kernels.api import make_backend

    capture = open_or_find(plan.capture, plan.config.data, plan.begin.path if plan.begin else None)
    backend = make_backend(options.backend, nvtx=options.nvtx)
    warn(toggles.training_remarks(backend.name, plan.config.antialiasing))
    trainer = make_trainer(capture, plan.config, backend, plan.out, plan.begin)
    train_in_terminal(trainer, toggles)


def make_trainer(
    capture: Capture, config: TrainConfig, backend: Backend, out: Path | None, begin: Beginning | None = None
) -> Trainer:
    """A trainer that writes below `out`, or below output/<capture>-<date>; `begin` is what it goes on from."""
    from splatscope.app.plan import RunPlan

    return RunPlan(config, out, begin)(capture, backend)


def _render(options: cli.Render) -> None:
    from splatscope.app.pictures import save_frame_stats, save_npy
    from splatscope.app.policy_options import choose_policy, in_words
    from splatscope.app.provenance import Provenance
    from splatscope.app.scene import camera_of_view, fit_camera, home_camera, open_scene
    from splatscope.app.terminal import say, warn
    from splatscope.assets.cameras import read_camera
    from splatscope.assets.images import write_png
    from splatscope.assets.recentre import camera_less
    from splatscope.assets.usable import skipped_in_words
    from splatscope.kernels.api import make_backend
    from splatscope.kernels.types import RenderSettings
    from splatscope.viewer import overlays
    from splatscope.viewer.messages import ViewRequest
    from splatscope.viewer.tile_values import needs_recording, tile_values

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
    size = cli.parse_size(options.size, "--size") if options.size else None
    background = cli.parse_color(options.background, "--background")
    toggles = choose_policy(options.step, options.toggle)
    scene = open_scene(options.scene, activated=options.activated)
    if scene.gaussians is None:
        raise InputError(f"{options.scene} is a capture, not splats; render takes a .ply file or a model folder.")
    warn(scene.info.warnings)
    if options.camera is not None:
        camera = camera_less(read_camera(options.camera), scene.offset)
    elif options.dataset is not None and options.view is not None:
        camera = camera_of_view(options.dataset, options.view, scene.offset)
    else:
        camera = home_camera(scene.info, size)
    if size is not None:
        camera = fit_camera(camera, *size)
    backend = make_backend(options.backend)
    warn(toggles.remarks(backend.name))
    policy = toggles.for_scene(scene.info.filter)
    if needs_recording(options.overlay):
        policy = policy.with_value("schedule", "record", "on")
    request = ViewRequest(camera, RenderSettings(background=background), policy, options.overlay)
    frame = backend.render(scene.gaussians, camera, request.settings, request.policy)
    written: list[Path] = []
    if options.out is not None:
        values = tile_values(options.overlay, frame)
        if options.overlay != "none" and values is None:
            raise InputError(f"--overlay {options.overlay} needs what the {backend.name} backend does not record here.")
        if options.overlay != "none":
            about = Provenance(options.scene, scene.info.iteration, backend.name, backend.device)
            picture = overlays.heatmap_picture(frame, request, backend.name, about.caption)
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
    skipped = skipped_in_words(frame.skipped, scene.gaussians)
    lines = [
        f"{frame.visible:,} of {counted(scene.gaussians.count, 'splat')} visible, "
        f"{counted(frame.instances, 'instance')}{', ' if skipped else ''}{skipped}."
    ]
    if not toggles.is_default:
        lines.append(f"Drawn with {in_words(policy, backend.name)}.")
    say([*lines, "Wrote " + ", ".join(str(path) for path in written)])
