"""Scores trained splats on photographs that they were not trained on: `splatscope eval`.

It finds the capture and the settings of the run next to the splats, and prints which views are scored and how. The
scoring and the files are in `training/scores/evaluation.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from splatscope.app.options.evaluate import EvalOptions
from splatscope.app.options.policy import choose_policy, in_words
from splatscope.app.run.plan import default_out
from splatscope.app.run.resume import listed_held_out, run_settings
from splatscope.app.terminal import Terminal
from splatscope.assets.capture import Capture, View
from splatscope.assets.formats import SplatFile, open_capture, open_path, reread
from splatscope.assets.geometry.recentre import rebased
from splatscope.assets.photographs.view_pixels import MASK_USES
from splatscope.assets.splats.read_as import ReadAs
from splatscope.assets.trained.model_folder import iterations, model_of
from splatscope.kernels.backends import make_backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import RenderSettings
from splatscope.kernels.wording import counted
from splatscope.training.config import DataConfig, TrainConfig
from splatscope.training.data.dataset import fixed_background, split_views
from splatscope.training.scores.evaluation import ViewScore, mean, score_views, write_results
from splatscope.training.scores.perceptual import find_lpips

_TRAINED_TOO = "but trained on too"


@dataclass(frozen=True)
class ScoredViews:
    """Holds the views to score, and how the output describes them."""

    views: tuple[View, ...]
    words: str

    def but_for_trained(self, held_out: Sequence[str] | None) -> ScoredViews:
        """Adds to the description how many of the views the run trained on, if its settings list those held out."""
        trained = 0 if held_out is None else len({view.name for view in self.views} - set(held_out))
        if not trained or _TRAINED_TOO in self.words:
            return self
        return replace(self, words=f"{self.words}, {_TRAINED_TOO}: the run did not hold out {trained} of them")


def run(options: EvalOptions) -> None:
    """Scores the views, prints a line for each and the means, writes pictures and JSON. Raises InputError."""
    console = Terminal()
    toggles = choose_policy(options.step, options.toggle)
    splats = _open_splats(options)
    model = model_of(splats.path)
    out = options.out or (model[0] if model else default_out(splats.path.stem))
    capture_path, data, is_known = _capture_and_data(options, splats, model[0] if model else splats.path.parent)
    capture = open_capture(capture_path, data.images, (data.masks, *MASK_USES), data.axes)
    protocol = choose_views(capture, data, options.split, is_known)
    if is_known and options.dataset is None and options.split == "test":
        protocol = protocol.but_for_trained(listed_held_out(model[0] if model else splats.path.parent))
    method = f"ours_{splats.iteration}" if splats.iteration is not None else splats.path.stem
    folder = out / options.split / method
    background = fixed_background(capture, data)
    rounding = "rendered to 8 bits" if options.precision == "8bit" else "float render, not rounded"
    first = f"{protocol.words}; over RGB {', '.join(f'{c:g}' for c in background)}; {rounding}"
    console.print(f"{splats.path}: {counted(splats.gaussians.count, 'splat')}")
    console.print(first)
    for warning in splats.warnings:
        console.print(f"warning: {warning}")
    _, missing = find_lpips()
    if missing:
        console.print(missing)
    backend = make_backend(options.backend)
    for remark in toggles.remarks(backend.name, splats.gaussians.primitive):
        console.print(f"warning: {remark}")
    settings, policy = RenderSettings(background, splats.gaussians.sh_degree), toggles.for_scene(splats.filter)
    gaussians = rebased(splats.gaussians, splats.offset, capture.offset)
    scores: list[ViewScore] = []
    for score in score_views(backend, gaussians, protocol.views, data, settings, options.precision, folder, policy):
        over = "" if score.counted == 1 else f", over {score.counted:.1%} of its pixels"
        console.print(f"{score.name}: {_figures(score.psnr, score.ssim, score.lpips)}{over}")
        scores.append(score)
    if not scores:
        raise InputError(
            f"Masks leave nothing of {counted(len(protocol.views), 'view')}, so there is nothing to score."
        )
    masks = masks_in_words(scores, len(protocol.views))
    if masks:
        console.print(masks)
    means = mean(scores)
    details = {
        "protocol": first,
        "size": f"{scores[0].width}x{scores[0].height}",
        "metrics": "means over views; PSNR over all channels; SSIM 11x11 sigma 1.5, zero padding",
        "masks": masks or "none",
        "lpips": missing or "VGG, colours in [0, 1] as they are",
        "splats": splats.gaussians.count,
        "source": str(splats.path),
        "capture": str(capture.path),
        "backend": backend.name,
        "toggles": in_words(policy, backend.name),
    }
    write_results(out, method, scores, details, folder)
    words = _figures(means["PSNR"], means["SSIM"], means.get("LPIPS"))
    console.print(f"Mean of {counted(len(scores), 'view')}: {words}")
    console.print(f"Wrote {out / 'results.json'}, {folder}")


def masks_in_words(scores: Sequence[ViewScore], views: int) -> str:
    """Returns how masked pixels were scored, and in how many views there are any; empty if in none."""
    some, none = sum(score.counted < 1 for score in scores), views - len(scores)
    words = [
        f"{some} of {counted(views, 'view')} masked in part: those pixels are left out of PSNR, and black in both "
        "pictures for SSIM and LPIPS"
        if some
        else "",
        f"{counted(none, 'view')} masked everywhere and not scored" if none else "",
    ]
    return "; ".join(filter(None, words))


def choose_views(capture: Capture, data: DataConfig, split: str, is_known: bool) -> ScoredViews:
    """Returns the views to score. `is_known`: `data` is the run's own, so the held-out views are known."""
    training, held_out = split_views(capture, replace(data, eval=True))
    every = f"every {_ordinal(data.holdout_interval)} view by name"
    if split == "train":
        trained = (
            training
            if data.eval or capture.test_views or not is_known
            else tuple(sorted((*training, *held_out), key=_name))
        )
        return ScoredViews(trained, counted(len(trained), "training view"))
    if capture.test_views:
        return ScoredViews(held_out, f"the set's own {counted(len(held_out), 'test view')}")
    if not held_out:
        raise InputError(f"{capture.path} has no views to score.")
    if is_known and not data.eval:
        return ScoredViews(
            held_out, f"{counted(len(held_out), 'view')}, {every}, {_TRAINED_TOO}: the run held out none"
        )
    known = "held out" if is_known else "held out if the run held out any"
    return ScoredViews(held_out, f"{counted(len(held_out), 'view')}, {every}, {known}")


