"""Tests the forward CUDA stages up to the tile lists on the CPU, in many orders: against the definition and NumPy."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from splatscope.kernels import constants
from splatscope.kernels.cuda.launch.compiler import ARCHITECTURES, Source, compile_report, nvrtc_path, read_source
from splatscope.kernels.reference import picture
from splatscope.kernels.reference.tiles import keep_splats, list_tiles
from splatscope.kernels.types import Camera, Gaussians, RenderSettings
from tests.support import small_scenes
from tests.support.cuda_on_cpu.run import Device, build, is_supported
from tests.support.cuda_stages import BOUNDS, PROJECT_VARIANTS, SORT_ROLES, Lists, lists_of, padded_sh

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

VISIBLE_OVERFLOW, INSTANCE_OVERFLOW = 1, 2
NO_GAUSSIAN = 0xFFFFFFFF  # of slots whose splat is in no tile after all
LOG2_E, LOG2_ALPHA_MIN = np.float32(np.log2(np.e)), np.float32(np.log2(constants.ALPHA_MIN))


class Expected:
    """Holds the definition's results up to the tile lists."""

    def __init__(self, gaussians: Gaussians, camera: Camera, bounds: str = "row_span", degree: int = 3) -> None:
        parameters = picture.Parameters.of(gaussians)
        projected, self.skipped = picture.project(parameters, camera)
        projected = projected.rows(picture.depth_order(projected.depth))
        lists = list_tiles(*projected.footprint(), camera.tiles, bounds)
        colors = picture.evaluate_sh(parameters.rows(projected.index), camera, degree).numpy()
        listed = np.bincount(lists.splat, minlength=len(colors)) > 0
        keep = listed & np.isfinite(colors.astype(np.float32)).all(1)
        self.skipped += int((listed & ~keep).sum())
        self.projected = projected.rows(picture.torch.from_numpy(keep.nonzero()[0]))
        self.colors = colors[keep]
        self.index = self.projected.index.numpy()
        self.lists = keep_splats(lists, keep)
        self.listed = self.index[self.lists.splat]


def assert_same_lists(lists: Lists, expected: Expected) -> None:
    np.testing.assert_array_equal(lists.counts, expected.lists.counts.ravel())
    np.testing.assert_array_equal(lists.gaussians, expected.listed)
    assert lists.frame["visible"] == np.count_nonzero(lists.splats["gaussian"] != NO_GAUSSIAN) == len(expected.index)
    assert lists.frame["slots"] == lists.frame["visible_wanted"] >= lists.frame["visible"]
    assert lists.frame["instances"] == lists.frame["instances_wanted"] == len(expected.listed)
    assert lists.frame["skipped"] == expected.skipped
    assert lists.frame["overflow"] == 0


def made_scenes() -> dict[str, tuple[Gaussians, Camera]]:
    made, camera = small_scenes.hand_made(), small_scenes.random_camera()
    wide = small_scenes.random_camera(200, 40)
    return {
        "hand made": (made.gaussians, made.camera),
        "random": (small_scenes.random_scene(camera, 700, seed=1), camera),
        "degree 1, wide": (small_scenes.random_scene(wide, 300, seed=2, degree=1), wide),
    }


SCENES = made_scenes()


# ------------------------------------------------------------------------------------------- lists


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("scene", SCENES)
def test_each_tile_lists_the_splats_of_the_definition_in_its_order(scene: str, bounds: str) -> None:
    gaussians, camera = SCENES[scene]
    expected = Expected(gaussians, camera, bounds)
    for seed in range(3):
        assert_same_lists(lists_of(gaussians, camera, bounds=bounds, seed=seed), expected)


@pytest.mark.parametrize("key_bytes", [4, 8])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_wider_keys_and_one_sort_of_tile_and_depth_give_the_same_lists(bounds: str, key_bytes: int) -> None:
    gaussians, camera = SCENES["random"]
    assert_same_lists(
        lists_of(gaussians, camera, bounds=bounds, key_bytes=key_bytes, seed=7), Expected(gaussians, camera, bounds)
    )


@pytest.mark.parametrize("bounds", BOUNDS)
def test_more_than_65536_tiles_and_splats_of_thousands_of_them_are_listed(bounds: str) -> None:
    camera = small_scenes.random_camera(4128, 4112)
    assert np.prod(camera.tiles) > 1 << 16
    gaussians = small_scenes.random_scene(camera, 40, seed=3, degree=0)
    gaussians.log_scales[:3] += np.log(100.0)
    expected = Expected(gaussians, camera, bounds)
    assert np.bincount(expected.listed).max() > 5000
    lists = lists_of(gaussians, camera, bounds=bounds, key_bytes=4, instance_capacity=len(expected.listed))
    assert_same_lists(lists, expected)


