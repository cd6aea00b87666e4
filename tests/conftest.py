"""Fixtures every test may ask for. Helpers of tests lie beside them and are imported by their bare names."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # before the helpers are imported

from display import missing_programs, start_display


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """The name of a private X display with a window manager. Without Xvfb: fails under CI, else skips."""
    missing = missing_programs()
    if missing:
        reason = f"the window cannot be tested: {', '.join(missing)} not installed (apt install xvfb openbox xdotool)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with start_display() as name:
        yield name
