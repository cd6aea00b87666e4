"""Opens the window: `splatscope view`."""

from __future__ import annotations

from splatscope.app.open_window import WindowRequest, open_window
from splatscope.app.options import fields
from splatscope.app.options.policy import choose_policy
from splatscope.app.options.subcommands import ViewOptions
from splatscope.app.run.plan import RunPlan
from splatscope.assets.splats.read_as import ReadAs
from splatscope.kernels.errors import InputError
from splatscope.training.config import DataConfig, TrainConfig


def run(options: ViewOptions) -> None:
    """Opens the window on the path, or empty. Raises InputError."""
    toggles = choose_policy(options.step, options.toggle)
    size = fields.parse_size(options.size, "--size")
    if options.path is not None and not options.path.exists():
        raise InputError(f"{options.path} does not exist; give a .ply file, a model folder or a capture folder.")
    wanted = WindowRequest(
        path=options.path,
        plan=RunPlan(TrainConfig(data=DataConfig(axes=options.axes))),
        backend=options.backend,
        read_as=ReadAs(options.activated, options.primitive),
        toggles=toggles,
        nvtx=options.nvtx,
        size=size,
        ui_scale=options.ui_scale,
    )
    open_window(wanted)
