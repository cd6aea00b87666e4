"""Tests which views are trained on, how photographs are resized, and the extent of a scene."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splatscope.assets.capture import Capture, View
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera
from splatscope.training.config import DataConfig
from splatscope.training.data.dataset import Dataset, composite, load_photograph, split_views, training_size


def view(name: str, centre: tuple[float, float, float] = (0, 0, 0), size: tuple[int, int] = (8, 6)) -> View:
    matrix = np.eye(4)
    matrix[:3, 3] = -np.array(centre)
    return View(name, Path(name), Camera.from_matrix(matrix, *size, 10, 12, size[0] / 2, size[1] / 2 + 1))


def capture(views: list[View], test_views: tuple[View, ...] = (), white: bool = False) -> Capture:
    return Capture(Path("somewhere"), "colmap", tuple(views), test_views, None, white)


def names(views: tuple[View, ...]) -> list[str]:
    return [v.name for v in views]


def test_every_eighth_view_by_name_is_held_out_with_eval() -> None:
    views = [view(f"{i:02}.png") for i in reversed(range(18))]
    training, held_out = split_views(capture(views), DataConfig(eval=True))
    assert names(held_out) == ["00.png", "08.png", "16.png"]
    assert names(training) == [f"{i:02}.png" for i in range(18) if i % 8]


def test_without_eval_all_views_train_and_the_score_says_so() -> None:
    dataset = Dataset(capture([view(f"{i}") for i in range(9)]), DataConfig())
    assert len(dataset.training_views) == 9
    assert dataset.held_out_views == ()
    assert dataset.label == "training PSNR"


@pytest.mark.parametrize("evaluate", [False, True])
def test_a_test_split_of_the_set_is_always_held_out(evaluate: bool) -> None:
    tests = (view("test/0"), view("test/1"))
    dataset = Dataset(capture([view(f"{i}") for i in range(9)], tests), DataConfig(eval=evaluate))
    assert len(dataset.training_views) == 9
    assert dataset.held_out_views == tests
    assert dataset.label == "held-out PSNR"


def test_holding_out_the_only_view_is_refused() -> None:
    with pytest.raises(InputError, match="--eval"):
        Dataset(capture([view("only")]), DataConfig(eval=True))


@pytest.mark.parametrize(
    ("resolution", "expected"),
    [(1, (1999, 1001)), (2, (1000, 500)), (4, (500, 250)), (8, (250, 125)), (-1, (1600, 801)), (640, (640, 320))],
)
def test_resolution_divides_caps_or_names_the_width(resolution: int, expected: tuple[int, int]) -> None:
    assert training_size(1999, 1001, resolution) == expected


def test_small_photographs_are_not_enlarged_by_default() -> None:
    assert training_size(800, 600, -1) == (800, 600)
    for resolution in (10**9, 16_000):  # the second only high
        with pytest.raises(InputError, match=f"-r {resolution} makes photographs .* at most 16,384"):
            training_size(400, 600, resolution)


def test_transparency_shows_the_background_and_hides_the_colour_beneath() -> None:
    pixels = np.array([[[200, 100, 0, 255], [200, 100, 0, 0], [200, 100, 0, 51]]], np.uint8)
    assert composite(pixels, (1, 1, 1)).tolist() == [[[200, 100, 0], [255, 255, 255], [244, 224, 204]]]
    assert composite(pixels, (0, 0, 0)).tolist() == [[[200, 100, 0], [0, 0, 0], [40, 20, 0]]]


def test_hidden_colour_does_not_bleed_into_the_resized_photograph(tmp_path: Path) -> None:
    images = []
    for hidden in (0, 255):
        pixels = np.full((6, 8, 4), hidden, np.uint8)
        pixels[..., 3] = 0
        pixels[2:4, 2:5] = (10, 250, 30, 255)
        path = tmp_path / f"{hidden}.png"
        Image.fromarray(pixels).save(path)
        photograph = load_photograph(View(path.name, path, view("").camera), DataConfig(resolution=2), (1, 1, 1))
        assert photograph.pixels.shape == (3, 4, 3)
        images.append(photograph.pixels)
    np.testing.assert_array_equal(images[0], images[1])
    assert images[0][0, 3].tolist() == [255, 255, 255]


def test_the_camera_follows_the_size_the_photograph_got(tmp_path: Path) -> None:
    path = tmp_path / "odd.png"
    Image.fromarray(np.zeros((7, 9, 3), np.uint8)).save(path)
    camera = view("", size=(9, 7)).camera
    resized = load_photograph(View("odd.png", path, camera), DataConfig(resolution=2), (0, 0, 0)).camera
    assert (resized.width, resized.height) == (4, 4)
    assert resized.fx == pytest.approx(camera.fx * 4 / 9)
    assert resized.cy == pytest.approx(camera.cy * 4 / 7)


def test_a_photograph_of_another_size_than_its_camera_is_named(tmp_path: Path) -> None:
    path = tmp_path / "small.png"
    Image.fromarray(np.zeros((3, 4, 3), np.uint8)).save(path)
    with pytest.raises(InputError, match=r"small\.png is 4x3 .* 8x6"):
        load_photograph(View("small.png", path, view("").camera), DataConfig(resolution=1), (0, 0, 0))


def test_targets_span_zero_to_one(tmp_path: Path) -> None:
    path = tmp_path / "ramp.png"
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
    Image.fromarray(ramp).save(path)
    target = load_photograph(
        View("ramp.png", path, view("", size=(16, 16)).camera), DataConfig(resolution=1), (0, 0, 0)
    ).target()
    assert target.dtype == np.float32
    np.testing.assert_allclose(target, ramp / 255, atol=1e-7)


@pytest.mark.parametrize(("resolution", "words"), [(1_000_000, "1,000,000 pixels"), (16_000, "GiB of memory")])
def test_photographs_that_cannot_fit_are_refused_before_any_is_read(resolution: int, words: str) -> None:
    views = [view(f"{i}", size=(800, 600)) for i in range(1_000)]
    with pytest.raises(InputError, match=words):
        Dataset(capture(views), DataConfig(resolution=resolution))
