"""Tests raw captures of telephone apps: they open with the poses and lenses that the app saved."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from splatscope.assets.capture import Capture
from splatscope.assets.formats import open_capture, open_path
from splatscope.kernels.errors import InputError
from tests.assets.test_open_path import DATA, needs_data
from tests.support.odd_captures import POSE

HALF = np.sqrt(0.5)
ABOUT_X = [HALF, 0, 0, HALF]  # x, y, z, w: the turn of POSE


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30)).save(path)


def make_polycam(folder: Path, kinds: tuple[str, ...] = ("", "corrected_"), count: int = 3) -> Path:
    """Writes Polycam's raw data; cameras that are not corrected have another focal length."""
    picture(folder / "thumbnail.jpg")
    (folder / "mesh_info.json").write_text('{"alignmentTransform": [1, 0, 0, 0]}')
    for kind in kinds:
        (folder / f"keyframes/{kind}cameras").mkdir(parents=True)
        for number in range(count):
            picture(folder / f"keyframes/{kind}images/100{number}.jpg")
            entry: dict[str, Any] = {f"t_{i}{j}": POSE[i][j] for i in range(3) for j in range(4)}
            entry |= {"fx": 51 if kind else 50, "fy": 52, "cx": 19, "cy": 16, "width": 40, "height": 30}
            entry |= {"blur_score": 9.5, "timestamp": 1000 + number}
            (folder / f"keyframes/{kind}cameras/100{number}.json").write_text(json.dumps(entry))
    return folder


def make_record3d(folder: Path, metadata: str, images: str, **changes: Any) -> Path:
    """Returns three photographs, the third a hundred units away; K stands in columns."""
    for number in range(3):
        picture(folder / f"{images}/{number}.jpg")
    poses = [[*ABOUT_X, x, -5, 2] for x in (3, 4, 100)]
    content = {"K": [50, 0, 0, 0, 51, 0, 19, 16, 1], "w": 40, "h": 30, "fps": 60, "poses": poses} | changes
    (folder / metadata).write_text(json.dumps(content))
    return folder


def lens_of(capture: Capture) -> tuple[float, float, float, float]:
    camera = capture.views[0].camera
    return camera.fx, camera.fy, camera.cx, camera.cy


@pytest.mark.parametrize("inside", ["", "keyframes", "keyframes/corrected_images", "keyframes/images"])
def test_polycam_opens_with_its_corrected_photographs(tmp_path: Path, inside: str) -> None:
    opened = open_path(make_polycam(tmp_path) / inside)
    assert isinstance(opened, Capture)
    assert (opened.kind, opened.warnings) == ("polycam", ())
    assert [view.image_path.parent.name for view in opened.views] == ["corrected_images"] * 3
    assert lens_of(opened) == (51, 52, 19, 16)
    camera = opened.views[0].camera
    assert camera.position == pytest.approx([3, -5, 2])
    assert camera.matrix[2, :3] == pytest.approx([0, 1, 0])  # looks along world +y
    assert camera.matrix[1, :3] == pytest.approx([0, 0, -1])  # its y axis points down


def test_polycam_without_corrections_opens_with_the_originals(tmp_path: Path) -> None:
    capture = open_capture(make_polycam(tmp_path, kinds=("",)))
    assert lens_of(capture) == (50, 52, 19, 16)
    assert [view.image_path.parent.name for view in capture.views] == ["images"] * 3


