"""Tests that the benchmark scenes are the same numbers everywhere, or report that they are not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from splatscope.app.bench.scenes import generated
from splatscope.app.bench.scenes.expected import EXPECTED, FINGERPRINTS
from splatscope.app.bench.scenes.generated import SCENE_NAMES, make_scene, scene_camera, upstream_gradient
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Gaussians

ARRAYS = ("means", "log_scales", "quats", "logit_opacities", "sh")


def wide_vectors() -> bool:
    """Returns True where NumPy's exp and log round as they did when the checksums were taken."""
    from numpy._core._multiarray_umath import __cpu_features__

    return bool(__cpu_features__.get("X86_V3") or __cpu_features__.get("AVX2"))


def assert_well_formed(gaussians: Gaussians, count: int) -> None:
    assert gaussians.count == count
    for name in ARRAYS:
        array = getattr(gaussians, name)
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        assert np.isfinite(array).all()
    np.testing.assert_allclose(np.linalg.norm(gaussians.quats, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(("name", "count"), [("S4", 100_000), ("S1", 1_593_000)])
def test_every_bit_of_a_scene_is_the_published_one(name: str, count: int) -> None:
    scene = make_scene(name)
    assert_well_formed(scene.gaussians, count)
    if not wide_vectors():
        pytest.skip("this processor rounds exp and log differently; the draws themselves were checked")
    assert scene.bits_match
    g = scene.gaussians
    arrays = {**{n: getattr(g, n) for n in ARRAYS[:4]}, "sh0": g.sh[:, :1], "sh_rest": g.sh[:, 1:]}
    assert {key: generated.fingerprint(array).crc for key, array in arrays.items()} == {
        key: expected.crc for key, expected in FINGERPRINTS[name].items()
    }


def test_the_small_scene_is_the_head_of_s4_seen_from_the_same_place() -> None:
    small, whole = make_scene("small"), make_scene("S4")
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(small.gaussians, name), getattr(whole.gaussians, name)[:20_000])
    assert_well_formed(small.gaussians, 20_000)
    camera = small.camera
    assert (camera.width, camera.height, camera.fx, camera.fy, camera.cx, camera.cy) == (320, 240, 280, 280, 160, 120)
    assert camera.view_from_world == whole.camera.view_from_world


def test_rounding_of_another_processor_is_accepted_and_named() -> None:
    plain = {**os.environ, "NPY_DISABLE_CPU_FEATURES": "X86_V3,X86_V4,AVX512_ICL,AVX512_SPR,AVX2,FMA3"}
    code = "from splatscope.app.bench.scenes.generated import make_scene; print(make_scene('S4').bits_match)"
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=plain, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() in ("True", "False")


def test_other_draws_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = generated.RECIPES["S4"]
    monkeypatch.setitem(generated.RECIPES, "S4", replace(recipe, seed=405))
    with pytest.raises(InputError, match=r"S4: \w+ has checksum \w+, expected \w+\. NumPy"):
        make_scene("S4")


def test_an_unknown_scene_lists_those_there_are() -> None:
    with pytest.raises(InputError, match="S1, S2, S3, S4, S1m, S2m, small"):
        make_scene("S5")


def test_the_upstream_gradient_is_that_of_an_l1_loss() -> None:
    gradient = upstream_gradient("small")
    assert gradient.shape == (240, 320, 3)
    assert gradient.dtype == np.float32
    assert set(np.unique(np.abs(gradient))) == {np.float32(1 / (3 * 240 * 320))}
    assert abs(gradient.sum()) < 0.01
    np.testing.assert_array_equal(gradient, upstream_gradient(scene_camera("small")))


def test_every_scene_has_its_expected_picture() -> None:
    assert set(EXPECTED) == set(SCENE_NAMES)
    assert set(FINGERPRINTS) == set(SCENE_NAMES) - {"small"}
