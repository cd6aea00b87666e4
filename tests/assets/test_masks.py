"""Tests masks next to photographs: found in both places, read in any format, undistorted and turned as photographs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from splatscope.assets.capture import Mask, View
from splatscope.assets.checks.checkup import check_up
from splatscope.assets.colmap.captures import read_colmap
from splatscope.assets.formats import open_capture
from splatscope.assets.lens import Lens, as_colmap
from splatscope.assets.photographs import undistort
from splatscope.assets.photographs.find import Photographs
from splatscope.assets.photographs.images import read_mask, write_png
from splatscope.assets.photographs.undistort import seen
from splatscope.assets.photographs.view_pixels import read_view
from splatscope.assets.sfm.search import bare_photographs
from splatscope.assets.transforms.captures import read_blender
from splatscope.kernels.errors import InputError
from tests.support.odd_captures import make_blender, make_colmap, make_transforms, seen_through
from tests.support.places import DATA

DATA = DATA / "train"
SIZE = (40, 30)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(undistort, "_cache_folder", lambda: folder)
    return folder


def left_half(size: tuple[int, int] = SIZE) -> np.ndarray:
    """Returns uint8 [H, W], white on the left."""
    pixels = np.zeros(size[::-1], np.uint8)
    pixels[:, : size[0] // 2] = 255
    return pixels


def put(path: Path, pixels: np.ndarray | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(left_half() if pixels is None else pixels).save(path)
    return path


def masks_of(views: tuple[View, ...], folder: Path) -> dict[str, str]:
    return {v.name: v.mask.path.relative_to(folder).as_posix() for v in views if v.mask is not None}


# ----------------------------------------------------------------------------------------- finding


@pytest.mark.parametrize(
    "files",
    [
        ("masks/a.jpg.png", "masks/cam 1/b.jpg.png"),
        ("masks/a.png", "masks/cam 1/b.png"),
        ("mask/a.jpg", "mask/cam 1/b.tif"),
        ("Masks/A.JPG.PNG", "Masks/cam 1/B.png"),
    ],
)
def test_a_mask_is_named_like_its_photograph_in_a_folder_beside(tmp_path: Path, files: tuple[str, str]) -> None:
    folder = make_colmap(tmp_path, ("a.jpg", "cam 1/b.jpg", "c.jpg"))
    for file in files:
        put(folder / file)
    capture = read_colmap(folder)
    assert masks_of(capture.views, folder) == dict(zip(("a.jpg", "cam 1/b.jpg"), files, strict=True))
    assert not capture.warnings
    assert capture.census.unused == 0


def test_frames_name_their_masks_and_a_folder_has_the_others(tmp_path: Path) -> None:
    folder = make_transforms(tmp_path, [{"file_path": "images/0.png", "mask_path": "deep/x.png"}, *(
        {"file_path": f"images/{i}.png", "mask_path": None} for i in (1, 2)
    )])  # fmt: skip
    put(folder / "deep/x.png")
    put(folder / "masks/1.png")
    capture = read_blender(folder)
    assert masks_of(capture.views, folder) == {"images/0.png": "deep/x.png", "images/1.png": "masks/1.png"}
    assert not capture.warnings
    make_transforms(folder, [{"file_path": "images/0.png", "mask_path": 7}])
    with pytest.raises(InputError, match="frame 0: mask_path must be the path of a mask, got 7"):
        read_blender(folder)


def test_train_and_test_views_of_one_name_have_masks_of_their_own(tmp_path: Path) -> None:
    folder = make_blender(tmp_path, mode="RGB")
    put(folder / "masks/train/r_0.png")
    put(folder / "masks/test/r_1.png")
    capture = open_capture(folder)
    assert masks_of(capture.views, folder) == {"train/r_0.png": "masks/train/r_0.png"}
    assert masks_of(capture.test_views, folder) == {"test/r_1.png": "masks/test/r_1.png"}
    assert not capture.warnings


def test_smaller_copies_have_masks_of_their_size_or_of_their_cameras(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path, ("a.png", "b.png"))
    for name in ("a.png", "b.png"):
        put(folder / "images_2" / name, np.zeros((15, 20, 3), np.uint8))
        put(folder / "masks" / name)
    put(folder / "masks_2/a.png", left_half((20, 15)))
    capture = read_colmap(folder, "images_2")
    assert masks_of(capture.views, folder) == {"a.png": "masks_2/a.png", "b.png": "masks/b.png"}
    for view in capture.views:
        mask = read_view(view).mask
        assert mask is not None
        assert mask.tolist() == [[True] * 10 + [False] * 10] * 15


def test_masks_are_no_photographs(tmp_path: Path) -> None:
    """Covers models with photographs next to masks, models without photographs, and a search for cameras."""
    folder = make_colmap(tmp_path, images="")
    for name in ("a", "b", "c"):
        put(folder / f"masks/{name}.png")
    with pytest.raises(InputError, match="no folder of photographs"):
        read_colmap(folder)
    for name in ("a", "b", "c"):
        put(folder / f"{name}.png", np.zeros((30, 40, 3), np.uint8))
    capture = read_colmap(folder)
    assert masks_of(capture.views, folder) == {f"{name}.png": f"masks/{name}.png" for name in "abc"}
    assert capture.census.unused == 0
    assert bare_photographs(folder, "images") == (folder, 3)
    assert len(Photographs(folder, with_masks=True).paths) == 6


def test_a_capture_beside_another_named_mask_has_none_of_its_pictures(tmp_path: Path) -> None:
    for name in ("scene", "mask"):
        make_colmap(tmp_path / name, images="")
        for photograph in ("a.jpg", "b.jpg", "c.jpg"):
            put(tmp_path / name / photograph, np.zeros((30, 40, 3), np.uint8))
    capture = read_colmap(tmp_path / "scene")
    assert (masks_of(capture.views, tmp_path), capture.warnings) == ({}, ())


# ----------------------------------------------------------------------------------------- reading


def grey(levels: np.ndarray) -> Image.Image:
    return Image.fromarray(levels)


KINDS: dict[str, Callable[[np.ndarray], Image.Image]] = {
    "1": lambda m: grey(m).convert("1"),
    "L": grey,
    "labels": lambda m: grey((m > 0) * np.uint8(3)),
    "zero or one": lambda m: grey((m > 0) * np.uint8(1)),
    "I;16": lambda m: grey(m.astype(np.uint16) * 257),
    "I;16 of bytes": lambda m: grey(m.astype(np.uint16)),
    "RGB": lambda m: grey(m).convert("RGB"),
    "coloured": lambda m: grey(np.dstack((m * 0, m, m * 0))),
    "RGBA": lambda m: grey(m).convert("RGBA"),
    "white, cut out": lambda m: grey(np.dstack((m * 0 + 255, m * 0 + 255, m * 0 + 255, m))),
    "LA": lambda m: grey(m).convert("LA"),
    "P": lambda m: grey(m).convert("RGB").quantize(2),
    "soft": lambda m: grey(np.where(m > 0, 150, 90).astype(np.uint8)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_black_counts_whatever_kind_of_picture_a_mask_is(tmp_path: Path, kind: str) -> None:
    wanted = left_half()
    wanted[:7] = 0
    KINDS[kind](wanted).save(tmp_path / "m.png")
    assert np.array_equal(read_mask(tmp_path / "m.png"), wanted > 0)


def test_a_mask_leaves_pixels_out_the_others_or_none(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path)
    put(folder / "masks/a.jpg.png")
    view = read_colmap(folder).views[0]
    used, inverted = read_view(view).mask, read_view(view, masks="invert").mask
    assert used is not None
    assert inverted is not None
    assert np.array_equal(used, left_half() > 0)
    assert np.array_equal(inverted, ~used)
    assert read_view(view, masks="ignore").mask is None
    with pytest.raises(InputError, match="masks must be one of use, invert, ignore, got 'no'"):
        read_view(view, masks="no")  # pyright: ignore[reportArgumentType]


def test_a_mask_and_transparency_leave_out_what_either_does(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path, ("a.png", "b.png", "c.png"))
    pixels = np.full((30, 40, 4), 255, np.uint8)
    pixels[:10, :, 3] = 0
    put(folder / "images/a.png", pixels)
    put(folder / "masks/a.png")
    image = read_view(read_colmap(folder).views[0], "mask")
    assert image.mask is not None
    assert image.mask.sum() == 20 * 20
    assert image.mask[10:, :20].all()


@pytest.mark.parametrize("inverted", [False, True])
def test_a_mask_is_bent_as_its_photograph_and_what_the_lens_did_not_see_is_left_out(
    tmp_path: Path, cache: Path, inverted: bool
) -> None:
    """Draws the mask's own pattern in the photograph, so that both must stay the same picture."""
    lens = Lens.from_colmap("SIMPLE_RADIAL", 200, 150, (60, 100, 75, -0.15), "here")
    pattern = seen_through(
        lens, lambda rays: 255.0 * ((rays % 0.5 < 0.25).sum(axis=1, keepdims=True) == 1).repeat(3, 1)
    )
    write_png(tmp_path / "a.png", pattern)
    write_png(tmp_path / "m.png", pattern[..., 0] if not inverted else 255 - pattern[..., 0])
    camera = lens.camera(np.eye(4))
    view = View("a.png", tmp_path / "a.png", camera, lens, mask=Mask(tmp_path / "m.png"))
    kept, whole = seen(lens), []
    assert kept is not None
    for _ in range(2):  # warped, then from the cache
        image = read_view(view, masks="invert" if inverted else "use")
        assert image.mask is not None
        assert not image.mask[~kept].any()
        assert np.array_equal(image.mask[kept], image.pixels[..., 0][kept] >= 128)
        whole.append(image.mask)
    assert np.array_equal(*whole)
    assert 0.3 < whole[0][kept].mean() < 0.7
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    ("made_from", "tag"),
    [
        *((kind, tag) for kind in ("stored pixels", "stored pixels, tagged") for tag in range(1, 9)),
        *(("turned pixels", tag) for tag in range(5, 9)),  # of others they cannot be told: both have the same size
    ],
)
def test_a_mask_is_turned_as_its_photograph(tmp_path: Path, made_from: str, tag: int) -> None:
    """Uses the photograph as its own mask: an upright camera saw 40 x 30, whichever way the file is stored."""
    sideways = tag >= 5
    folder = make_colmap(tmp_path)
    stored = np.zeros((40, 30) if sideways else (30, 40), np.uint8)
    stored[:11, :7] = 255
    exif = Image.Exif()
    exif[0x0112] = tag
    Image.fromarray(stored).convert("RGB").save(folder / "images/a.jpg", exif=exif, quality=100, subsampling=0)
    view = read_colmap(folder).views[0]
    upright = read_view(view).pixels[..., 0] >= 128
    (folder / "masks").mkdir()
    if made_from == "turned pixels":
        put(folder / "masks/a.png", upright * np.uint8(255))
    else:
        Image.fromarray(stored).save(folder / "masks/a.png", exif=exif if "tagged" in made_from else None)
    view = read_colmap(folder).views[0]
    assert view.turned == sideways
    mask = read_view(view).mask
    assert mask is not None
    assert np.array_equal(mask, upright)