def test_bad_and_missing_cameras_of_polycam_leave_out_their_photographs(tmp_path: Path) -> None:
    cameras = make_polycam(tmp_path, count=5) / "keyframes/corrected_cameras"
    entry = json.loads((cameras / "1001.json").read_text())
    (cameras / "1001.json").write_text(json.dumps(entry | {"t_00": 7}))
    (cameras / "1003.json").unlink()
    capture = open_capture(tmp_path)
    assert [Path(view.name).stem for view in capture.views] == ["1000", "1002", "1004"]
    bad, lost = capture.warnings
    assert bad.startswith("Left out: 1 photograph whose camera cannot be read. ")
    assert "corrected_cameras/1001.json: its matrix t_00 to t_22 is not rigid" in bad
    assert lost == "Left out: 1 photograph without a camera, for example 1003.jpg."
    for file in cameras.iterdir():
        file.write_text('{"t_00": null}')
    with pytest.raises(InputError, match=r"None of the 4 cameras in .*corrected_cameras can be read\. .*1000\.json"):
        open_path(tmp_path)


@pytest.mark.parametrize(("metadata", "images"), [("metadata.json", "rgb"), ("metadata", "rgbd")])
@pytest.mark.parametrize("inside", ["", "{images}"])
def test_record3d_opens_with_its_poses(tmp_path: Path, metadata: str, images: str, inside: str) -> None:
    opened = open_path(make_record3d(tmp_path, metadata, images) / inside.format(images=images))
    assert isinstance(opened, Capture)
    assert (opened.kind, opened.warnings, len(opened.views)) == ("record3d", (), 3)
    assert lens_of(opened) == (50, 51, 19, 16)
    camera = opened.views[0].camera
    assert camera.position == pytest.approx([3, -5, 2])
    assert camera.matrix[2, :3] == pytest.approx([0, 1, 0], abs=1e-6)


def test_record3d_may_have_a_lens_for_each_photograph_and_photographs_without_poses(tmp_path: Path) -> None:
    lenses = [[60, 61, 20, 15]] * 3
    folder = make_record3d(tmp_path, "metadata.json", "rgb", perFrameIntrinsicCoeffs=lenses)
    for name in ("10.jpg", "._0.jpg", "poster.jpg"):
        picture(folder / "rgb" / name)
    capture = open_capture(folder)
    assert lens_of(capture) == (60, 61, 20, 15)
    assert capture.warnings == ("Left out: 1 photograph without a pose, for example 10.jpg.",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"K": [1, 2]}, "metadata.json: K must be 9 numbers in rows, got 2"),
        ({"poses": []}, "metadata.json: poses must be a list of at least one pose"),
        ({"poses": [[0, 0, 0, 0, 1, 2, 3]]}, "pose 0: its quaternion has the length 0, not 1"),
        ({"poses": [[0, 0, 0, "w", 1, 2, 3]]}, "pose 0: pose must be 7 numbers in rows, got 'w'"),
    ],
)
def test_what_is_wrong_in_record3d_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        open_path(make_record3d(tmp_path, "metadata.json", "rgb", **changes))
    assert said in str(error.value)


def test_an_unpacked_r3d_file_opens(tmp_path: Path) -> None:
    folder = make_record3d(tmp_path / "made", "metadata", "rgbd")
    with zipfile.ZipFile(tmp_path / "walk.r3d", "w") as archive:
        for file in folder.rglob("*.*"):
            archive.write(file, file.relative_to(folder))
        archive.write(folder / "metadata", "metadata")
    with pytest.raises(InputError, match=r"unpack it and open the folder"):
        open_path(tmp_path / "walk.r3d")
    with zipfile.ZipFile(tmp_path / "walk.r3d") as archive:
        archive.extractall(tmp_path / "unpacked")
    assert len(open_capture(tmp_path / "unpacked").views) == 3


@needs_data
def test_the_shared_polycam_capture_has_the_cameras_of_its_transforms(tmp_path: Path) -> None:
    faults = DATA / "faults"
    polycam = open_capture(faults / "polycam-raw-folder/n21-polycam-raw")
    frames = open_capture(faults / "json-under-another-name/n10-transform_train-json")
    assert len(polycam.views) == len(frames.views) == 26
    for one, other in zip(polycam.views, frames.views, strict=True):
        np.testing.assert_allclose(one.camera.matrix, other.camera.matrix, atol=1e-12)
