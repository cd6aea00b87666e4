"""Examines a capture before it is trained: facts, findings, memory, and the time a run would take."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from splatscope.assets.checks.checkup import Checkup, Finding, check_up
from splatscope.kernels.errors import InputError

if TYPE_CHECKING:  # the window shows the page without loading the command line
    from splatscope.assets.capture import Capture
    from splatscope.kernels.backend import Backend
    from splatscope.training.config import TrainConfig

_COPIES = 4  # copies of each parameter while training: itself, its gradient, and Adam's two moments
_GIB = 2**30


def examine(capture: Capture, config: TrainConfig, backend: Backend | None = None, decode: bool = False) -> Checkup:
    """Returns the page: facts, memory, and with a backend the time of a run, measured on a few photographs.

    With `decode` every photograph is read to its last byte, which takes a while and finds the damaged ones.
    """
    checkup = check_up(capture, decode)
    findings = [*checkup.findings, _memory(capture, config)]
    if backend is not None:
        findings.append(time_of(capture, config, backend))
    return replace(checkup, findings=tuple(findings))


def _memory(capture: Capture, config: TrainConfig) -> Finding:
    from splatscope.training.data.dataset import Dataset, training_size

    try:
        dataset = Dataset(capture, config.data)
    except InputError as error:  # its text says how much memory there is, and what to do
        return Finding("memory", str(error), is_odd=True)
    views = (*dataset.training_views, *dataset.held_out_views)
    sizes = [training_size(view.camera.width, view.camera.height, config.data.resolution) for view in views]
    photographs = sum(3 * width * height for width, height in sizes)
    a_splat = 4 * _COPIES * (3 + 3 + 4 + 1 + 3 * (config.sh_degree + 1) ** 2)
    width, height = max(sizes)
    text = f"{photographs / _GIB:.2f} GiB of photographs (the largest {width} x {height})"
    text += f", {1e6 * a_splat / _GIB:.1f} GiB for a million splats"
    present = _memory_present()
    return Finding("memory", text if present is None else f"{text}; this machine has {present / _GIB:.1f} GiB")


def _memory_present() -> int | None:
    """Returns the bytes of memory; None if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def time_of(capture: Capture, config: TrainConfig, backend: Backend) -> Finding:
    """Returns the time of a run, measured with its first splats on a few photographs, as a run does at first."""
    import numpy as np

    from splatscope.kernels.types import RenderSettings
    from splatscope.kernels.wording import duration
    from splatscope.training.data.dataset import Dataset, load_photograph
    from splatscope.training.data.initial import initial_points, splats_from_points
    from splatscope.training.forecast import PASSES, forecast

    try:
        dataset = Dataset(capture, config.data)
        step, unreadable = max(1, len(dataset.training_views) // PASSES), ""
        for view in dataset.training_views[::step]:
            try:
                dataset.training.append(load_photograph(view, config.data, dataset.background))
            except InputError as error:  # another finding names all unreadable photographs
                unreadable = unreadable or str(error)
        if not dataset.training:
            return Finding("time", f"not known: none of the photographs looked at can be read. {unreadable}")
        cameras = [view.camera for view in dataset.training_views]
        on_cpu, rng = not backend.trains_on_device, np.random.default_rng(config.seed)
        points = initial_points(capture, cameras, dataset.extent, config.initial, on_cpu, rng)
        splats = splats_from_points(points, dataset.extent, config.initial, config.primitive, rng)
        backend.warm_up(training=True)
        found = forecast(backend, splats, dataset, RenderSettings(dataset.background, 0), config)
    except InputError as error:
        return Finding("time", f"not known: {error}")
    text = f"about {duration(found.seconds)} for {config.iterations:,} iterations"
    text += f" ({duration(found.step_ms / 1e3)} a step at first)"
    return Finding("time", f"{text}. {found.suggestion}".rstrip(". ") + ".")
