"""Provides fixtures that every test may ask for."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from splatscope.assets.capture import Capture
from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import make_backend
from tests.support.display import Program, missing_programs, start_display

if TYPE_CHECKING:  # the window library loads where a window is tested
    from tests.support.window_hands import Hands

# Compiled modules are kept, also where the surroundings forbid it: each program that a test starts would otherwise
# compile torch (1.6 s), and each process of the suite all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# OpenMP's threads sleep while they wait for each other: spinning takes the cores from the other processes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Files that take longest, longest first, so that no core is left with a long one at the end. Before them come a file
# that compiles the CPU's kernels and two that do not need them, so that two processes do not compile the same.
FIRST = (
    "test_cpu_backend", "test_kernel_costs", "test_window_photographs", "test_cuda_pipeline", "test_window_live",
    "test_antialiasing", "test_cuda_blend", "test_device_training", "test_window_files", "test_window_training",
    "test_bench_window", "test_window", "test_sfm", "test_window_toggles", "test_sfm_masks", "test_window_ends",
    "test_cuda_queue", "test_window_real", "test_training_saving", "test_schedule_panel", "test_training_resume",
    "test_bench_recipes", "test_window_panels", "test_cuda_forward", "test_blend_choice", "test_training_step",
    "test_command_line", "test_demo_scene", "test_masked_training", "test_lasting", "test_window_scenes",
    "test_bench_train", "test_benchmark_scenes", "test_run_controller", "test_bench_ladder",
    "test_training_harmonics", "test_step_exposure_and_noise", "test_cuda_schedule", "test_cuda_show",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of the files that take longest first."""
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(FIRST)))


_STARTED_WITH = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "PYTHONWARNINGS")


@pytest.fixture(scope="session", autouse=True)
def usual_surroundings() -> Iterator[None]:
    """Makes tests independent of how the suite was started: by `nohup`, in a script's background, in a narrow terminal.

    Programs that a test starts inherit signals that are ignored here, but not those with an answer.
    """
    for number in (getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)):
        if signal.getsignal(number) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
            signal.signal(number, lambda *_: None)
    with pytest.MonkeyPatch.context() as patch:
        for name in _STARTED_WITH:
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "xterm-256color")
        yield


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """Yields the name of a private X display with a window manager. Without Xvfb: fails under CI, else skips."""
    missing = missing_programs()
    if missing:
        reason = f"the window cannot be tested: {', '.join(missing)} not installed (apt install xvfb openbox xdotool)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with start_display() as name:
        yield name


@pytest.fixture(scope="module")
def open_window(display: str) -> Iterator[Hands]:
    """Yields a window in front of a pretended engine. The scene's section, which so small a window folds, is open."""
    from tests.support.window_hands import SCENE_HEADER, SCRIPT, SIZE, Hands

    program = Program(display, SCRIPT, ["--size", f"{SIZE[0]}x{SIZE[1]}"])
    hands = Hands(program)
    hands.settled()
    hands.click(*SCENE_HEADER)
    yield hands
    program.end()


@pytest.fixture(scope="session", autouse=True)
def undistorted_photographs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps undistorted photographs of tests in a folder of their own, not in the user's cache."""
    from splatscope.assets.photographs import undistort

    folder = tmp_path_factory.mktemp("undistorted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(undistort, "_cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="module")
def backend() -> Backend:
    """Returns the backend that every machine has."""
    return make_backend("cpu")


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """Returns 24 small pictures of known splats."""
    from tests.support.small_capture import make_capture  # loads torch

    return make_capture(tmp_path_factory.mktemp("capture"))