def test_equal_depths_keep_the_order_of_the_scene() -> None:
    camera = small_scenes.random_camera()
    scene = small_scenes.random_scene(camera, 100, seed=4)
    gaussians = small_scenes.joined(*[small_scenes.select(scene, Expected(scene, camera).index[:1])] * 600)
    lists = lists_of(gaussians, camera)
    assert lists.frame["visible"] == 600
    for tile in np.split(lists.gaussians, np.cumsum(lists.counts)[:-1]):
        assert len(tile) == 0 or np.array_equal(tile, np.arange(600))


def test_nothing_visible_and_a_single_pixel_are_pictures_too() -> None:
    camera = small_scenes.random_camera()
    behind = small_scenes.random_scene(camera, 300)
    behind.means[:] = 2 * camera.position - behind.means
    lists = lists_of(behind, camera)
    assert (lists.frame["visible"], lists.frame["instances"], lists.frame["overflow"]) == (0, 0, 0)
    assert lists.counts.tolist() == [0] * 12
    stack, pixel = small_scenes.pixel_stack([0.5, 0.6, 0.7], [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
    assert_same_lists(lists_of(stack, pixel), Expected(stack, pixel))
    assert not lists_of(small_scenes.select(behind, []), camera).counts.any()


def test_no_pixel_that_single_precision_blends_is_outside_the_tiles_of_a_needle() -> None:
    camera = small_scenes.random_camera(512, 400)
    random = np.random.default_rng(6)
    gaussians = small_scenes.random_scene(camera, 250, seed=6, degree=0)
    gaussians.log_scales[:] = np.log(random.uniform(0.001, 0.3, (250, 3)) / camera.fx)
    gaussians.log_scales[:, 0] = np.log(random.uniform(200, 2000, 250) * 4 / camera.fx)
    lists = lists_of(gaussians, camera, instance_capacity=1 << 18)
    rows, columns = camera.tiles
    tile = np.repeat(np.arange(rows * columns), lists.counts)
    y, x = (np.mgrid[: camera.height, : camera.width] + 0.5).astype(np.float32)
    tile_of_pixel = (y // 16).astype(int) * columns + (x // 16).astype(int)
    hits = 0
    for splat in lists.splats[lists.splats["gaussian"] != NO_GAUSSIAN]:
        dx, dy = splat["x"] - x, splat["y"] - y
        exponent = (splat["a"] * dx * dx + splat["log2_opacity"]) + dy * (splat["c"] * dy + splat["b"] * dx)
        is_hit = exponent >= LOG2_ALPHA_MIN
        is_listed = np.zeros(rows * columns, bool)
        is_listed[tile[lists.gaussians == splat["gaussian"]]] = True
        assert is_listed[tile_of_pixel[is_hit]].all()
        hits += is_hit.sum()
    assert hits > 50_000


# ------------------------------------------------------------------------------------------- records


@pytest.mark.parametrize("degree", range(4))
@pytest.mark.parametrize("variant", PROJECT_VARIANTS)
def test_records_are_those_of_the_definition(variant: str, degree: int) -> None:
    gaussians, camera = SCENES["random"]
    dtype = "bf16" if "bf16" in variant else "f32"
    rounded = padded_sh(gaussians, dtype).astype(np.uint32) << 16 if dtype == "bf16" else gaussians.sh
    expected = Expected(replace(gaussians, sh=rounded.view(np.float32)), camera, degree=degree)
    order = np.argsort(expected.index)
    projected = expected.projected.rows(picture.torch.from_numpy(order))
    lists = lists_of(
        gaussians, camera, RenderSettings(sh_degree=degree), project_policy=variant, sh_dtype=dtype, seed=degree
    )
    splats = lists.splats[lists.splats["gaussian"] != NO_GAUSSIAN]
    np.testing.assert_array_equal(splats["gaussian"], projected.index)  # slots are in scene order
    conic = projected.conic.numpy()
    for name, values in {
        "x": projected.mean_px[:, 0],
        "y": projected.mean_px[:, 1],
        "a": -0.5 * LOG2_E * conic[:, 0],
        "b": -LOG2_E * conic[:, 1],
        "c": -0.5 * LOG2_E * conic[:, 2],
        "log2_opacity": np.log2(projected.opacity.numpy()),
        "tilt_x": np.zeros(len(conic)),
        "tilt_y": np.zeros(len(conic)),
        "red": np.maximum(expected.colors[order, 0], 0),
        "green": np.maximum(expected.colors[order, 1], 0),
        "blue": np.maximum(expected.colors[order, 2], 0),
    }.items():
        np.testing.assert_allclose(splats[name], values, rtol=3e-5, atol=2e-5, err_msg=name)


def lanes_of(lists: Lists) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Returns, for each 32 splats, the lanes that are visible and those that have a slot."""
    return lists.warp_slots[:, 0], lists.slot_lanes


def test_a_warps_visible_lanes_and_first_slot_lead_from_gaussian_to_slot() -> None:
    gaussians, camera = SCENES["random"]
    lists = lists_of(gaussians, camera, seed=5)
    visible, used = ((words[:, None] >> np.arange(32, dtype=np.uint32)) & 1 for words in lanes_of(lists))
    slots = lists.warp_slots[:, 1:] + np.cumsum(used, 1) - used
    visible = visible.astype(bool)
    rows = np.arange(visible.size).reshape(visible.shape)
    np.testing.assert_array_equal(lists.splats["gaussian"][slots[visible]], rows[visible])
    assert visible.sum() == lists.frame["visible"]


def test_every_order_of_blocks_and_every_frame_gives_the_same_bytes() -> None:
    gaussians, camera = SCENES["random"]
    first = lists_of(gaussians, camera, seed=0)
    for seed in range(1, 6):
        again = lists_of(gaussians, camera, seed=seed, epoch=seed + 1)
        assert again.splats.tobytes() == first.splats.tobytes()
        np.testing.assert_array_equal(again.gaussians, first.gaussians)


# ------------------------------------------------------------------------------------------- bad values and too many


@pytest.mark.parametrize("bounds", BOUNDS)
def test_values_no_splat_can_have_are_skipped_and_counted(bounds: str) -> None:
    camera = small_scenes.random_camera()
    gaussians = small_scenes.random_scene(camera, 600, seed=8)
    random = np.random.default_rng(9)
    bad = [np.nan, np.inf, -np.inf]
    for name in ("means", "log_scales", "quats", "logit_opacities", "sh"):
        values = getattr(gaussians, name).reshape(600, -1)
        rows = random.choice(600, 24, replace=False)
        values[rows, random.integers(0, values.shape[1], 24)] = random.choice(bad, 24)
    gaussians.quats[5] = 0
    gaussians.log_scales[6:30] *= 30  # exp of it leaves single precision, or is nearly 0
    expected = Expected(gaussians, camera, bounds)
    assert expected.skipped > 50
    for seed in range(2):
        assert_same_lists(lists_of(gaussians, camera, bounds=bounds, seed=seed), expected)


def test_too_many_pairs_set_the_flag_and_leave_an_empty_frame_that_says_how_many() -> None:
    gaussians, camera = SCENES["random"]
    wanted = len(Expected(gaussians, camera).listed)
    for capacity in (0, 1, 500, wanted - 1):
        lists = lists_of(gaussians, camera, instance_capacity=capacity, seed=capacity)
        assert (lists.frame["overflow"], lists.frame["instances"]) == (INSTANCE_OVERFLOW, 0)
        assert lists.frame["instances_wanted"] == wanted
        assert not lists.counts.any()
    assert lists_of(gaussians, camera, instance_capacity=wanted).frame["overflow"] == 0


def test_too_many_visible_set_the_flag_and_leave_an_empty_frame_that_says_how_many() -> None:
    gaussians, camera = SCENES["random"]
    wanted = int(lists_of(gaussians, camera).frame["slots"])
    assert wanted >= len(Expected(gaussians, camera).index)
    for capacity in (1, 300, wanted - 1):
        lists = lists_of(gaussians, camera, visible_capacity=capacity, seed=capacity)
        assert (lists.frame["overflow"], lists.frame["slots"]) == (VISIBLE_OVERFLOW, 0)
        assert lists.frame["visible_wanted"] == wanted
        assert not lists.counts.any()


# ------------------------------------------------------------------------------------------- functions and text

SH_PROBE = """
#include "sh.cuh"
struct ProbeArgs { const float* directions; const float* weights; float* basis; float* derivative; };
template <int G>
__device__ void probe_group(const ProbeArgs& args, float3 d) {
    const float* w = args.weights + threadIdx.x * 16 + 4 * G;
    const float4 basis = sh_basis<G>(d);
    const float3 derivative = sh_derivative<G>(d, make_float4(w[0], w[1], w[2], w[3]));
    float* out = args.basis + threadIdx.x * 16 + 4 * G;
    out[0] = basis.x, out[1] = basis.y, out[2] = basis.z, out[3] = basis.w;
    float* slope = args.derivative + (threadIdx.x * 4 + G) * 3;
    slope[0] = derivative.x, slope[1] = derivative.y, slope[2] = derivative.z;
}
__global__ void probe(ProbeArgs args) {
    const float* v = args.directions + 3 * threadIdx.x;
    const float3 d = make_float3(v[0], v[1], v[2]);
    probe_group<0>(args, d);
    probe_group<1>(args, d);
    probe_group<2>(args, d);
    probe_group<3>(args, d);
}
"""


def test_harmonics_and_their_derivatives_are_those_of_the_definition() -> None:
    probe = build(Source("probe.cuh", (("probe.cuh", SH_PROBE), *read_source("sh.cuh").files)), ["probe"])["probe"]
    random, torch = np.random.default_rng(11), picture.torch
    directions = random.standard_normal((32, 3)).astype(np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    weights = random.standard_normal((32, 16)).astype(np.float32)
    device = Device()
    basis, slopes = device.empty("basis", (32, 16), np.float32), device.empty("derivative", (32, 4, 3), np.float32)
    inputs = {"directions": device.upload("directions", directions), "weights": device.upload("weights", weights)}
    device.launch(probe, (1,), (32,), probe.arguments.pack(**inputs, basis=basis, derivative=slopes))
    leaf = torch.tensor(directions, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        rows = picture.sh_basis(leaf)
        for group in range(4):
            part = slice(4 * group, 4 * group + 4)
            weighted = (rows[:, part] * torch.from_numpy(weights[:, part]).double()).sum()
            (slope,) = torch.autograd.grad(weighted, leaf, retain_graph=True, materialize_grads=True)
            np.testing.assert_allclose(slopes[:, group], slope, atol=3e-6)
    np.testing.assert_allclose(basis, rows.detach(), atol=1e-6)


def test_kernels_and_python_share_the_numbers_that_define_the_picture() -> None:
    text = "\n".join(content for _, content in read_source("project.cuh").files)
    found = {name: float(value) for name, value in re.findall(r"\b([A-Z][A-Z0-9_]*) = (-?[\d.e-]+)f?[,;]", text)}
    for name in ("TILE", "DILATION", "ALPHA_CAP", "ALPHA_MIN", "TRANSMITTANCE_STOP", "SH_C0", "SH_C1"):
        assert found[name] == getattr(constants, name), name
    for name in ("SH_C2", "SH_C3"):
        assert [found[f"{name}_{k}"] for k in range(len(getattr(constants, name)))] == list(getattr(constants, name))


# What presets use, and the registers a thread may take.
PRODUCTION = {
    "project.cuh": {
        "project<ProjectPolicy{}>": 80,
        "project<ProjectPolicy{.sh_load = ShLoad::staged}>": 80,
        "project<ProjectPolicy{.sh_load = ShLoad::staged, .sh_dtype = ShDtype::bf16}>": 80,
        "project<ProjectPolicy{.filter = Filter::mip, .sh_load = ShLoad::staged}>": 80,
        "project<ProjectPolicy{.bounds = Bounds::circle3s, .sh_gate = ShGate::all, .sh_load = ShLoad::scalar}>": 80,
    },
    "bin.cuh": {
        **{name: 64 for role, name in SORT_ROLES.items() if "small" not in role},
        "offsets<OffsetsPolicy{}>": 80,
        "emit<EmitPolicy{}>": 64,
    },
    "ranges.cuh": {"ranges<RangesPolicy{}>": 64, "ranges_plan<RangesPlanPolicy{}>": 64},
}


@pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_forward_kernels_compile_for_every_architecture_without_spills(architecture: int) -> None:
    for file, registers in PRODUCTION.items():
        for name, report in compile_report(read_source(file), list(registers), architecture).items():
            assert report.spill_bytes == 0, name
            assert report.registers <= registers[name], name
