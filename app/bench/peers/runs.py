"""Runs gsplat's trainer: `bench runs --recipe gsplat`. Photographs, first splats, machine and scores are as ours.

Nothing of gsplat but its public interface is used, with the constants of its own example trainer. Three things are
ours, each at least as fast as what that example uses: the loss kernels (0.8 L1 + 0.2 (1 - SSIM), zero padding),
photographs that lie on the GPU, and Adam in torch's fused form. Steps are counted as in `bench/runs.py`, which says
what a row holds.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splatscope.app.bench.measure.memory import peak_gib, reset_peak
from splatscope.app.bench.measure.scores import row_of_scores
from splatscope.app.bench.peers.loss import Loss
from splatscope.assets.formats import open_capture
from splatscope.assets.splats.ply import write_ply
from splatscope.kernels.cuda.renderer import KernelStore
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Gaussians
from splatscope.training import metrics
from splatscope.training.config import DataConfig, InitialConfig
from splatscope.training.data.dataset import Dataset
from splatscope.training.data.initial import initial_points, splats_from_points
from splatscope.training.stopwatch import Stopwatch, process_seconds

SH_DEGREE, SH_INTERVAL = 3, 1000
MEANS_RATE, MEANS_DECAY = 1.6e-4, 0.01  # times the scene's extent; what is left of it at the end
RATES = {"scales": 5e-3, "quats": 1e-3, "opacities": 5e-2, "sh0": 2.5e-3, "shN": 2.5e-3 / 20}
TEST_INTERVAL = 1000
ITERATIONS = 30_000
REMARK = (
    "gsplat: its own rasteriser and strategies, the constants of its example trainer, torch's fused Adam; the loss "
    "kernels, the first splats, photographs on the GPU and the scores are ours."
)


@dataclass(frozen=True)
class Recipe:
    """Holds the settings in which the two recipes of the example trainer differ."""

    opacity: float  # opacity of the first splats
    scale_factor: float
    penalty: float  # times the mean opacity, and times the mean half axis


RECIPES = {"gsplat": Recipe(0.1, 1.0, 0.0), "gsplat-mcmc": Recipe(0.5, 0.1, 0.01)}


class GsplatRun:
    """Trains one run: its parameters, and a step."""

    def __init__(self, gsplat: Any, recipe: Recipe, splats: Gaussians, extent: float, iterations: int) -> None:
        self.gsplat, self.recipe = gsplat, recipe
        start = {"means": splats.means, "scales": splats.log_scales, "quats": splats.quats}
        start |= {"opacities": splats.logit_opacities, "sh0": splats.sh}
        start["shN"] = np.zeros((splats.count, (SH_DEGREE + 1) ** 2 - 1, 3), np.float32)
        self.splats = torch.nn.ParameterDict({name: torch.tensor(value).cuda() for name, value in start.items()})
        rates = RATES | {"means": MEANS_RATE * extent}
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            name: torch.optim.Adam([{"params": value, "lr": rates[name], "name": name}], eps=1e-15, fused=True)
            for name, value in self.splats.items()
        }
        gamma = MEANS_DECAY ** (1 / iterations)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizers["means"], gamma=gamma)
        self.is_mcmc = recipe.penalty > 0
        self.strategy = gsplat.MCMCStrategy() if self.is_mcmc else gsplat.DefaultStrategy()
        self.strategy.check_sanity(self.splats, self.optimizers)
        state = {} if self.is_mcmc else {"scene_scale": extent}
        self.state = self.strategy.initialize_state(**state)

    def render(self, view: View, background: Tensor, degree: int) -> tuple[Tensor, dict[str, Any]]:
        """Returns the picture [H, W, 3], and the facts about it that the strategies need."""
        s = self.splats
        colors = torch.cat([s["sh0"], s["shN"]], 1)
        pictures, _, info = self.gsplat.rasterization(
            s["means"],
            s["quats"],
            torch.exp(s["scales"]),
            torch.sigmoid(s["opacities"]),
            colors,
            view.matrix,
            view.intrinsics,
            view.camera.width,
            view.camera.height,
            sh_degree=degree,
            packed=False,
            backgrounds=background,
        )
        return pictures[0], info

    def step(self, step: int, view: View, background: Tensor, loss_of: Loss) -> None:
        """Makes step number `step`, counted from 0."""
        image, info = self.render(view, background, min(step // SH_INTERVAL, SH_DEGREE))
        if not self.is_mcmc:
            self.strategy.step_pre_backward(self.splats, self.optimizers, self.state, step, info)
        loss = loss_of(image, view.pixels)
        if self.is_mcmc:
            penalties = torch.sigmoid(self.splats["opacities"]).mean() + torch.exp(self.splats["scales"]).mean()
            loss = loss + self.recipe.penalty * penalties
        loss.backward()
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        rate = self.schedule.get_last_lr()[0]
        self.schedule.step()
        own = {"lr": rate} if self.is_mcmc else {"packed": False}
        self.strategy.step_post_backward(self.splats, self.optimizers, self.state, step, info, **own)

    def gaussians(self) -> Gaussians:
        """Returns the splats in our own form."""
        s = {name: value.detach().cpu().numpy() for name, value in self.splats.items()}
        sh = np.concatenate([s["sh0"], s["shN"]], axis=1)
        return Gaussians(s["means"], s["scales"], s["quats"], s["opacities"], sh)


@dataclass(frozen=True, eq=False)
class View:
    """Holds a photograph and its camera on the GPU."""

    camera: Camera
    pixels: Tensor  # uint8 [H, W, 3]
    matrix: Tensor  # [1, 4, 4]
    intrinsics: Tensor  # [1, 3, 3]

    @staticmethod
    def of(camera: Camera, pixels: np.ndarray) -> View:
        intrinsics = [[camera.fx, 0, camera.cx], [0, camera.fy, camera.cy], [0, 0, 1]]
        matrix = torch.tensor(np.asarray(camera.matrix), dtype=torch.float32, device="cuda")
        on_gpu = torch.tensor([intrinsics], dtype=torch.float32, device="cuda")
        return View(camera, torch.from_numpy(pixels).cuda(), matrix[None], on_gpu)


def run_gsplat(path: Path, resolution: int, iterations: int | None, name: str, seed: int) -> dict[str, Any]:
    """Makes one whole run; returns its row of the results. Raises InputError where gsplat is not installed."""
    try:
        gsplat = importlib.import_module("gsplat")
    except ImportError as error:
        raise InputError(f"--recipe {name} needs gsplat, which is not installed: pip install gsplat.") from error
    recipe, watch, start, iterations = RECIPES[name], Stopwatch(), perf_counter(), iterations or ITERATIONS
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    reset_peak()
    capture = open_capture(path)
    dataset = Dataset(capture, DataConfig(resolution=resolution, eval=True))
    for _ in watch.timed("loading", dataset.load()):
        pass
    with watch.on("preparing"):
        views, tested = ([View.of(p.camera, p.pixels) for p in group] for group in (dataset.training, dataset.tested))
        background = torch.tensor([dataset.background], device="cuda", dtype=torch.float32)
        config = InitialConfig(opacity=recipe.opacity, scale_factor=recipe.scale_factor)
        cameras = [view.camera for view in dataset.training_views]
        points = initial_points(capture, cameras, dataset.extent, config, False, rng)
        splats = splats_from_points(points, dataset.extent, config)
        training = GsplatRun(gsplat, recipe, splats, dataset.extent, iterations)
        kernels = KernelStore()
        losses = {(v.camera.width, v.camera.height): Loss(v.camera, kernels) for v in views}
    table: list[dict[str, Any]] = []
    for step, index in enumerate(islice(_order(len(views), rng), iterations)):
        view = views[index]
        with watch.on("training" if step else "preparing"):  # the first step loads missing kernels
            training.step(step, view, background, losses[view.camera.width, view.camera.height])
            is_scored = (step + 1) % TEST_INTERVAL == 0 or step + 1 == iterations
            if is_scored or step == 0:
                torch.cuda.synchronize()
        if is_scored:
            with watch.on("scoring"):
                table.append(_scores(training, tested, background, step + 1, watch.seconds["training"]))
    with watch.on("saving"), tempfile.TemporaryDirectory() as folder:
        write_ply(Path(folder) / "splats.ply", training.gaussians(), offset=capture.offset)
        on_disk = round(process_seconds(), 3)
    first = dataset.training[0].camera
    return {
        "trainer": f"gsplat {gsplat.__version__}",
        "recipe": "mcmc" if training.is_mcmc else "default",
        "settings": [],
        "seed": seed,
        "capture": path.resolve().name,
        "views": len(views),
        "held_out": len(tested),
        "width": first.width,
        "height": first.height,
        "first_splats": splats.count,
        **row_of_scores(table),
        "seconds": {name: round(seconds, 3) for name, seconds in watch.seconds.items()},
        "whole_seconds": round(perf_counter() - start, 3),
        "process_seconds": on_disk,  # since the process was started
        "peak_gib": peak_gib(),
    }


def _order(views: int, rng: np.random.Generator) -> Iterator[int]:
    """Yields every view once an epoch, in random order, without end."""
    while True:
        yield from rng.permutation(views).tolist()


@torch.no_grad()
def _scores(
    training: GsplatRun, tested: list[View], background: Tensor, iteration: int, seconds: float
) -> dict[str, Any]:
    degree, rows = min((iteration - 1) // SH_INTERVAL, SH_DEGREE), []
    for view in tested:
        image, _ = training.render(view, background, degree)
        rows.append(metrics.score_tensors(image, view.pixels.float() / 255))
    psnr, ssim = np.mean(rows, axis=0)
    count = len(training.splats["means"])
    scored = {"psnr": float(psnr), "ssim": float(ssim), "splats": count, "training_seconds": round(seconds, 3)}
    return {"iteration": iteration, **scored}
