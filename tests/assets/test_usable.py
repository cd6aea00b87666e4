"""Tests splats that no picture can show: counted once, when a file is opened, as renderers count them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from splatscope.app.main import main
from splatscope.assets.formats import SplatFile, open_path
from splatscope.assets.splats.ply import read_ply, write_ply
from splatscope.assets.splats.usable import trainable_rows, usable_rows
from splatscope.kernels.backend import BackendName
from splatscope.kernels.backends import make_backend
from splatscope.kernels.types import Camera, Gaussians, RenderSettings

ROWS = 20
CAMERA = Camera.from_matrix(np.eye(4), 64, 48, 60, 60, 32, 24)


def seen_splats() -> Gaussians:
    """Returns twenty splats of degree 1 in front of the camera."""
    rng = np.random.default_rng(4)
    shapes = {"means": (3,), "log_scales": (3,), "quats": (4,), "logit_opacities": (), "sh": (4, 3)}
    values = {name: rng.uniform(-0.5, 0.5, (ROWS, *shape)).astype(np.float32) for name, shape in shapes.items()}
    values["means"][:, 2] += 3
    values["log_scales"] -= 2
    return Gaussians(*values.values())


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_rows_counted_are_those_that_pictures_skip(backend: BackendName, bad: float) -> None:
    splats = seen_splats()
    for row, array in enumerate(splats.arrays.values()):
        array.reshape(ROWS, -1)[row, -1] = bad  # an infinite opacity logit is an opacity of 0 or 1
    splats.quats[10] = 0
    splats.quats[11] = 1e-30  # short, yet a rotation
    splats.log_scales[12, 0] = 100  # e^100 is no float32
    splats.log_scales[13] = -100  # thin, yet a splat
    frame = make_backend(backend).render(splats, CAMERA, RenderSettings())
    unusable = np.flatnonzero(~usable_rows(splats)).tolist()
    assert unusable == [0, 1, 2, *([3] if np.isnan(bad) else []), 4, 10, 12]
    assert frame.skipped == len(unusable)


def test_numbers_whose_squares_overflow_are_of_no_use_to_training() -> None:
    splats = seen_splats()
    splats.sh[3, 0, 0], splats.means[5, 1], splats.sh[7, 0, 0] = 1e38, -1e30, 1e18
    assert np.flatnonzero(~trainable_rows(splats)).tolist() == [3, 5]
    assert usable_rows(splats).all()  # a picture needs no squares: what it shows is not called unusable


def test_opening_says_how_many_and_where_and_converting_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    splats = seen_splats()
    splats.means[4, 0], splats.quats[9], splats.log_scales[7:9, 1] = np.nan, 0, (90, 1000)
    path, target = tmp_path / "odd.ply", tmp_path / "kept.ply"
    write_ply(path, splats)
    opened = open_path(path)
    assert isinstance(opened, SplatFile)
    reasons = "1 with a number that is not finite, 2 with a number too large for single precision, 1 without a rotation"
    why = f"{reasons} (the first in row 4, counted from 0)"
    assert opened.warnings == (f"Not usable: 4 splats of {path}: {why}.",)
    main(["convert", str(path), str(target)])
    assert f"warning: Not usable, but kept: 4 splats of {target}: {why}." in capsys.readouterr().err
    assert read_ply(target).count == ROWS


def test_what_is_said_of_splats_agrees_with_the_picture(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    splats = seen_splats()
    path, picture = tmp_path / "a.ply", tmp_path / "a.png"

    def said() -> str:
        write_ply(path, splats)
        main(["render", str(path), "--out", str(picture), "--backend", "cpu", "--size", "64x48"])
        return " ".join(capfd.readouterr())

    splats.means[0] = (1e38, -np.inf, 0)
    assert f"Not usable: 1 splat of {path} with a number that is not finite (the first in row 0" in said()
    splats.means[:] = 1e37 * seen_splats().means
    text = said()
    assert f" of {ROWS} splats visible" in text
    assert "Warning" not in text  # NumPy's remarks on such numbers
    assert "not finite" not in text
    splats.means[:] = seen_splats().means
    splats.log_scales[:] = 27.6  # finite, and so are scales of e^27.6
    text = said()
    assert f"{ROWS} skipped: too large to be drawn from this view." in text
    assert "not finite" not in text
