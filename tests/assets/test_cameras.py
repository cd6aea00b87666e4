"""Tests cameras as JSON: two layouts, exact round trips, and mistakes named with their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from splatscope.assets.capture import View
from splatscope.assets.geometry.upright import guess_up
from splatscope.assets.trained.cameras import read_camera, read_cameras_json, write_camera, write_cameras_json
from splatscope.kernels.constants import NEAR
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera


def a_camera(seed: int, cx: float = 400, cy: float = 300, near: float = NEAR) -> Camera:
    view_from_world = np.eye(4)
    view_from_world[:3, :3] = Rotation.from_rotvec([seed, 1, 0.5]).as_matrix()
    view_from_world[:3, 3] = np.random.default_rng(seed).normal(size=3)
    return Camera.from_matrix(view_from_world, 800, 600, 501.5, 502.5, cx, cy, near)


def save(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def own_entry(**changes: Any) -> dict[str, Any]:
    camera = a_camera(0)
    names = ("width", "height", "fx", "fy", "cx", "cy", "view_from_world")
    return {name: getattr(camera, name) for name in names} | changes


def test_a_written_camera_reads_back_equal(tmp_path: Path) -> None:
    camera = a_camera(1, cx=390.25, cy=310.75, near=0.2)
    write_camera(tmp_path / "a.json", camera)
    assert read_camera(tmp_path / "a.json") == camera


def test_near_may_be_left_out(tmp_path: Path) -> None:
    assert read_camera(save(tmp_path / "a.json", own_entry())).near == NEAR


def test_a_models_cameras_read_back_to_rounding(tmp_path: Path) -> None:
    views = [View(f"sub/ü {i}.jpg", Path("x"), a_camera(i, cx=400 + 5 * (i == 2))) for i in range(3)]
    write_cameras_json(tmp_path / "cameras.json", views)
    named = read_cameras_json(tmp_path / "cameras.json")
    assert [name for name, _ in named] == [view.name for view in views]
    for (_, camera), view in zip(named, views, strict=True):
        np.testing.assert_allclose(camera.matrix, view.camera.matrix, atol=1e-14)
        assert camera.cx == view.camera.cx
    assert read_camera(tmp_path / "cameras.json") == named[0][1]
    assert read_camera(tmp_path / "cameras.json", "sub/ü 1.jpg") == named[1][1]
    with pytest.raises(InputError, match=r"no camera named 'z'; it has 3, for example sub/ü 0\.jpg"):
        read_camera(tmp_path / "cameras.json", "z")


def test_a_models_entry_places_the_camera_where_it_says(tmp_path: Path) -> None:
    turned = Rotation.from_euler("y", 90, degrees=True).as_matrix()  # the camera looks along world +x
    entry = {"id": 0, "img_name": "a", "width": 640, "height": 480, "position": [1, 2, 3], "rotation": turned.tolist()}
    camera = read_camera(save(tmp_path / "a.json", entry | {"fx": 500, "fy": 510}))
    np.testing.assert_allclose(camera.position, [1, 2, 3])
    np.testing.assert_allclose(camera.matrix @ [6, 2, 3, 1], [0, 0, 5, 1], atol=1e-12)
    assert (camera.cx, camera.cy, camera.fx, camera.fy) == (320, 240, 500, 510)


MIRROR = np.diag([-1.0, 1, 1, 1]).tolist()
SHEAR = (np.eye(4) + np.diag([0.05], 3) + np.array([[0, 0.1, 0, 0]] + [[0.0] * 4] * 3)).tolist()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "lacks width, height, fx, fy, cx, cy, view_from_world"),
        ({k: v for k, v in own_entry().items() if k != "cy"}, "lacks cy"),
        ({"rotation": np.eye(3).tolist(), "width": 8, "height": 8}, "lacks position, fx, fy"),
        (own_entry(fx=float("nan")), "fx must be a finite number above 0, got nan"),
        (own_entry(fy=0), "fy must be a finite number above 0, got 0"),
        (own_entry(cx="400"), "cx must be a finite number, got '400'"),
        (own_entry(near=-1), "near must be"),
        (own_entry(width=0), "width must be a whole number of pixels from 1 to 16384, got 0"),
        (own_entry(height=10**400), "height must be a whole number"),
        (own_entry(width=True), "width must be a whole number"),
        (own_entry(width=99999), "got 99999"),
        (own_entry(view_from_world=[[1, 0], [0, 1]]), "view_from_world must be 4 x 4 numbers"),
        (own_entry(view_from_world=[[1, 2, 3, 4], [1], [], 5]), "view_from_world must be 4 x 4 numbers"),
        (own_entry(view_from_world=None), "view_from_world must be 4 x 4 numbers"),
        (own_entry(view_from_world=[[float("inf")] * 4] * 4), "not finite"),
        (own_entry(view_from_world=np.diag([2.0, 2, 2, 1]).tolist()), "lengths 2, 2, 2"),
        (own_entry(view_from_world=MIRROR), "mirrors the scene"),
        (own_entry(view_from_world=SHEAR), "axes are not at right angles|lengths 1, 1.005, 1"),
        (own_entry(view_from_world=a_camera(1).matrix.T.tolist()), "last row .* transposed"),
        ([], "empty list"),
        ([own_entry(), 5], "entry 1 must be an object"),
        ("hello", "must be an object"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, content: Any, said: str) -> None:
    path = save(tmp_path / "a.json", content)
    with pytest.raises(InputError, match=said) as error:
        read_camera(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00", b"", b"[" * 100_000, b'{"width": 1' + b"0" * 5000 + b"}"])
def test_files_that_are_no_json_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError):
        read_camera(tmp_path / "a.json")
    with pytest.raises(InputError, match="does not exist"):
        read_camera(tmp_path / "b.json")


def test_up_is_where_the_cameras_agree() -> None:
    assert guess_up([]) == ((0.0, -1.0, 0.0), 0.0)
    upright = Rotation.from_euler("x", -90, degrees=True)  # world z becomes -y of the camera
    level = [Rotation.from_euler("y", turn, degrees=True) * upright for turn in (0, 70, 200)]
    up, confidence = guess_up(Camera.from_matrix(as_rigid(r), 8, 8, 9, 9, 4, 4) for r in level)
    assert confidence > 0.99
    np.testing.assert_allclose(up, [0, 0, -1] if level[0].apply([0, 0, 1])[1] > 0 else [0, 0, 1], atol=1e-12)
    opposed = [np.eye(4), np.diag([-1.0, -1, 1, 1])]
    assert guess_up(Camera.from_matrix(m, 8, 8, 9, 9, 4, 4) for m in opposed) == ((0.0, -1.0, 0.0), 0.0)


def as_rigid(rotation: Rotation) -> np.ndarray:
    matrix = np.eye(4)
    matrix[:3, :3] = rotation.as_matrix()
    return matrix