# ------------------------------------------------------------------------------ what can be wrong


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "other names": (
        {"masks/x.png": None, "masks/y.png": None},
        "No masks are used from masks: none of its 2 pictures is named like a photograph, x.png, y.png. The mask of "
        "a.jpg would be a.jpg.png.",
    ),
    "no photograph": (
        {"masks/a.png": None, "masks/z.jpg.png": None},
        "In masks 1 mask belongs to no photograph: z.jpg.png.",
    ),
    "other size": (
        {"masks/a.png": left_half((41, 30))},
        "Not as large as their photographs: 1 mask; masks/a.png is 41 x 30, a.jpg 40 x 30. Those photographs train "
        "whole; export the masks at the photographs' size.",
    ),
    "sideways": (
        {"masks/a.png": left_half((30, 40))},
        "Not as large as their photographs: 1 mask; masks/a.png is 30 x 40, a.jpg 40 x 30. Those photographs train "
        "whole; export the masks at the photographs' size.",
    ),
    "no picture": (
        {"masks/a.png": b"no picture"},
        "Not read: 1 mask, masks/a.png; those photographs train whole. FOLDER/masks/a.png is not an image, or is "
        "damaged from its first bytes on. Copy it again.",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_whatever_is_wrong_with_masks_is_one_sentence(tmp_path: Path, wrong: str) -> None:
    files, sentence = WRONG[wrong]
    folder = make_colmap(tmp_path)
    for name, content in files.items():
        if isinstance(content, bytes):
            put(folder / name).write_bytes(content)
        else:
            put(folder / name, content)
    capture = read_colmap(folder)
    assert capture.warnings == (sentence.replace("FOLDER", str(folder)),)
    assert len(masks_of(capture.views, folder)) == ("no photograph" in wrong)


def test_masks_of_photographs_without_a_camera_are_nothing_odd(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path)
    put(folder / "images/later.jpg", np.zeros((30, 40, 3), np.uint8))
    put(folder / "masks/later.jpg.png")
    put(folder / "masks/a.png")
    (only,) = read_colmap(folder).warnings
    assert only.startswith("Not used: ")
    assert "no camera in" in only


def test_a_mask_cut_short_leaves_its_photograph_whole_and_says_so(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (30, 40), np.uint8)
    spoil(put(folder / "masks/a.png", noise))
    image = read_view(read_colmap(folder).views[0])
    assert image.mask is None
    assert image.mask_problem.endswith("masks/a.png is damaged or cut short and cannot be decoded. Copy it again.")


def test_opening_decodes_no_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_colmap(tmp_path)
    put(folder / "masks/a.png")
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("decoded"))
    assert masks_of(read_colmap(folder).views, folder) == {"a.jpg": "masks/a.png"}


