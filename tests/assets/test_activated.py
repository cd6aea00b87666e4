"""Tests files that hold scales and opacities without log and logit: recognised, named, and read as asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splatscope.app.main import main
from splatscope.app.opening.scene import open_scene
from splatscope.app.options.subcommands import TrainOptions
from splatscope.app.run.from_options import plan_training
from splatscope.assets.formats import read_splat_file
from splatscope.assets.splats.activated import Activated
from splatscope.assets.splats.ply import read_ply, write_ply
from splatscope.assets.splats.read_as import ReadAs
from splatscope.kernels.errors import InputError
from splatscope.kernels.primitive import FLAT_LOG_SCALE
from splatscope.kernels.types import Gaussians
from tests.support.places import DATA

SPLATS = DATA / "splats"
COUNT = 120


def raw_splats(count: int = COUNT) -> Gaussians:
    """Returns splats as training leaves them, in a scene of a few units."""
    rng = np.random.default_rng(1)
    means, quats = rng.normal(0, 2, (count, 3)), rng.normal(size=(count, 4))
    values = (means, rng.normal(-4, 1, (count, 3)), quats, rng.normal(0, 3, count), rng.normal(size=(count, 1, 3)))
    return Gaussians(*(value.astype(np.float32) for value in values))


def activated(splats: Gaussians, which: str = "both") -> Gaussians:
    """Returns the same splats as they are stored without logarithms or logits."""
    if which in ("both", "scales"):
        splats = replace(splats, log_scales=np.exp(splats.log_scales))
    if which in ("both", "opacities"):
        splats = replace(splats, logit_opacities=1 / (1 + np.exp(-splats.logit_opacities)))
    return splats


def assert_close(found: Gaussians, expected: Gaussians) -> None:
    np.testing.assert_allclose(found.log_scales, expected.log_scales, atol=1e-5)
    np.testing.assert_allclose(found.logit_opacities, expected.logit_opacities, atol=1e-3)


@pytest.mark.parametrize("text", [True, False])
def test_activated_values_are_recognised_read_as_such_and_told_with_the_option(tmp_path: Path, text: bool) -> None:
    path, raw = tmp_path / "a.ply", raw_splats()
    write_ply(path, activated(raw), text=text)
    opened = read_splat_file(path)
    assert_close(opened.gaussians, raw)
    assert opened.reading.startswith("Read as scales and opacities, not as logarithms and logits: ")
    assert opened.reading.endswith("--activated none reads the file as usual.")
    assert open_scene(path).info.warnings == opened.warnings == (opened.reading,)
    assert read_splat_file(path, ReadAs("none")).warnings == ()
    np.testing.assert_array_equal(read_splat_file(path, ReadAs("none")).gaussians.log_scales, activated(raw).log_scales)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (activated(raw_splats(), "opacities"), "open the file with --activated opacities"),
        (activated(raw_splats(), "scales"), "open the file with --activated scales"),
        (raw_splats(), ""),
        (activated(raw_splats(50)), "open the file with --activated both"),  # so few may lie within a range by chance
        (replace(raw_splats(), logit_opacities=np.zeros(COUNT, np.float32)), ""),  # what a writer fills in
        # A scene in millimetres: all splats are larger than a unit, and small for the scene.
        (replace(raw_splats(), means=1000 * raw_splats().means, log_scales=raw_splats().log_scales % 2 + 1), ""),
    ],
    ids=["opacities", "scales", "raw", "few", "zeros", "millimetres"],
)
def test_one_sign_alone_is_told_and_changes_nothing(tmp_path: Path, stored: Gaussians, said: str) -> None:
    path = tmp_path / "a.ply"
    write_ply(path, stored)
    opened = read_splat_file(path)
    np.testing.assert_array_equal(opened.gaussians.log_scales, stored.log_scales)
    np.testing.assert_array_equal(opened.gaussians.logit_opacities, stored.logit_opacities)
    assert said in opened.reading
    assert bool(said) == bool(opened.reading)


@pytest.mark.parametrize("which", ["both", "scales", "opacities"])
def test_the_option_reads_any_file_as_it_says_or_says_that_it_cannot_be(tmp_path: Path, which: Activated) -> None:
    path, raw = tmp_path / "a.ply", raw_splats(5)
    write_ply(path, activated(raw, which))
    opened = read_splat_file(path, ReadAs(which))
    assert_close(opened.gaussians, raw)
    assert opened.warnings == ()
    write_ply(path, raw)
    with pytest.raises(InputError, match=f"--activated {which} does not fit it"):
        read_splat_file(path, ReadAs(which))


@pytest.mark.parametrize("count", [COUNT, 50])
def test_activated_disks_are_read_like_activated_gaussians(tmp_path: Path, count: int) -> None:
    raw = replace(raw_splats(count), primitive="2dgs")
    raw.log_scales[:, 2] = FLAT_LOG_SCALE
    write_ply(tmp_path / "a.ply", activated(raw))
    usual = read_splat_file(tmp_path / "a.ply")
    assert ("Read as scales and opacities" in usual.reading) == (count == COUNT)
    asked = read_splat_file(tmp_path / "a.ply", ReadAs("both")).gaussians
    np.testing.assert_allclose(asked.log_scales, raw.log_scales, atol=1e-6)


def test_a_rounded_end_of_the_range_does_not_hide_activated_values(tmp_path: Path) -> None:
    stored = activated(raw_splats())
    stored.logit_opacities[3], stored.log_scales[5, 1] = 1.0000001, -1e-9
    write_ply(tmp_path / "a.ply", stored)
    assert "Read as scales and opacities" in read_splat_file(tmp_path / "a.ply").warnings[0]


def test_opacities_and_scales_at_their_ends_stay_finite(tmp_path: Path) -> None:
    stored = activated(raw_splats())
    stored.logit_opacities[:2], stored.log_scales[0] = (0, 1), 0
    write_ply(tmp_path / "a.ply", stored)
    opened = read_splat_file(tmp_path / "a.ply")
    assert np.isfinite(opened.gaussians.logit_opacities).all()
    assert np.isfinite(opened.gaussians.log_scales).all()
    assert 1 / (1 + np.exp(-opened.gaussians.logit_opacities[:2].astype(float))) == pytest.approx([0, 1], abs=1e-7)


def test_converting_writes_the_usual_values_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    source, target, raw = tmp_path / "a.ply", tmp_path / "b.ply", raw_splats()
    write_ply(source, activated(raw))
    main(["convert", str(source), str(target)])
    assert "warning: Read as scales and opacities" in capsys.readouterr().err
    assert_close(read_ply(target), raw)
    main(["convert", str(source), str(target), "--overwrite", "--activated", "none"])
    assert capsys.readouterr().err == ""
    np.testing.assert_array_equal(read_ply(target).logit_opacities, activated(raw).logit_opacities)


def test_a_run_begins_with_raw_values_and_tells_so(tmp_path: Path) -> None:
    path, raw = tmp_path / "a.ply", raw_splats()
    write_ply(path, activated(raw))
    begin = plan_training(TrainOptions(dataset=tmp_path, resume=path)).begin
    assert begin is not None
    assert begin.splats is not None
    assert_close(begin.splats, raw)
    assert begin.changes == (read_splat_file(path).reading,)
    with pytest.raises(InputError, match=r"--activated says how a .ply given to --resume is read, and there is none"):
        plan_training(TrainOptions(dataset=tmp_path, activated="both"))


@pytest.mark.skipif(not SPLATS.exists(), reason="the shared test data is not here")
@pytest.mark.parametrize("name", ["biker-ply-sh0", "inria-9k"])
def test_real_splats_are_taken_for_what_they_are(tmp_path: Path, name: str) -> None:
    path = next((SPLATS / name).rglob("*.ply"))
    raw = read_splat_file(path)
    assert raw.reading == ""
    write_ply(tmp_path / "a.ply", activated(raw.gaussians))
    assert "not as logarithms and logits" in read_splat_file(tmp_path / "a.ply").reading
