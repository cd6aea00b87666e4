"""Tests pieces of the blending kernels alone, on the CPU: a warp's sums, and which warps a splat may reach.

Small kernels of our own around device functions of reduce.cuh and staged.cuh. Whole stages: test_cuda_blend.py.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from splatscope.kernels.cuda.launch.compiler import Kernel, Source, read_source
from tests.support.cuda_blend import LOG2_E
from tests.support.cuda_on_cpu.run import Device, build, is_supported

needs_emulation = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

# ---- Warp sums ------------------------------------------------------------------------------------------------------

SUMS_TEXT = """#include "reduce.cuh"
enum class Way : int { butterfly, scatter, pair, deferred_pair, deferred_quad, transposed };
struct SumArgs {
    const float* terms;  // [splats][9 or 6][32]
    const float* u;      // [splats][32], the same in all lanes of a column
    float* sums;         // [splats][9]
    int* writes;         // [splats][9]
};
__device__ __forceinline__ void add(SumArgs args, const Holding& holding, const float* values) {
    for (int i = 0; i < holding.count; i++) {
        args.sums[holding.splat * 9 + holding.first + i] = values[i];
        args.writes[holding.splat * 9 + holding.first + i]++;
    }
}
template <Way W>
__global__ void __launch_bounds__(32) sums(SumArgs args) {
    constexpr int TERMS = W >= Way::deferred_pair ? 6 : 9;
    constexpr int SPLATS = W == Way::transposed ? 5 : W == Way::deferred_quad ? 4 : W >= Way::pair ? 2 : 1;
    const int lane = int(lane_index());
    float v[SPLATS][TERMS];
    for (int s = 0; s < SPLATS; s++)
        for (int i = 0; i < TERMS; i++) v[s][i] = args.terms[(s * TERMS + i) * 32 + lane];
    if constexpr (W == Way::butterfly) {
        reduce_butterfly(v[0]);
        add(args, {0, 0, lane == 0 ? 9 : 0}, v[0]);
    } else if constexpr (W == Way::scatter) {
        const float sum = reduce_scatter(v[0]);
        add(args, scatter_holding(lane), &sum);
    } else if constexpr (W == Way::pair) {
        const float sum = reduce_pair(v[0], v[1]);
        add(args, pair_holding(lane), &sum);
    } else if constexpr (W == Way::deferred_pair) {
        const Holding holding = deferred_pair_holding(lane);
        fold(v[0], v[1], 16);
        const float sum = reduce_folded_pair(v[0], args.u[(lane >> 4) * 32 + lane]);
        add(args, holding, &sum);
    } else if constexpr (W == Way::transposed) {
        __shared__ float4 quads[TRANSPOSED_FLOATS / 4];
        float* rows = reinterpret_cast<float*>(quads);
        for (int s = 0; s < SPLATS; s++) store_transposed(rows, s, v[s]);
        __syncwarp();
        // In a warp's row u is u0 − a column: both are read off two columns.
        const Holding holding = transposed_holding(lane);
        const float* u = args.u + (lane < 30 ? holding.splat : 0) * 32;
        const float3 sum = reduce_transposed(rows, u[0] - u[1], 0.5f * (u[3] + u[4]));
        const float all[3] = {sum.x, sum.y, sum.z};
        for (int i = 0; i < holding.count; i++) {
            const int at = holding.first + transposed_offset(holding.count, i);
            add(args, {holding.splat, at, 1}, all + i);
        }
    } else {
        const Holding holding = quad_holding(lane);
        fold(v[0], v[1], 16);
        fold(v[2], v[3], 16);
        const float2 sum = reduce_folded_quad(v[0], v[2], args.u[holding.splat * 32 + lane]);
        const float both[2] = {sum.x, sum.y};
        add(args, holding, both);
    }
}
"""
MAPS = ("columns_8x4", "columns_8x8")
WAYS = {"butterfly": 1, "scatter": 1, "pair": 2, "deferred_pair": 2, "deferred_quad": 4, "transposed": 5}


@cache
def sum_source() -> Source:
    return Source("sums.cuh", (*read_source("reduce.cuh").files, ("sums.cuh", SUMS_TEXT)))


@cache
def sum_kernels() -> dict[str, Kernel]:
    return build(sum_source(), [f"sums<Way::{way}>" for way in WAYS])


@needs_emulation
@pytest.mark.parametrize("way", WAYS)
def test_every_sum_of_a_warp_is_right_and_has_one_holder(way: str) -> None:
    splats, is_deferred = WAYS[way], way not in ("butterfly", "scatter", "pair")
    rng = np.random.default_rng(3)
    terms = rng.standard_normal((splats, 6 if is_deferred else 9, 32)).astype(np.float32)
    u = np.tile(rng.standard_normal((splats, 1)) - rng.uniform(0.1, 1.5, (splats, 1)) * np.arange(8), 4)
    u = u.astype(np.float32)
    wide, wide_u = terms.astype(np.float64), u[:, None].astype(np.float64)
    if is_deferred:
        m, v, vv = wide[:, :1], wide[:, 1:2], wide[:, 2:3]
        wide = np.concatenate([m, m * wide_u, v, m * wide_u**2, v * wide_u, vv, wide[:, 3:]], 1)
    device, kernel = Device(seed=2), sum_kernels()[f"sums<Way::{way}>"]
    sums = device.empty("sums", (splats, 9), np.float32)
    writes = device.upload("writes", np.zeros((splats, 9), np.int32))
    arguments = kernel.arguments.pack(
        terms=device.upload("terms", terms), u=device.upload("u", u), sums=sums, writes=writes
    )
    device.launch(kernel, (1,), (32,), arguments)
    np.testing.assert_allclose(sums, wide.sum(2), atol=2e-6 * np.abs(wide).sum(2).max())
    assert (writes == 1).all()


# ---- Which warps a splat may reach ----------------------------------------------------------------------------------

REACH_TEXT = """#include "staged_tilted.cuh"
struct ReachArgs {
    const Splat* splats;  // [n], means from the corner of the tile
    unsigned* bits;       // [n] of the warps that may be reached
    unsigned* hits;       // [n] of those that are
};
template <Map MAP, Subtile SUBTILE, Primitive PRIMITIVE>
__global__ void __launch_bounds__(threads_of(MAP)) reach(ReachArgs args) {
    constexpr int ROWS = rows_of(MAP);
    const unsigned n = blockIdx.x;
    const Splat splat = load_splat<Layout::packed48>(args.splats, 0u, n);
    const ListRange range{0, 0, 0u, 0u};
    const Aside aside{5.0f, 0.01f, 0.2f};
    const auto s = stage_for<PRIMITIVE, true>(splat, aside, 0, 0, 0u, n);
    const Spot spot = spot_of(place_in_tile<MAP>());
    const auto e = evaluate_for<PRIMITIVE, Exponential::ex2, true, ROWS>(s, spot);
    bool is_hit = e.alpha[0] >= ALPHA_MIN;
    if constexpr (ROWS == 2) is_hit |= e.alpha[1] >= ALPHA_MIN;
    if (is_hit) atomicOr(args.hits + n, 1u << warp_index());
    if (threadIdx.x == 0) args.bits[n] = warp_bits_for<PRIMITIVE, MAP, SUBTILE>(s, splat, aside, range);
}
"""


@needs_emulation
@pytest.mark.parametrize("subtile", ["aabb", "ellipse"])
@pytest.mark.parametrize("shape", ["columns_8x4", "columns_8x8"])
@pytest.mark.parametrize("primitive", ["gs3d", "gs2d", "gut3d"])
def test_no_pixel_a_splat_hits_is_hidden_from_its_warp(primitive: str, shape: str, subtile: str) -> None:
    """Covers round splats and needles, near and far, of any opacity and tilt; few bits may be set without need."""
    rng, count = np.random.default_rng(12), 4000
    sigma = np.exp(rng.uniform(np.log(0.55), np.log([[1500.0], [6.0]]), (2, count)))  # px, along and across
    angle = rng.uniform(0, np.pi, count)
    cos, sin, (along, across) = np.cos(angle), np.sin(angle), sigma**2
    xx, yy, xy = cos**2 * along + sin**2 * across, sin**2 * along + cos**2 * across, cos * sin * (along - across)
    opacity = np.exp(rng.uniform(np.log(1 / 250), 0, count))
    # A point of the rim is near or in the tile, so that much is a near miss.
    rim, radius = rng.uniform(0, 2 * np.pi, count), np.sqrt(2 * np.log(255 * opacity))
    offset = radius * np.stack([np.cos(rim), np.sin(rim)]) * sigma
    mean = rng.uniform(-4, 20, (2, count)) + np.stack(
        [cos * offset[0] - sin * offset[1], sin * offset[0] + cos * offset[1]]
    )
    splats = np.zeros((count, 12), np.float32)
    conic = 0.5 * LOG2_E / (along * across) * np.stack([-yy, 2 * xy, -xx])
    splats[:, :6] = np.stack([*mean, *conic, np.log2(opacity)], 1)
    if primitive != "gs3d":
        c = np.sqrt(-conic[2])
        a = np.sqrt(0.5 * LOG2_E / xx)
        splats[:, 2:5] = np.stack([a, -c * xy / xx, c], 1)
        size = 10 ** rng.uniform(-4, -0.5, count)  # of the tilt, in units of what would reach the camera plane
        way = rng.uniform(0, 2 * np.pi, count)
        reach = np.sqrt(np.cos(way) ** 2 * xx + 2 * np.cos(way) * np.sin(way) * xy + np.sin(way) ** 2 * yy)
        splats[:, 9:11] = (size / reach * np.stack([np.cos(way), np.sin(way)])).T
    device = Device(seed=0)
    source = Source("reach.cuh", (*read_source("staged_tilted.cuh").files, ("reach.cuh", REACH_TEXT)))
    kinds = [(m, t, p) for m in MAPS for t in ("aabb", "ellipse") for p in ("gs3d", "gs2d", "gut3d")]
    names = [f"reach<Map::{m}, Subtile::{t}, Primitive::{p}>" for m, t, p in kinds]
    kernel = build(source, names)[f"reach<Map::{shape}, Subtile::{subtile}, Primitive::{primitive}>"]
    bits, hits = (device.upload(name, np.zeros(count, np.uint32)) for name in ("bits", "hits"))
    arguments = kernel.arguments.pack(splats=device.upload("splats", splats), bits=bits, hits=hits)
    device.launch(kernel, (count,), (256 if shape == "columns_8x4" else 128,), arguments)
    assert not (hits & ~bits).any()
    set_bits, hit_bits = (sum(int(b).bit_count() for b in words) for words in (bits, hits))
    assert hit_bits > 5000
    if subtile == "ellipse":
        assert set_bits < (1.12 if primitive == "gs3d" else 1.2) * hit_bits