def test_the_page_says_how_many_have_a_mask_which_lack_one_and_which_are_bad(tmp_path: Path) -> None:
    names = tuple(f"{i}.jpg" for i in range(12))
    folder = make_colmap(tmp_path, names)
    assert [f.text for f in check_up(read_colmap(folder)).facts if f.topic == "masks"] == ["none"]
    for name in names[:9]:
        put(folder / f"masks/{name}.png")
    put(folder / "masks/0.jpg.png", left_half() * 0)
    spoil(put(folder / "masks/1.jpg.png", np.random.default_rng(0).integers(0, 256, (30, 40), np.uint8)))
    checkup = check_up(read_colmap(folder), decode=True)
    assert [f.text for f in checkup.facts if f.topic == "masks"] == [
        "9 of 12 have one; black pixels count in no loss or score"
    ]
    assert [f.text for f in checkup.oddities if f.topic == "masks"] == [
        "Only 9 of 12 photographs have a mask; without: 10.jpg, 11.jpg, 9.jpg.",
        "Masks that are damaged, so that their photographs count whole: 1.jpg.",
        "Masks that are black everywhere, so that their photographs teach nothing: 0.jpg.",
    ]


@pytest.mark.skipif(not DATA.exists(), reason="the shared test data is not here")
def test_masks_of_a_real_capture_are_named_by_its_frames_and_bent_as_its_lens(tmp_path: Path, cache: Path) -> None:
    content = json.loads((DATA / "fox/transforms.json").read_text())
    content["frames"] = content["frames"][:2]
    (tmp_path / "images").mkdir()
    for index, frame in enumerate(content["frames"]):
        shutil.copy(DATA / "fox" / frame["file_path"], tmp_path / "images")
        frame["mask_path"] = f"masks/{index}.png"
        pixels = np.full((1920, 1080), 255, np.uint8)
        pixels[:, :60] = 0
        put(tmp_path / frame["mask_path"], pixels)
    (tmp_path / "transforms.json").write_text(json.dumps(content))
    for view in open_capture(tmp_path).views:
        image, camera = read_view(view), view.camera
        assert image.mask is not None
        assert view.lens is not None
        assert image.mask.shape == image.pixels.shape[:2]
        columns, rows = np.meshgrid(np.arange(0.5, camera.width), np.arange(0.5, camera.height))
        rays = np.stack(((columns - camera.cx) / camera.fx, (rows - camera.cy) / camera.fy, columns * 0 + 1), axis=-1)
        stored = np.asarray(as_colmap(view.lens).img_from_cam(rays.reshape(-1, 3)))[:, 0].reshape(columns.shape)
        clear = np.abs(stored - 60) > 0.6
        assert np.array_equal(image.mask[clear], stored[clear] >= 60)
        assert np.ptp(image.mask.sum(axis=1)) > 1  # the line is no longer straight
