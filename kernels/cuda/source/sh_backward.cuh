// Computes the gradients of harmonics and of the viewing direction from the gradient of a colour.
//
// project_backward.cuh calls this and explains sh_bwd.
#pragma once
#include "sh_words.cuh"

enum class ShBackward : int { regs, stream4, staged };

template <ShDtype D>
__device__ __forceinline__ void store_sh_quad(void* row, int i, float4 v) {
    if constexpr (IS_NARROW<D>)
        static_cast<uint2*>(row)[i] =
            make_uint2(bf16_bits(v.x) | bf16_bits(v.y) << 16, bf16_bits(v.z) | bf16_bits(v.w) << 16);
    else
        static_cast<float4*>(row)[i] = v;
}

// Stores the gradients of rows 4 group … 4 group + 3. That of row k is weight[k] times the gradient of the colour.
template <ShDtype D>
__device__ __forceinline__ void store_sh_gradient(void* gradient, int group, float4 weight, float3 c) {
    store_sh_quad<D>(gradient, 3 * group, make_float4(weight.x * c.x, weight.x * c.y, weight.x * c.z, weight.y * c.x));
    store_sh_quad<D>(gradient, 3 * group + 1,
                     make_float4(weight.y * c.y, weight.y * c.z, weight.z * c.x, weight.z * c.y));
    store_sh_quad<D>(gradient, 3 * group + 2,
                     make_float4(weight.z * c.z, weight.w * c.x, weight.w * c.y, weight.w * c.z));
}

// Passes the weights of group G to put(G, weight, by_color). Returns what the group adds to the gradient of the
// direction: Σ_k (colour gradient · row k) ∇Y_k.
template <int G, class Put>
__device__ __forceinline__ float3 finish_sh_group(Put put, const ShGroup& group, int rows, float3 direction,
                                                  float3 by_color) {
    float4 weight = make_float4(0.0f, 0.0f, 0.0f, 0.0f), pull = weight;
    if (rows > 0) {
        weight = sh_basis<G>(direction);
        pull = make_float4(dot(by_color, group.row[0]), dot(by_color, group.row[1]), dot(by_color, group.row[2]),
                           dot(by_color, group.row[3]));
        if (rows == 1) {
            weight.y = weight.z = weight.w = 0.0f;
            pull.y = pull.z = pull.w = 0.0f;
        }
    }
    put(G, weight, by_color);
    return sh_derivative<G>(direction, pull);
}

template <int G, ShDtype D>
__device__ __forceinline__ ShGroup read_sh_group(const void* row, int rows) {
    return rows ? load_sh_group<G, D, ShLoad::float4>(row) : ShGroup{};
}

// Returns the gradient of the viewing direction of a row of harmonics. Passes the weights of the row's own gradient to
// `put`, which may overwrite the row.
template <ShBackward B, ShDtype D, class Put>
__device__ __forceinline__ float3 sh_backward(const void* row, Put put, int degree, float3 direction,
                                              float3 by_color) {
    const int r0 = rows_in_use<0>(degree), r1 = rows_in_use<1>(degree), r2 = rows_in_use<2>(degree),
              r3 = rows_in_use<3>(degree);
    float3 by_direction;
    if constexpr (B == ShBackward::regs) {
        const ShGroup g0 = read_sh_group<0, D>(row, r0), g1 = read_sh_group<1, D>(row, r1),
                      g2 = read_sh_group<2, D>(row, r2), g3 = read_sh_group<3, D>(row, r3);
        by_direction = finish_sh_group<0>(put, g0, r0, direction, by_color);
        by_direction += finish_sh_group<1>(put, g1, r1, direction, by_color);
        by_direction += finish_sh_group<2>(put, g2, r2, direction, by_color);
        by_direction += finish_sh_group<3>(put, g3, r3, direction, by_color);
    } else {
        by_direction = finish_sh_group<0>(put, read_sh_group<0, D>(row, r0), r0, direction, by_color);
        by_direction += finish_sh_group<1>(put, read_sh_group<1, D>(row, r1), r1, direction, by_color);
        by_direction += finish_sh_group<2>(put, read_sh_group<2, D>(row, r2), r2, direction, by_color);
        by_direction += finish_sh_group<3>(put, read_sh_group<3, D>(row, r3), r3, direction, by_color);
    }
    return by_direction;
}

// Writes the gradients of a warp's 32 Gaussians from `first` on, 16 bytes a lane and step, skipping rows that are not
// `wanted`. `row_part(step, row)` returns what to write.
template <ShDtype D, class F>
__device__ __forceinline__ void store_sh_rows(void* sh, size_t first, size_t count, unsigned wanted, F row_part) {
    uint4* out = static_cast<uint4*>(sh) + first * SH_PARTS<D> + lane_index();
    const auto store = [&](unsigned step, unsigned row) {
        if (wanted >> row & 1u) __stcs(out + step * 32, row_part(step, row));
    };
    if (count - first >= 32)
        for_each_part<32, SH_PARTS<D>>([&](unsigned step, unsigned row, unsigned) { store(step, row); });
    else
        for_each_part<32, SH_PARTS<D>>([&](unsigned step, unsigned row, unsigned) {
            if (first + row < count) store(step, row);
        });
}
