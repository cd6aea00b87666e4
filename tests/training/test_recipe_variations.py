"""Tests what a recipe may vary: size of the pictures, background, masks, exposure, an early end."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from splatscope.assets.capture import Capture
from splatscope.assets.photographs.images import read_image
from splatscope.kernels.backend import Backend
from splatscope.kernels.errors import InputError
from splatscope.training.config import (
    DataConfig,
    DensifyConfig,
    ExposureConfig,
    InitialConfig,
    PlateauConfig,
    RateConfig,
    ResolutionConfig,
    TrainConfig,
    config_from_dict,
    config_to_dict,
)
from splatscope.training.data.dataset import Photograph, composite, load_photograph
from splatscope.training.data.initial import initial_points
from splatscope.training.data.sizes import ResolutionSchedule
from splatscope.training.events import Evaluated, Finished, Plateaued, Prepared, Stepped
from splatscope.training.recipes import PRESETS, preset, with_settings
from splatscope.training.scores.scorer import Scores
from splatscope.training.splats.optimizer import Optimizer
from splatscope.training.steps.device import adam_rates
from splatscope.training.steps.exposure import Exposures
from splatscope.training.trainer import Trainer
from tests.support.small_capture import SHORT, make_capture


@pytest.fixture(scope="module")
def cut_out(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("cut_out"), cut_out=True)


def trained(trainer: Trainer) -> tuple[Trainer, list[Any]]:
    return trainer, list(trainer.run())


def final_psnr(events: list[Any]) -> float:
    return [event for event in events if isinstance(event, Evaluated)][-1].psnr


# ------------------------------------------------------------------------------------------ recipes


@pytest.mark.parametrize("name", PRESETS)
def test_every_recipe_is_valid_survives_json_and_scales_to_any_length(name: str) -> None:
    for iterations in (None, 1, 20, 100_000):
        config = preset(name, iterations)
        config.check()
        assert config_from_dict(config_to_dict(config)) == config
        assert iterations is None or config.iterations == iterations


def test_late_in_a_run_all_rates_fall_together_on_the_host_and_on_the_gpu() -> None:
    rates = RateConfig(means_end=1.6e-4, means_steps=100, late_after=50, late_share=0.1)
    optimizer = Optimizer(rates, 2.0)
    before = optimizer.column_rates(50, 4)
    for iteration, share in ((75, 0.1**0.5), (100, 0.1), (200, 0.1)):
        now = optimizer.column_rates(iteration, 4)
        for name, columns in before.items():
            np.testing.assert_allclose(now[name], share * columns, rtol=1e-5)
        on_gpu = adam_rates(rates, 2.0, iteration)
        found = [on_gpu.means, on_gpu.log_scales, on_gpu.quats, on_gpu.logit_opacities, on_gpu.sh_constant]
        expected = [now[name].flat[0] for name in ("means", "log_scales", "quats", "logit_opacities", "sh")]
        np.testing.assert_allclose([*found, on_gpu.sh_rest], [*expected, now["sh"][-1]], rtol=1e-5)


def test_a_setting_may_be_given_as_text() -> None:
    config = with_settings(TrainConfig(), ["densify.interval=50", "strategy=mcmc", "save_iterations=[1, 2]"])
    assert (config.densify.interval, config.strategy, config.save_iterations) == (50, "mcmc", (1, 2))
    assert with_settings(TrainConfig(), ["densify.max_splats=None"]).densify.max_splats is None
    for text, words in (("densify", "NAME=VALUE"), ("densify.x=1", "densify.x"), ("strategy=best", "adaptive")):
        with pytest.raises(InputError, match=words):
            with_settings(TrainConfig(), [text])


# ------------------------------------------------------------------------------------------ resolution


def test_halving_doubles_the_size_at_each_interval() -> None:
    schedule = ResolutionSchedule(ResolutionConfig(num_downscales=2, interval=100), [])
    assert [schedule.divisor(i) for i in (1, 100, 101, 200, 201, 10_000)] == [4, 4, 2, 2, 1, 1]
    assert [schedule.next_divisor(i) for i in (1, 100, 101, 200, 201)] == [2, 2, 1, 1, 1]
    assert ResolutionSchedule(ResolutionConfig(), []).divisor(1) == 1


def test_the_spectrum_decides_how_long_pictures_stay_small() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (64, 96, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(noise[:8, :12]).resize((96, 64), Image.Resampling.BICUBIC))
    config = ResolutionConfig(schedule="frequency", until=1000, most=8)
    divisors = {
        name: [ResolutionSchedule(config, [picture]).divisor(i) for i in range(1, 1100)]
        for name, picture in (("noise", noise), ("smooth", smooth))
    }
    for values in divisors.values():
        assert values == sorted(values, reverse=True)
        assert set(values[1000:]) == {1}
    assert divisors["smooth"][0] >= 7
    assert sum(divisors["noise"]) < sum(divisors["smooth"])
    schedule = ResolutionSchedule(config, [smooth])
    for first, second in itertools.pairwise(sorted(set(divisors["smooth"]), reverse=True)):
        assert schedule.next_divisor(divisors["smooth"].index(first) + 1) == second
    assert schedule.next_divisor(1000) == 1
    capped = ResolutionSchedule(replace(config, most=3), [smooth])
    assert 1 < capped.divisor(1) <= 3


def test_a_reduced_photograph_has_the_means_of_its_pixels_and_its_camera_follows(capture: Capture) -> None:
    whole = load_photograph(capture.views[0], DataConfig(), (0, 0, 0))
    half = whole.reduced(2)
    expected = whole.pixels.reshape(28, 2, 36, 2, 3).astype(np.float64).mean(axis=(1, 3))
    assert np.abs(half.pixels - expected).max() <= 1  # rounded along each axis
    assert (half.camera.width, half.camera.fx, half.camera.cx) == (36, 40, 18)


def test_the_next_size_is_made_before_a_step_asks_for_it(
    capture: Capture, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ResolutionConfig(num_downscales=2, interval=20)
    trainer = Trainer(capture, replace(SHORT, test_interval=0, resolution=sizes), backend, tmp_path)
    events = trainer.run()
    for event in events:
        if isinstance(event, Stepped) and event.iteration == 2:
            break
    monkeypatch.setattr(Photograph, "reduced", None)  # by threads that have begun it is known already
    assert [event.iteration for event in events if isinstance(event, Stepped)] == list(range(3, 41))
    assert trainer.dataset.training_at(2)[0].pixels.shape == (28, 36, 3)


def test_training_on_small_pictures_first_is_faster_and_ends_as_well(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    config = replace(SHORT, iterations=300, test_interval=0)
    _, plain = trained(Trainer(capture, config, backend, tmp_path / "a"))
    small = replace(config, resolution=ResolutionConfig(num_downscales=2, interval=75))
    trainer, events = trained(Trainer(capture, small, backend, tmp_path / "b"))
    assert final_psnr(events) > final_psnr(plain) - 1.5
    assert trainer.dataset.training_at(4)[0].pixels.shape == (14, 18, 3)


# ------------------------------------------------------------------------------------------ alpha


def test_a_random_background_shows_through_like_a_fixed_one(cut_out: Capture) -> None:
    view = cut_out.views[3]
    photograph = load_photograph(view, DataConfig(random_background=True), (1, 1, 1))
    for background in ((0.2, 0.9, 0.4), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)):
        expected = composite(read_image(view.image_path), background)
        assert np.abs(photograph.target(background) * 255 - expected).max() < 1.6


def test_over_random_backgrounds_splats_come_as_close_on_the_fixed_one(
    cut_out: Capture, backend: Backend, tmp_path: Path
) -> None:
    scores = []
    for is_random in (False, True):
        data = DataConfig(random_background=is_random, eval=True)
        config = replace(SHORT, iterations=400, data=data, test_interval=0)
        trainer, events = trained(Trainer(cut_out, config, backend, tmp_path / str(is_random)))
        assert trainer.settings.background == (1.0, 1.0, 1.0)
        scores.append(final_psnr(events))
    assert scores[0] > 20
    assert scores[1] > scores[0] - 1


@pytest.mark.parametrize("data", [DataConfig(alpha="mask"), DataConfig(random_background=True), DataConfig()])
def test_only_some_photographs_may_have_a_mask(
    data: DataConfig, cut_out: Capture, backend: Backend, tmp_path: Path
) -> None:
    """Checks that photographs without a mask count whole at every size; names tell which have one."""
    views = []
    for index, view in enumerate(cut_out.views):
        path = tmp_path / view.name
        with Image.open(view.image_path) as image:
            (image if index % 3 else image.convert("RGB")).save(path)
        views.append(replace(view, image_path=path, has_alpha=index % 3 > 0))
    mixed = replace(cut_out, views=tuple(views), white_background=False)
    config = replace(SHORT, data=replace(data, eval=True), resolution=ResolutionConfig(num_downscales=1, interval=20))
    trainer = Trainer(mixed, config, backend, tmp_path / "run")
    assert list(trainer.run())[-1] == Finished(40)
    with_alpha = {view.name for view in views if view.has_alpha}
    for photograph in (*trainer.dataset.training, *trainer.dataset.training_at(2), *trainer.dataset.tested):
        own = photograph.name in with_alpha
        assert (photograph.weight is not None) == (own and data.alpha == "mask"), photograph.name
        assert (photograph.coverage is not None) == (own and data.random_background), photograph.name
    assert trainer.dataset.warnings == ()
    assert all(np.isfinite(row["psnr"]) for row in trainer.scores)


def test_photographs_that_show_nothing_are_said_in_one_sentence(
    cut_out: Capture, backend: Backend, tmp_path: Path
) -> None:
    for count in (1, len(cut_out.views)):
        views = []
        for index, view in enumerate(cut_out.views):
            path = tmp_path / f"{count} {view.name}"
            with Image.open(view.image_path) as image:
                pixels = np.array(image)
            pixels[..., 3] *= index >= count
            Image.fromarray(pixels).save(path)
            views.append(replace(view, image_path=path))
        for alpha in ("background", "mask", "ignore"):
            if alpha == "mask" and count > 1:  # nothing to train on, which is refused
                continue
            config = replace(SHORT, iterations=2, data=DataConfig(alpha=alpha))
            events = list(Trainer(replace(cut_out, views=tuple(views)), config, backend, tmp_path / "run").run())
            told = [text for event in events if isinstance(event, Prepared) for text in event.warnings]
            told = [text for text in told if "transparent everywhere" in text]
            assert len(told) == (alpha != "ignore"), alpha
            which = "all photographs" if count > 1 else "1 of 24 photographs"
            assert all(f"Nothing of the scene shows in {which}, for example 00.png:" in text for text in told)


def test_pixels_outside_the_mask_change_nothing(cut_out: Capture, backend: Backend, tmp_path: Path) -> None:
    results = []
    for junk in (0, 255):
        data = DataConfig(alpha="mask", eval=True)
        trainer = Trainer(cut_out, replace(SHORT, data=data), backend, tmp_path / str(junk))
        run = trainer.run()
        while not isinstance(next(run), Stepped) and not trainer.dataset.training:
            pass
        for views in (trainer.dataset.training, trainer.dataset.tested):
            views[:] = [spoilt(view, junk) for view in views]
        events = list(run)
        results.append((trainer.snapshot().group("raw"), final_psnr(events)))
    (first, psnr), (second, other_psnr) = results
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert psnr == other_psnr


def spoilt(view: Photograph, junk: int) -> Photograph:
    assert view.weight is not None
    pixels = view.pixels.copy()
    pixels[view.weight == 0] = junk
    assert (view.weight == 0).any()
    return replace(view, pixels=pixels)


def test_first_splats_fill_the_hull_of_cut_out_photographs_in_their_colours(cut_out: Capture) -> None:
    blender = replace(cut_out, kind="blender", points=None)
    config = InitialConfig(random_count=3000, carve=True)
    points = initial_points(blender, [], 1, config, True, np.random.default_rng(0))
    assert len(points.positions) == 3000
    for view in cut_out.views:
        opaque = np.pad(read_image(view.image_path)[..., 3] > 0, 2)
        near = np.max([np.roll(opaque, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1)], axis=0)[2:-2, 2:-2]
        in_view = points.positions @ view.camera.matrix[:3, :3].T + view.camera.matrix[:3, 3]
        columns, rows = np.floor(80 * in_view[:, :2].T / in_view[:, 2] + [[36], [28]]).astype(int)
        inside = (columns >= 0) & (columns < 72) & (rows >= 0) & (rows < 56)
        assert near[rows[inside], columns[inside]].all()
    assert points.colors.std(axis=0).min() > 12  # grey ones have 6


# ------------------------------------------------------------------------------------------ exposure


def test_the_gradient_of_an_exposure_is_that_of_finite_differences() -> None:
    rng = np.random.default_rng(0)
    image, above = (rng.random((5, 4, 3)).astype(np.float32) for _ in range(2))
    exposures = Exposures(ExposureConfig(True), RateConfig(), 2, 100)
    exposures.values[1] += torch.from_numpy(rng.normal(0, 0.2, (4, 3)).astype(np.float32))
    below = exposures.through(1, above)
    step = (0.01 * rng.standard_normal(image.shape)).astype(np.float32)
    change = exposures.apply(1, image + step) - exposures.apply(1, image - step)
    assert float((below * step).sum()) == pytest.approx(float((above * change).sum()) / 2, rel=1e-3)


def test_exposures_of_unequal_photographs_are_found_and_held_out_views_gain(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    """Makes every second training photograph 40% darker; held-out ones are as bright as the mean."""
    scores = {}
    quick = ExposureConfig(rate_start=0.01, rate_end=0.001, delay_steps=0)  # as short a run as this needs it
    for name, enabled in (("without", False), ("with", True)):
        config = replace(
            SHORT, iterations=800, test_interval=0, exposure=replace(quick, enabled=enabled), densify=DensifyConfig()
        )
        trainer = Trainer(capture, config, backend, tmp_path / name)
        run = trainer.run()
        while not trainer.dataset.training:
            next(run)
        for views, factors in ((trainer.dataset.training, (1.0, 0.6)), (trainer.dataset.tested, (0.8,))):
            views[:] = [
                replace(v, pixels=np.round(v.pixels * factors[i % len(factors)]).astype(np.uint8))
                for i, v in enumerate(views)
            ]
        scores[name] = final_psnr(list(run))
    assert scores["with"] > scores["without"] + 1


# ------------------------------------------------------------------------------------------ plateau


def test_a_run_ends_when_its_scores_stop_rising() -> None:
    scores = Scores(PlateauConfig(patience=2, gain=0.1, after=100))
    said = []
    for iteration, psnr in ((50, 20), (100, 19), (150, 25), (200, 25.05), (250, 25.2), (300, 25), (350, 25.25)):
        scores.table.append({"iteration": iteration, "psnr": psnr})
        said.append(scores.plateau())
    assert said == [None] * 6 + [Plateaued(350, 25.2, 2)]


def test_what_a_plateau_ends_is_saved(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    config = replace(SHORT, test_interval=5, plateau=PlateauConfig(patience=2, gain=100, after=0))
    trainer, events = trained(Trainer(capture, config, backend, tmp_path))
    assert trainer.iteration == 15
    assert (tmp_path / "point_cloud" / "iteration_15" / "point_cloud.ply").is_file()
    assert sum(isinstance(event, Plateaued) for event in events) == 1
