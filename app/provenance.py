"""What saved pictures and measurements are of, so that a file tells by itself; and the names of such files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Provenance:
    """The scene, the iteration of the run that made its splats if that is known, and what drew them."""

    scene: Path
    iteration: int | None
    backend: str
    device: str

    @property
    def caption(self) -> str:
        """One line for a picture: "garden, iteration 7,000, cuda, NVIDIA H200"."""
        at = [] if self.iteration is None else [f"iteration {self.iteration:,}"]
        return ", ".join([self.scene.name, *at, self.backend, self.device])

    @property
    def facts(self) -> dict[str, Any]:
        """The same for a JSON file."""
        return {
            "scene": str(self.scene),
            "iteration": self.iteration,
            "backend": self.backend,
            "device": self.device,
        }

    def stamped(self) -> str:
        """Returns the scene's name and the time, for files."""
        return f"{self.scene.stem or 'scene'}-{datetime.now():%Y%m%d-%H%M%S}"


def saved_in_words(paths: Sequence[Path]) -> str:
    """Returns a sentence that names files of one folder, and the folder in full."""
    return f"Saved {', '.join(path.name for path in paths)} in {paths[0].parent.resolve()}."
