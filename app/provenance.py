"""Names the scene, iteration and device in every saved picture and measurement, and names those files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from splatscope.assets.trained.model_folder import model_of


@dataclass(frozen=True)
class Provenance:
    """Holds the scene, the iteration of the run that made its splats if that is known, and what drew them."""

    scene: Path
    iteration: int | None
    backend: str
    device: str

    @property
    def name(self) -> str:
        """Returns the scene's name. A model gets its folder's name, because the splat files of all models have the same
        name."""
        model = model_of(self.scene)
        return (model[0] if model else self.scene).name or "scene"

    @property
    def caption(self) -> str:
        """Returns one line for a picture: "garden, iteration 7,000, cuda, NVIDIA H200"."""
        at = [] if self.iteration is None else [f"iteration {self.iteration:,}"]
        return ", ".join([self.name, *at, self.backend, self.device])

    @property
    def facts(self) -> dict[str, Any]:
        """Returns the same for a JSON file."""
        return {
            "scene": str(self.scene),
            "iteration": self.iteration,
            "backend": self.backend,
            "device": self.device,
        }

    def stamped(self) -> str:
        """Returns the scene's name and the time, for files."""
        return f"{self.name.removesuffix('.ply')}-{datetime.now():%Y%m%d-%H%M%S}"


def saved_in_words(paths: Sequence[Path]) -> str:
    """Returns a sentence that names files of one folder, and the folder in full."""
    return f"Saved {', '.join(path.name for path in paths)} in {paths[0].parent.resolve()}."
