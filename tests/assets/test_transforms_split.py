"""Tests the split of a transforms capture: training photographs, held-out ones, and messages about the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from splatscope.assets.capture import Capture
from splatscope.assets.transforms.captures import read_blender
from splatscope.kernels.errors import InputError
from splatscope.training.config import DataConfig
from splatscope.training.data.dataset import split_views
from tests.support.odd_captures import make_blender, make_transforms

PATHS = [f"images/{i}.png" for i in range(6)]


def make_split(folder: Path, **lists: Any) -> Path:
    make_transforms(folder, [{"file_path": path} for path in PATHS], **lists)
    for path in PATHS[3:]:
        Image.new("RGB", (40, 30)).save(folder / path)
    return folder


def split_of(capture: Capture) -> tuple[str, str]:
    """Returns the numbers of the photographs to train on and to test with."""
    training, test = ("".join(view.name[-5] for view in views) for views in (capture.views, capture.test_views))
    return training, test


def said_of_split(capture: Capture) -> str:
    return " ".join(warning for warning in capture.warnings if "points" not in warning)


LEFT_OUT = "Left out, as transforms.json lists them neither for training nor as tests: "
HELD_OUT = "Held out, being in both train_filenames and test_filenames: "


@pytest.mark.parametrize(
    ("lists", "split", "said"),
    [
        ({"train": "0123", "test": "45"}, ("0123", "45"), ""),
        ({"train": "0123", "val": "45"}, ("0123", "45"), ""),
        ({"train": "0123", "val": "45", "test": "45"}, ("0123", "45"), ""),
        ({"train": "01", "val": "23", "test": "45"}, ("01", "45"),
         LEFT_OUT + "2 photographs, for example images/2.png."),
        ({"test": "45"}, ("0123", "45"), ""),
        ({"val": "3", "test": "45"}, ("012", "45"), LEFT_OUT + "1 photograph, for example images/3.png."),
        ({"train": "0123"}, ("0123", ""), LEFT_OUT + "2 photographs, for example images/4.png."),
        ({"train": "012345", "test": ""}, ("012345", ""), ""),
        ({"train": "012345", "test": "45"}, ("0123", "45"), HELD_OUT + "2 photographs."),
        ({"train": "01234", "test": "012345"}, ("01234", "5"), "Not held out, being all there is to train on: 5 "
         "photographs in both train_filenames and test_filenames."),
        ({"test": "012345"}, ("012345", ""), "Not followed, for it leaves nothing to train on: the split that "
         "transforms.json lists."),
        ({"train": "0123", "test": "459"}, ("0123", "45"), "No frame has the path that the split lists: 1 name, for "
         "example images/9.png in test_filenames."),
    ],
)  # fmt: skip
def test_the_split_that_a_file_lists_is_followed(
    tmp_path: Path, lists: dict[str, str], split: tuple[str, str], said: str
) -> None:
    named = {f"{key}_filenames": [f"images/{i}.png" for i in numbers] for key, numbers in lists.items()}
    capture = read_blender(make_split(tmp_path, **named))
    assert split_of(capture) == split
    assert said_of_split(capture) == said
    assert capture.census.registered == len(split[0])
    if split[1]:  # held out whether or not it is asked for
        assert split_views(capture, DataConfig(eval=False)) == (capture.views, capture.test_views)


def test_lists_and_frames_may_write_a_path_differently(tmp_path: Path) -> None:
    folder = make_split(
        tmp_path,
        train_filenames=["./images/0.png", "images\\1.png", "IMAGES/2.PNG"],
        test_filenames=["/home/someone/scene/images/3.png", "images/4", "images/4.jpg", "images/../images/5"],
    )
    (folder / "images/5.png").unlink()  # of a frame all the same
    capture = read_blender(folder)
    assert split_of(capture) == ("012", "34")
    assert said_of_split(capture) == (
        f"Test views: 2 of 3 photographs found in {folder}, 1 missing, for example images/5.png; training goes on "
        "without them."
    )


@pytest.mark.parametrize("value", ["images/0.png", [1], [""], {}])
def test_what_is_no_list_of_paths_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError, match="test_filenames must be a list of paths of photographs"):
        read_blender(make_split(tmp_path, test_filenames=value))


def test_tests_of_a_blender_set_are_not_trained_on(tmp_path: Path) -> None:
    folder = make_blender(tmp_path, ("r_0", "r_1", "r_2"))
    training, test = (json.loads((folder / f"transforms_{split}.json").read_text()) for split in ("train", "test"))
    test["frames"] = training["frames"][2:]
    (folder / "transforms_test.json").write_text(json.dumps(test))
    capture = read_blender(folder)
    assert split_of(capture) == ("01", "2")
    both = "in both transforms_train.json and transforms_test.json"
    assert said_of_split(capture) == f"Held out, being {both}: 1 photograph."
    (folder / "transforms_test.json").write_text(json.dumps(training))
    capture = read_blender(folder)
    assert split_of(capture) == ("012", "")
    assert said_of_split(capture) == f"Not held out, being all there is to train on: 3 photographs {both}."
