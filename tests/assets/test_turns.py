"""Tests EXIF tags: if some photographs prove that the cameras describe upright pictures, this holds for all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splatscope.assets.lens import Lens
from splatscope.assets.photographs.exif_turns import Candidate, decided, proof_by_shape
from splatscope.assets.photographs.find import Photographs, Shot, match_views
from splatscope.assets.photographs.images import ImageHeader
from splatscope.assets.photographs.masks import Masks
from splatscope.assets.photographs.view_pixels import read_view
from splatscope.assets.transforms.captures import read_blender
from tests.support.odd_captures import make_blender, make_transforms

# How a camera held so stores an upright picture: what each tag asks for, undone.
STORED_AS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
WIDE, TALL, SQUARE = (40, 30), (30, 40), (30, 30)
UNTOLD = [("head", WIDE, 3), ("mirror", WIDE, 2), ("flip", WIDE, 4), *((f"square{t}", SQUARE, t) for t in (5, 6, 7, 8))]
PLAIN = ("plain", WIDE, 1)
Taken = tuple[str, tuple[int, int], int]  # name, size of the upright picture, tag


def upright_picture(size: tuple[int, int]) -> Image.Image:
    """Returns a picture that every turn and mirror changes."""
    coarse = np.random.default_rng(7).integers(0, 255, (5, 5, 3), np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def save(folder: Path, taken: list[Taken]) -> dict[str, Image.Image]:
    """Writes photographs, and instant-ngp's mask of each: the photograph's first channel as stored, without a tag."""
    stored = {}
    for name, size, tag in taken:
        tags = Image.Exif()
        tags[0x0112] = tag
        picture = upright_picture(size)
        stored[name] = picture.transpose(STORED_AS[tag]) if tag > 1 else picture
        stored[name].save(folder / f"{name}.png", exif=tags)
        bright = np.asarray(stored[name])[..., 0] >= 128
        Image.fromarray(bright * np.uint8(255)).save(folder / f"dynamic_mask_{name}.png")
    return stored


def shot(name: str, size: tuple[int, int]) -> Shot:
    return Shot(f"{name}.png", Lens("PINHOLE", *size, (50.0, 50.0, size[0] / 2, size[1] / 2)), np.eye(4))


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("proof", [5, 6, 7, 8])
def test_one_photograph_proves_for_all_whether_tags_were_applied(tmp_path: Path, proof: int, applied: bool) -> None:
    taken: list[Taken] = [*UNTOLD, PLAIN, ("tells", TALL, proof)]
    stored = save(tmp_path, taken)
    photographs = Photographs(tmp_path)
    masks = Masks(photographs)
    shots = [shot(name, size if applied else stored[name].size) for name, size, _ in taken]
    views, warnings, _ = match_views(photographs, shots, "", False, masks.of)
    assert [text for text in warnings if "Turned" not in text] == masks.sentences() == []
    sizes = {name: size for name, size, _ in taken}
    for view in views:
        name = view.name.removesuffix(".png")
        assert view.turned == (applied and name != "plain")
        image = read_view(view)
        wanted = np.asarray(upright_picture(sizes[name]) if applied else stored[name])
        assert np.array_equal(image.pixels, wanted), name
        assert image.mask is not None
        assert np.array_equal(image.mask, wanted[..., 0] < 128), name


def test_where_no_shape_tells_all_stay_as_they_are_stored_and_it_is_said_once(tmp_path: Path) -> None:
    stored = save(tmp_path, [*UNTOLD, PLAIN])
    shots = [shot(name, picture.size) for name, picture in stored.items()]
    views, warnings, _ = match_views(Photographs(tmp_path), shots, "", False)
    assert not any(view.turned for view in views)
    assert len(warnings) == 1
    assert "as stored, although EXIF tags would turn them: 7 photographs, for example head.png." in warnings[0]
    assert "mogrify -auto-orient" in warnings[0]
    _, warnings, _ = match_views(Photographs(tmp_path), [shot("plain", WIDE)], "", False)
    assert not warnings


def test_photographs_that_contradict_each_other_go_by_their_own_proof_and_the_rest_with_most() -> None:
    yes, no, neither = Candidate("yes", True, True), Candidate("no", True, False), Candidate("open", True, None)
    turned, said = decided([neither, yes, no, yes, Candidate("plain", False, None)], Counter({True: 2, False: 1}))
    assert turned == [True, True, False, True, False]
    assert "2 photographs only fit turned, for example yes, and 1 only as stored, for example no." in said
    assert "; 1 other, open first, turned as most are." in said
    turned, said = decided([neither, yes, no], Counter({True: 1, False: 1}))
    assert turned == [False, True, False]
    assert "; 1 other, open first, left as stored." in said


@pytest.mark.parametrize(
    ("stored", "tag", "lens", "proof"),
    [
        ((40, 30), 6, (30, 40), True),
        ((40, 30), 6, (40, 30), False),
        ((40, 30), 6, (59, 80), True),  # twice as large, and a pixel less
        ((1010, 1000), 8, (1000, 1010), True),  # almost square, but exactly so
        ((1010, 1000), 8, (1010, 1000), False),
        ((1010, 1000), 8, (502, 505), None),
        ((40, 30), 6, (50, 50), None),
        ((30, 30), 6, (30, 30), None),
        ((40, 30), 3, (30, 40), None),
    ],
)
def test_only_a_shape_that_fits_one_way_is_a_proof(
    stored: tuple[int, int], tag: int, lens: tuple[int, int], proof: bool | None
) -> None:
    header = ImageHeader(*stored, has_alpha=False, orientation=tag)
    assert proof_by_shape(header, Lens("PINHOLE", *lens, (50.0, 50.0, 20.0, 20.0))) is proof


def test_a_size_taken_from_the_photograph_itself_proves_nothing(tmp_path: Path) -> None:
    folder = make_transforms(tmp_path, w=None, h=None)
    tags = Image.Exif()
    tags[0x0112] = 6
    Image.new("RGB", (40, 30)).save(folder / "images/0.png", exif=tags)
    capture = read_blender(folder)
    assert not capture.views[0].turned
    assert "would turn them: 1 photograph, for example images/0.png." in capture.warnings[0]


@pytest.mark.parametrize(("proof", "other"), [("train", "test"), ("test", "train")])
def test_what_views_of_one_split_prove_holds_for_those_of_the_other(tmp_path: Path, proof: str, other: str) -> None:
    folder = make_blender(tmp_path, mode="RGB", w=40, h=30)
    for name, tag, size in ((f"{proof}/r_0", 6, TALL), (f"{other}/r_0", 3, WIDE)):
        tags = Image.Exif()
        tags[0x0112] = tag
        Image.new("RGB", size).save(folder / f"{name}.png", exif=tags)
    capture = read_blender(folder)
    assert [view.turned for view in (*capture.views, *capture.test_views)] == [True, False, True, False]
    assert not any("Nothing tells" in warning for warning in capture.warnings)
