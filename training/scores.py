"""The scores of a run: measured on the tested views now and then, kept for metrics.json, judged for a plateau.

Held-out views are rendered as they are; a training view through the exposure learned for it. The numbers
themselves are computed in `metrics.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from splatscope.kernels.api import Backend
from splatscope.kernels.types import Gaussians, RenderSettings
from splatscope.training import metrics
from splatscope.training.config import PlateauConfig
from splatscope.training.dataset import Dataset
from splatscope.training.events import Evaluated, Evaluating, Plateaued
from splatscope.training.exposure import Exposures


class Scores:
    """All scorings so far."""

    def __init__(self, plateau: PlateauConfig) -> None:
        self.table: list[dict[str, Any]] = []  # one row a scoring, as metrics.json has it
        self._plateau = plateau

    def measure(
        self,
        backend: Backend,
        gaussians: Gaussians,
        dataset: Dataset,
        settings: RenderSettings,
        exposures: Exposures | None,
        iteration: int,
        training_seconds: float,
    ) -> Iterator[Evaluating | Evaluated]:
        """Scores every tested view, one event each and one for the mean."""
        views = dataset.tested
        indices = {view.name: i for i, view in enumerate(dataset.training)} if not dataset.held_out_views else {}
        scores = []
        for view in views:
            image = backend.render(gaussians, view.camera, settings).image
            if exposures is not None and view.name in indices:
                image = exposures.apply(indices[view.name], image)
            target, weights = view.target(settings.background), view.weights()
            scores.append(metrics.score(image, target, backend, weights))
            yield Evaluating(len(scores), len(views))
        psnr, ssim = (float(v) for v in np.mean(scores, axis=0))
        self.table.append(
            {
                "iteration": iteration,
                "psnr": psnr,
                "ssim": ssim,
                "splats": gaussians.count,
                "training_seconds": round(training_seconds, 3),
            }
        )
        yield Evaluated(iteration, psnr, ssim, dataset.label, len(views))

    def plateau(self) -> Plateaued | None:
        """Set if the newest scorings brought no gain, so many that the run should end."""
        patience = self._plateau.patience
        best, since = -np.inf, 0
        for row in self.table:
            if row["psnr"] >= best + self._plateau.gain:
                best, since = row["psnr"], 0
            elif row["iteration"] > self._plateau.after:
                since += 1
        if not patience or since < patience:
            return None
        return Plateaued(self.table[-1]["iteration"], float(best), since)
