"""Tests that cameras are searched only where masks let training look, and cached for these masks."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from splatscope.app.opening.find_cameras import open_or_find
from splatscope.app.opening.opening import open_for
from splatscope.app.run.plan import RunPlan
from splatscope.assets.capture import View
from splatscope.assets.formats import open_capture
from splatscope.assets.lens import Lens
from splatscope.assets.photographs.find import Photographs, Shot
from splatscope.assets.photographs.images import image_size, read_header, read_image, write_png
from splatscope.assets.photographs.masks import Masks
from splatscope.assets.photographs.view_pixels import MASK_USES, MaskUse, read_view
from splatscope.assets.sfm import search as sfm
from splatscope.assets.sfm.search import CameraSearch, NoCamerasError, known_cameras
from splatscope.assets.sfm.worker import lay_mask_out, lay_one_out
from splatscope.kernels.errors import InputError
from splatscope.training.config import DataConfig, TrainConfig
from splatscope.training.trainer import Beginning
from tests.assets.test_sfm import DEGREES, ORIENTATION, SHARE, pose_errors
from tests.support.turntable import write_turntable

COUNT = 7
DAMAGED, DYNAMIC, BLACK = "0.png", "2.png", "6.png"  # photographs whose masks are that; the others have plain ones


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cameras")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sfm, "_cache", lambda: folder)
        yield folder


@dataclass(frozen=True)
class Searched:
    """Holds a capture whose cameras were found with its masks."""

    folder: Path
    cameras: NDArray[np.float64]  # view_from_world [COUNT, 4, 4] that it was made with
    printed: str


@pytest.fixture(scope="module")
def turntable(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    folder = tmp_path_factory.mktemp("turntable") / "cube"
    cameras = write_turntable(folder, COUNT)
    masks = folder / "masks"
    damaged = np.random.default_rng(0).integers(0, 255, read_image(masks / DAMAGED).shape[:2], np.uint8)
    write_png(masks / DAMAGED, damaged)
    (masks / DAMAGED).write_bytes((masks / DAMAGED).read_bytes()[:5000])
    moving = 255 - read_image(masks / DYNAMIC)[..., 0]
    (masks / DYNAMIC).unlink()
    write_png(folder / "images" / f"dynamic_mask_{DYNAMIC}", moving // 255)
    write_png(masks / BLACK, read_image(masks / BLACK)[..., 0] * np.uint8(0))
    printed = io.StringIO()
    with redirect_stdout(printed):
        open_or_find(folder, DataConfig())
    return Searched(folder, cameras, printed.getvalue())


def test_on_a_turntable_masks_tell_the_turning_from_the_background(turntable: Searched) -> None:
    capture = open_capture(turntable.folder)
    numbers = [int(Path(view.name).stem) for view in capture.views]
    assert numbers == list(range(COUNT - 1)), "nothing is left of the last one"
    found = np.stack([np.linalg.inv(view.camera.matrix) for view in capture.views])
    turned, off = pose_errors(found, np.linalg.inv(turntable.cameras[numbers]))
    assert turned.max() < DEGREES
    assert off.max() < SHARE


def test_the_search_says_of_how_many_photographs_masks_left_something_out(turntable: Searched) -> None:
    first, *_, last = turntable.printed.splitlines()
    assert f"were taken, in what masks leave of {COUNT} of them; Ctrl-C" in first
    assert f"Of {COUNT} of them only what masks leave was looked at. They are kept in" in last
    found = known_cameras(turntable.folder / "images", ("use",), beside=True)
    assert found is not None
    assert found.masked == COUNT


@pytest.mark.parametrize("masks", ["ignore", "invert"])
def test_with_what_stands_still_behind_it_the_cube_seems_not_to_turn(turntable: Searched, masks: MaskUse) -> None:
    """Shows that masks are what helps."""
    search = CameraSearch(turntable.folder / "images", masks, beside=True)
    try:
        while not search.wait(0.5):
            pass
        with pytest.raises(InputError, match=f"No cameras were found for the {COUNT} photographs") as refused:
            search.result()
    finally:
        search.close()
    hint = f"What masks leave out of {COUNT} of them was not looked at (data.masks = invert)"
    assert (hint in str(refused.value)) == (masks == "invert")


def test_found_cameras_belong_to_the_masks_they_were_found_with(turntable: Searched, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(turntable.folder, moved)
    assert open_capture(moved, masks=("use",)).views
    for other in ("invert", "ignore"):
        with pytest.raises(NoCamerasError) as unknown:
            open_capture(moved, masks=(other,))
        assert unknown.value.masks == other
    mask = read_image(moved / "masks/3.png")[..., 0].copy()
    mask[0, 0] = 255
    write_png(moved / "masks/3.png", mask)
    with pytest.raises(NoCamerasError):
        open_capture(moved)
    shutil.rmtree(moved / "masks")
    with pytest.raises(NoCamerasError):
        open_capture(moved)


def test_a_run_that_goes_on_keeps_its_cameras_however_it_uses_masks_by_now(turntable: Searched) -> None:
    inverted = TrainConfig(data=DataConfig(masks="invert"))
    with pytest.raises(NoCamerasError) as unknown:
        open_for(RunPlan(inverted), turntable.folder, "images")
    assert unknown.value.masks == "invert"
    begun = Beginning(Path("run"), iteration=1)
    for plan in (RunPlan(TrainConfig()), RunPlan(inverted, begin=begun)):
        scene, _ = open_for(plan, turntable.folder, "images")
        assert scene.capture is not None
    assert open_or_find(turntable.folder, inverted.data, begun.path).views


def test_photographs_without_masks_are_known_as_they_always_were(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.jpg").write_bytes(b"one")
    (tmp_path / "sub/b ü.png").write_bytes(b"two")
    contents = sfm._Contents(tmp_path, beside=False)
    assert {contents.key(use) for use in MASK_USES} == {"421e1565dfdfee547bedb6b51f4fb972"}


@pytest.mark.parametrize("size", [(80, 60), (64, 64)])
def test_the_search_looks_exactly_where_training_looks(size: tuple[int, int], tmp_path: Path) -> None:
    """Covers every way a photograph is stored, and every kind and use of masks."""
    pixels = np.zeros(size[::-1], np.uint8)
    pixels[:21, :30] = 3
    for orientation in range(1, 9):
        for kind in ("masks/a.jpg.png", "dynamic_mask_a.png"):
            folder = tmp_path / f"{orientation} {kind[:5]}"
            tags = Image.Exif()
            tags[ORIENTATION] = orientation
            write_png(folder / kind, pixels)  # makes the folder
            Image.new("RGB", size).save(folder / "a.jpg", exif=tags)
            lay_one_out(folder / "a.jpg", laid := folder / "laid out.jpg")
            masks, header = Masks(Photographs(folder)), read_header(folder / "a.jpg")
            lens = Lens("PINHOLE", *image_size(laid), (50, 50, 30, 30))
            mask = masks.all()["a.jpg"]
            assert masks.of("a.jpg", Shot("a.jpg", lens, np.eye(4)), header, header.is_tagged) == mask
            camera = lens.camera(np.eye(4))
            view = View("a.jpg", folder / "a.jpg", camera, turned=header.is_tagged, mask=mask)
            for use in ("use", "invert"):
                wanted = read_view(view, masks=use).mask
                assert wanted is not None
                lay_mask_out(mask, use == "invert", laid, place := folder / f"{use}.png")
                with Image.open(place) as written:
                    assert written.mode == "L"
                    assert np.array_equal(np.asarray(written), np.uint8(255) * wanted), (orientation, kind, use)
            lay_mask_out(None, True, laid, place := folder / "none.png")
            assert read_image(place).min() == 255, "pycolmap leaves out a photograph without a file"