def _open_splats(options: EvalOptions) -> SplatFile:
    path = options.model
    if options.iteration is not None:
        stored = iterations(path)
        if options.iteration not in stored:
            known = ", ".join(map(str, stored)) or "none"
            raise InputError(f"{path} has no iteration {options.iteration}; it has {known}.")
        path = stored[options.iteration]
    opened = reread(open_path(path), ReadAs(options.activated, options.primitive))
    if not isinstance(opened, SplatFile):
        raise InputError(f"{path} is a capture, not splats; eval takes a run's folder, a model folder or a .ply file.")
    return opened


def _capture_and_data(options: EvalOptions, splats: SplatFile, folder: Path) -> tuple[Path, DataConfig, bool]:
    """Returns the capture and how its photographs are read, and True if that is how the run read them."""
    capture, data = None, DataConfig(white_background=splats.background == (1.0, 1.0, 1.0))
    is_known = (folder / "settings.json").is_file()
    if is_known:
        try:
            capture, config = run_settings(folder)
            data = config.data
        except InputError:
            if options.dataset is None:
                raise
            is_known = False
    if options.dataset is not None:
        capture = options.dataset
    if capture is None:
        raise InputError(f"It is not known which capture {options.model} was trained from; give --dataset FOLDER.")
    if not os.path.exists(capture):
        raise InputError(f"There is no capture {capture}; give --dataset FOLDER.")
    if options.images is not None:
        data = replace(data, images=options.images)
    if options.resolution is not None:
        data = replace(data, resolution=options.resolution)
    if options.white_background:
        data = replace(data, white_background=True, background=())
    TrainConfig(data=data).check()
    return capture, replace(data, random_background=False), is_known


def _figures(psnr: float, ssim: float, lpips: float | None) -> str:
    return f"PSNR {psnr:.2f} dB, SSIM {ssim:.4f}" + (f", LPIPS {lpips:.4f}" if lpips is not None else "")


def _name(view: View) -> str:
    return view.name


def _ordinal(number: int) -> str:
    return f"{number}{ {2: 'nd', 3: 'rd'}.get(number, 'th') }"
