"""Scores a run's splats on the tested views, keeps the scores for metrics.json, and finds a plateau in them.

Held-out views are rendered as they are; a training view through the exposure learned for it. `metrics.py` computes the
numbers themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from splatscope.kernels.backend import Backend, LiveBackend
from splatscope.kernels.backends import host_math
from splatscope.kernels.cuda.pictures import DeviceFrame
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Gaussians, RenderSettings
from splatscope.training import metrics
from splatscope.training.config import PlateauConfig
from splatscope.training.data.dataset import Dataset, Photograph
from splatscope.training.events import Evaluated, Evaluating, Plateaued
from splatscope.training.steps.exposure import Exposures

_DEFAULT_POLICY = Policy()


class Scores:
    """Keeps all scorings of a run so far."""

    def __init__(self, plateau: PlateauConfig, policy: Policy = _DEFAULT_POLICY) -> None:
        """Prepares scoring; `policy` holds the toggles that pictures are drawn with."""
        self.table: list[dict[str, Any]] = []  # one row a scoring, as metrics.json has it
        self.are_asked = False  # somebody wants scores before the next step
        self._plateau, self._policy = plateau, policy

    def measure(
        self,
        backend: Backend,
        gaussians: Gaussians,
        dataset: Dataset,
        settings: RenderSettings,
        exposures: Exposures | None,
        iteration: int,
        training_seconds: float,
        asked: bool = False,
    ) -> Iterator[Evaluating | Evaluated]:
        """Scores every tested view; yields one event for each and one for the mean.

        Scores that a user `asked` for, in addition to the recipe's own, do not end a run. The recipe's own scores of
        the same iteration replace them.
        """
        views = dataset.tested
        indices = {view.name: i for i, view in enumerate(dataset.training)} if dataset.label == "training PSNR" else {}
        scores = []
        for view in views:
            exposed = None if exposures is None or view.name not in indices else (exposures, indices[view.name])
            scores.append(score_view(backend, gaussians, view, settings, self._policy, exposed))
            yield Evaluating(len(scores), len(views))
        psnr, ssim = (float(v) for v in np.mean(scores, axis=0))
        row = {
            "iteration": iteration,
            "psnr": psnr,
            "ssim": ssim,
            "splats": gaussians.count,
            "training_seconds": round(training_seconds, 3),
        }
        self.table[:] = [other for other in self.table if other["iteration"] != iteration]
        self.table.append({**row, "asked": True} if asked else row)
        yield Evaluated(iteration, psnr, ssim, dataset.label, len(views))

    def plateau(self) -> Plateaued | None:
        """Returns the event that ends the run if the newest scorings brought no gain, else None."""
        patience = self._plateau.patience
        best, since = -np.inf, 0
        for row in self.table:
            if row.get("asked"):
                continue
            if row["psnr"] >= best + self._plateau.gain:
                best, since = row["psnr"], 0
            elif row["iteration"] > self._plateau.after:
                since += 1
        if not patience or since < patience:
            return None
        return Plateaued(self.table[-1]["iteration"], float(best), since)


def score_view(
    backend: Backend,
    gaussians: Gaussians,
    view: Photograph,
    settings: RenderSettings,
    policy: Policy = _DEFAULT_POLICY,
    exposed: tuple[Exposures, int] | None = None,
) -> tuple[float, float]:
    """Returns (PSNR in dB, SSIM) of a view, scored on the GPU if it is drawn there. `exposed`: the picture is seen
    through the exposure of that index."""
    if exposed is None and isinstance(backend, LiveBackend):
        _, frame = backend.show(gaussians, view.camera, settings, policy)
        if isinstance(frame, DeviceFrame):
            image = frame.tensor("image")
            return metrics.score_tensors(image, *_on(image.device, view, settings))
    image = backend.render(gaussians, view.camera, settings, policy).image
    if exposed is not None:
        image = exposed[0].apply(exposed[1], image)
    return metrics.score(image, view.target(settings.background), host_math(backend), view.weights())


def _on(device: torch.device, view: Photograph, settings: RenderSettings) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns colours [H, W, 3] and weights [H, W, 1] of a photograph, in [0, 1], on a device. Sends them as bytes."""

    def shares(pixels: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(pixels).to(device).float() / 255

    target = shares(view.pixels)
    if view.coverage is not None:
        target += (1 - shares(view.coverage))[..., None] * torch.tensor(settings.background, device=device)
    return target, None if view.weight is None else shares(view.weight)[..., None]
