"""Trains a capture, in the window or in the terminal: `splatscope train`."""

from __future__ import annotations

from splatscope.app.opening.find_cameras import open_or_find
from splatscope.app.options import fields
from splatscope.app.options.policy import choose_policy
from splatscope.app.options.subcommands import TrainOptions
from splatscope.app.run.from_options import plan_training
from splatscope.app.run.headless import train_in_terminal
from splatscope.app.terminal import warn
from splatscope.kernels.backends import make_backend
from splatscope.viewer.display import display_is_present


def run(options: TrainOptions) -> None:
    """Trains in the window, or in the terminal where there is none. Raises InputError."""
    toggles = choose_policy(options.step, options.toggle)
    size = fields.parse_size(options.size, "--size")
    plan = plan_training(options)
    assert plan.capture is not None, "plan_training names it"
    assert plan.out is not None, "plan_training names it"
    plan.check_folder(plan.out)  # checked before a search for cameras, which takes minutes
    warn(filter(None, [plan.remark]))
    images = plan.config.data.images
    if not options.headless and display_is_present():
        from splatscope.app.open_window import WindowRequest, open_window  # loads the window's library

        wanted = WindowRequest(
            path=plan.capture,
            plan=plan,
            backend=options.backend,
            images=images,
            autostart=not options.paused,
            toggles=toggles,
            nvtx=options.nvtx,
            size=size,
            ui_scale=options.ui_scale,
        )
        open_window(wanted)
        return

    capture = open_or_find(plan.capture, plan.config.data, plan.begin.path if plan.begin else None)
    backend = make_backend(options.backend, nvtx=options.nvtx)
    warn(toggles.training_remarks(backend.name, plan.config.antialiasing, plan.config.primitive))
    train_in_terminal(plan(capture, backend), toggles)
