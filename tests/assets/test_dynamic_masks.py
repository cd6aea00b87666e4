"""Tests instant-ngp's masks, dynamic_mask_NAME.png next to a photograph: pixels that are not black do not count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splatscope.assets.capture import Mask, View
from splatscope.assets.checks.checkup import check_up
from splatscope.assets.colmap.captures import read_colmap
from splatscope.assets.formats import open_capture
from splatscope.assets.lens import Lens
from splatscope.assets.photographs import undistort
from splatscope.assets.photographs.find import Photographs
from splatscope.assets.photographs.images import write_png
from splatscope.assets.photographs.view_pixels import read_view
from splatscope.assets.sfm.search import bare_photographs
from tests.assets.test_masks import left_half, masks_of, put
from tests.support.odd_captures import make_blender, make_colmap, make_transforms


def test_it_lies_beside_its_photograph_and_comes_before_a_folder_but_behind_one_that_is_named(tmp_path: Path) -> None:
    frames = [{"file_path": f"images/{i}.png"} for i in range(3)]
    folder = make_transforms(tmp_path / "ngp", [frames[0], frames[1] | {"mask_path": "named.png"}, frames[2]])
    for file in ("named.png", "images/dynamic_mask_0.png", "images/dynamic_mask_1.png", "masks/0.png", "masks/2.png"):
        put(folder / file)
    capture = open_capture(folder)
    wanted = {"0": "images/dynamic_mask_0.png", "1": "named.png", "2": "masks/2.png"}
    assert masks_of(capture.views, folder) == {f"images/{i}.png": mask for i, mask in wanted.items()}
    assert [view.mask.is_dynamic for view in capture.views if view.mask] == [True, False, False]
    assert not capture.warnings
    blender = make_blender(tmp_path / "blender", mode="RGB")
    put(blender / "train/dynamic_mask_r_1.png")
    capture = open_capture(blender)
    assert masks_of(capture.views, blender) == {"train/r_1.png": "train/dynamic_mask_r_1.png"}
    assert masks_of(capture.test_views, blender) == {}


KINDS: dict[str, Callable[[np.ndarray], Image.Image]] = {
    "white": Image.fromarray,
    "labels beside white": lambda m: Image.fromarray(np.vstack((m[:9], m[9:] // 255))),
    "coloured": lambda m: Image.fromarray(np.dstack((m * 0, m * 0, m // 40))),
    "transparent": lambda m: Image.fromarray(np.dstack((m, m, m, m * 0))),
    "palette": lambda m: Image.fromarray(m).convert("P"),
    "1": lambda m: Image.fromarray(m).convert("1"),
    "16 bits": lambda m: Image.fromarray(m.astype(np.uint16)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_not_black_moves_however_dark_or_transparent(tmp_path: Path, kind: str) -> None:
    folder = make_transforms(tmp_path)
    moving = left_half()
    moving[:7] = 0
    KINDS[kind](moving).save(folder / "images/dynamic_mask_0.png")
    view = open_capture(folder).views[0]
    kept, inverted = read_view(view).mask, read_view(view, masks="invert").mask
    assert kept is not None
    assert np.array_equal(kept, moving == 0)
    assert inverted is not None
    assert np.array_equal(inverted, moving > 0)
    assert read_view(view, masks="ignore").mask is None


def test_it_is_no_photograph_but_what_only_is_named_alike_is(tmp_path: Path) -> None:
    names = ("a.jpg", "b.jpg", "c.jpg")
    folder = make_colmap(tmp_path, names)
    put(folder / "images/dynamic_mask_a.png")
    capture = read_colmap(folder)
    assert masks_of(capture.views, folder) == {"a.jpg": "images/dynamic_mask_a.png"}
    assert (capture.census.unused, capture.warnings) == (0, ())
    assert bare_photographs(folder / "images", "images") == (folder / "images", 3)
    put(folder / "images/dynamic_mask_b.jpg")
    put(folder / "images/dynamic_mask_z.png")
    found = Photographs(folder / "images")
    assert list(found.paths) == ["a.jpg", "b.jpg", "c.jpg", "dynamic_mask_b.jpg", "dynamic_mask_z.png"]
    assert list(found.dynamic_masks) == ["a"]


def test_one_of_another_size_leaves_its_photograph_whole_and_is_told(tmp_path: Path) -> None:
    folder = make_transforms(tmp_path)
    put(folder / "images/dynamic_mask_0.png", left_half((41, 30)))
    capture = open_capture(folder)
    assert masks_of(capture.views, folder) == {}
    assert any("images/dynamic_mask_0.png is 41 x 30, images/0.png 40 x 30" in text for text in capture.warnings)


def test_bent_straight_it_is_not_taken_for_a_mask_of_the_other_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undistort, "_cache_folder", lambda: tmp_path / "cache")
    lens = Lens.from_colmap("SIMPLE_RADIAL", 200, 150, (150, 100, 75, -0.05), "here")
    put(tmp_path / "a.png", np.zeros((150, 200, 3), np.uint8))
    put(tmp_path / "m.png", left_half((200, 150)))
    shares = []
    for is_dynamic in (False, True):
        mask = Mask(tmp_path / "m.png", is_dynamic=is_dynamic)
        kept = read_view(View("a.png", tmp_path / "a.png", lens.camera(np.eye(4)), lens, mask=mask)).mask
        assert kept is not None
        shares.append((kept[:, :90].mean(), kept[:, -90:].mean()))
    (left, right), (dynamic_left, dynamic_right) = shares
    assert left > 0.9 > 0.1 > right
    assert dynamic_left < 0.1 < 0.9 < dynamic_right


def test_the_page_says_which_masks_leave_out_what_is_not_black(tmp_path: Path) -> None:
    folder = make_transforms(tmp_path)
    put(folder / "masks/1.png")
    write_png(folder / "images/dynamic_mask_0.png", np.full((30, 40), 1, np.uint8))
    checkup = check_up(open_capture(folder), decode=True)
    (fact,) = (finding.text for finding in checkup.facts if finding.topic == "masks")
    assert fact == (
        "2 of 3 have one; black pixels count in no loss or score, in 1 named dynamic_mask_ those that are not black"
    )
    told = [f"{odd.text} {odd.advice}" for odd in checkup.oddities if odd.topic == "masks"]
    assert told[1:] == [
        "Masks that are black nowhere, so that their photographs teach nothing: images/0.png. If black means what to "
        "leave out, train with --masks invert."
    ]
