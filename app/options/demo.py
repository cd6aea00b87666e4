"""Declares the options of `splatscope demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from splatscope.app.options.fields import BackendChoice, optional


@dataclass(frozen=True)
class DemoOptions:
    """Train the bundled scene live in the window, or without a display and save pictures."""

    headless: bool = False
    """Open no window even if there is a display."""
    out: Annotated[Path | None, optional("FOLDER")] = None
    """Folder for the results; output/demo-<date> unless given."""
    iterations: Annotated[int | None, optional("INT")] = None
    """Training steps: 7000 with a window, 1200 without."""
    backend: BackendChoice = "auto"
    """What computes."""
