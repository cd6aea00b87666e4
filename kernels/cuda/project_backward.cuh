// From the nine sums of each visible splat to the gradients of its raw parameters.
//
// 128 threads a block, a thread a Gaussian, or with by_slot a thread a slot of the capacity; no shared memory. A
// thread finds its Gaussian's slot by the pair that projection left for its warp, and runs the chain rule back through
// project.cuh, with the exact derivative of the clamp inside the Jacobian. It sets the sums that it has read, and
// their mark, to 0 again, so that the next backward pass finds them clean: the host clears them once, when it
// allocates them. Gradients of Gaussians without sums: `zero` says who writes them. Read project.cuh beside this.
//
// sh_bwd: stream4 takes the 48 harmonics through 12 registers, a group of four at a time; regs loads all of them
// first. sh_dtype: how harmonics are read and their gradients stored; bf16 rounds to nearest even.
#pragma once
#include "frame.cuh"
#include "reduce.cuh"
#include "sh.cuh"

enum class ShBackward : int { regs, stream4 };
enum class Zero : int {
    memset,  // the host clears the gradients beforehand
    coop,    // this kernel: a warp together the harmonics, a thread the rest
};

struct ProjectBackwardPolicy {
    ShBackward sh_bwd = ShBackward::stream4;
    Zero zero = Zero::coop;
    ShDtype sh_dtype = ShDtype::f32;
    bool touched = true;        // only splats that the backward pass has marked have sums
    bool deterministic = false;  // sums are integers
    bool by_slot = false;       // a thread a visible slot
};

constexpr int PROJECT_BACKWARD_THREADS = 128;

struct ProjectBackwardArgs {
    const Frame* frame;
    const float* __restrict__ means;            // [N, 3]
    const float* __restrict__ log_scales;       // [N, 3]
    const float4* __restrict__ quats;           // [N]
    const float* __restrict__ logit_opacities;  // [N]
    const void* __restrict__ sh;                // [N, 16, 3]
    const Splat* __restrict__ splats;           // [V]
    const uint2* __restrict__ warp_slots;       // [ceil(N / 32)] visible lanes, slot of the first of them
    float* sums;                                // [V, 12] in the order of `Moment`; left at 0
    long long* integer_sums;                    // [V, 12] deterministic: in place of sums; left at 0
    float integer_scale;                        // deterministic: as in blend_backward
    unsigned char* touched;                     // [V] if wanted; left at 0
    float* means_gradient;                      // [N, 3] out, like the others below
    float* log_scales_gradient;                 // [N, 3]
    float4* quats_gradient;                     // [N]
    float* logit_opacities_gradient;            // [N]
    void* sh_gradient;                          // [N, 16, 3] in sh_dtype, 16-byte aligned
    float2* means2d_gradient;                   // [N] dL/d(projected mean), per px
};

// ---- Sums -----------------------------------------------------------------------------------------------------------

struct Sums {
    float of[12];
};
// Reads the sums of a slot and leaves zeros.
template <bool DETERMINISTIC>
__device__ __forceinline__ Sums take_sums(const ProjectBackwardArgs& args, unsigned slot) {
    Sums sums;
    if constexpr (DETERMINISTIC) {
        long long* row = args.integer_sums + size_t(slot) * 12;
        const float unit = 1.0f / args.integer_scale;
#pragma unroll
        for (int i = 0; i < MOMENTS; i++) sums.of[i] = float(row[i]) * unit, row[i] = 0;
    } else {
        float4* row = reinterpret_cast<float4*>(args.sums + size_t(slot) * 12);
        const float4 a = row[0], b = row[1], c = row[2];
        const float4 zeros = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        row[0] = zeros, row[1] = zeros, row[2] = zeros;
        sums = {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w}};
    }
    return sums;
}

// ---- Harmonics ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned bf16_bits(float x) {
    const unsigned bits = __float_as_uint(x);
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
template <ShDtype D>
__device__ __forceinline__ void store_sh_quad(void* sh, size_t splat, int i, float4 v) {
    if constexpr (D == ShDtype::bf16) {
        uint2* row = reinterpret_cast<uint2*>(static_cast<unsigned short*>(sh) + splat * SH_ROW);
        row[i] = make_uint2(bf16_bits(v.x) | bf16_bits(v.y) << 16, bf16_bits(v.z) | bf16_bits(v.w) << 16);
    } else {
        reinterpret_cast<::float4*>(static_cast<float*>(sh) + splat * SH_ROW)[i] = v;
    }
}

// Stores the gradient of group G, weight[k] times that of the colour in row k, and returns Σ_k (colour gradient ·
// row k) ∇Y_k, what the group adds to the gradient of the direction.
template <int G, ShDtype D>
__device__ __forceinline__ float3 finish_sh_group(const ProjectBackwardArgs& args, size_t n, const ShGroup& group,
                                                  int rows, float3 direction, float3 by_color) {
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
    const float3 c = by_color;
    store_sh_quad<D>(args.sh_gradient, n, 3 * G,
                     make_float4(weight.x * c.x, weight.x * c.y, weight.x * c.z, weight.y * c.x));
    store_sh_quad<D>(args.sh_gradient, n, 3 * G + 1,
                     make_float4(weight.y * c.y, weight.y * c.z, weight.z * c.x, weight.z * c.y));
    store_sh_quad<D>(args.sh_gradient, n, 3 * G + 2,
                     make_float4(weight.z * c.z, weight.w * c.x, weight.w * c.y, weight.w * c.z));
    return sh_derivative<G>(direction, pull);
}

template <int G, ShDtype D>
__device__ __forceinline__ ShGroup read_sh_group(const ProjectBackwardArgs& args, size_t n, int rows) {
    return rows ? load_sh_group<G, D, ShLoad::float4>(args.sh, n) : ShGroup{};
}

// Gradients of a Gaussian's harmonics, and that of the direction it is seen in.
template <ProjectBackwardPolicy P>
__device__ __forceinline__ float3 sh_backward(const ProjectBackwardArgs& args, size_t n, int degree, float3 direction,
                                              float3 by_color) {
    constexpr ShDtype D = P.sh_dtype;
    const int r0 = rows_in_use<0>(degree), r1 = rows_in_use<1>(degree), r2 = rows_in_use<2>(degree),
              r3 = rows_in_use<3>(degree);
    float3 by_direction;
    if constexpr (P.sh_bwd == ShBackward::regs) {
        const ShGroup g0 = read_sh_group<0, D>(args, n, r0), g1 = read_sh_group<1, D>(args, n, r1),
                      g2 = read_sh_group<2, D>(args, n, r2), g3 = read_sh_group<3, D>(args, n, r3);
        by_direction = finish_sh_group<0, D>(args, n, g0, r0, direction, by_color);
        by_direction += finish_sh_group<1, D>(args, n, g1, r1, direction, by_color);
        by_direction += finish_sh_group<2, D>(args, n, g2, r2, direction, by_color);
        by_direction += finish_sh_group<3, D>(args, n, g3, r3, direction, by_color);
    } else {
        by_direction = finish_sh_group<0, D>(args, n, read_sh_group<0, D>(args, n, r0), r0, direction, by_color);
        by_direction += finish_sh_group<1, D>(args, n, read_sh_group<1, D>(args, n, r1), r1, direction, by_color);
        by_direction += finish_sh_group<2, D>(args, n, read_sh_group<2, D>(args, n, r2), r2, direction, by_color);
        by_direction += finish_sh_group<3, D>(args, n, read_sh_group<3, D>(args, n, r3), r3, direction, by_color);
    }
    return by_direction;
}

// A warp's 32 rows of harmonics lie next to each other: 16 bytes a lane and step, past the rows named in `active`.
template <ShDtype D>
__device__ __forceinline__ void clear_sh_rows(void* sh, size_t first, size_t count, unsigned active) {
    constexpr unsigned PARTS = D == ShDtype::bf16 ? 6 : 12;  // of 16 bytes, a row
    uint4* rows = static_cast<uint4*>(sh) + first * PARTS;
#pragma unroll
    for (unsigned step = 0; step < PARTS; step++) {
        const unsigned part = step * 32u + lane_index(), row = part / PARTS;
        if (first + row < count && !(active >> row & 1u)) rows[part] = make_uint4(0u, 0u, 0u, 0u);
    }
}

// ---- Geometry -------------------------------------------------------------------------------------------------------

// Rotation of a quaternion of any length but zero, column by column, and what its gradient needs.
struct Turned {
    float w, x, y, z, inverse_length;
    float3 column[3];
};
__device__ __forceinline__ Turned turned(float4 q) {
    const float shrink = 1.0f / fmaxf(fmaxf(fabsf(q.x), fabsf(q.y)), fmaxf(fabsf(q.z), fabsf(q.w)));
    float w = q.x * shrink, x = q.y * shrink, y = q.z * shrink, z = q.w * shrink;
    const float inverse = rsqrtf(w * w + x * x + y * y + z * z);
    w *= inverse, x *= inverse, y *= inverse, z *= inverse;
    return {w, x, y, z, shrink * inverse,
            {make_float3(1.0f - 2.0f * (y * y + z * z), 2.0f * (x * y + w * z), 2.0f * (x * z - w * y)),
             make_float3(2.0f * (x * y - w * z), 1.0f - 2.0f * (x * x + z * z), 2.0f * (y * z + w * x)),
             make_float3(2.0f * (x * z + w * y), 2.0f * (y * z - w * x), 1.0f - 2.0f * (x * x + y * y))}};
}

// From the gradients of the columns: through the matrix, then through the division by the length.
__device__ __forceinline__ float4 quat_gradient(const Turned& q, const float3 (&by_column)[3]) {
    const float3 a = by_column[0], b = by_column[1], c = by_column[2];
    const float w = q.w, x = q.x, y = q.y, z = q.z;
    const float gw = 2.0f * (x * (b.z - c.y) + y * (c.x - a.z) + z * (a.y - b.x));
    const float gx = 2.0f * (y * (a.y + b.x) + z * (a.z + c.x) + w * (b.z - c.y) - 2.0f * x * (b.y + c.z));
    const float gy = 2.0f * (x * (a.y + b.x) + z * (b.z + c.y) + w * (c.x - a.z) - 2.0f * y * (a.x + c.z));
    const float gz = 2.0f * (x * (a.z + c.x) + y * (b.z + c.y) + w * (a.y - b.x) - 2.0f * z * (a.x + b.y));
    const float along = gw * w + gx * x + gy * y + gz * z;
    return make_float4((gw - w * along) * q.inverse_length, (gx - x * along) * q.inverse_length,
                       (gy - y * along) * q.inverse_length, (gz - z * along) * q.inverse_length);
}

// With W = [[a, 0], [b, c]] of blend.cuh, (u, v) = W d, and M the moments of (u, v): dL/dmean = −2 ln 2 Wᵀ (Σ g u,
// Σ g v) and dL/dcovariance = 2 ln² 2 Wᵀ M W, a symmetric matrix. Nothing is inverted and nothing cancels.
struct ImageGradient {
    float x, y;        // of the projected mean
    float xx, xy, yy;  // of the covariance
};
__device__ __forceinline__ ImageGradient image_gradient(const Sums& sums, float xx, float xy, float determinant) {
    const float c_squared = 0.5f * LOG2_E * xx / determinant, inverse_xx = 1.0f / xx;
    const float c = sqrtf(c_squared), a = sqrtf(0.5f * LOG2_E * inverse_xx), b = -c * xy * inverse_xx;
    const float* m = sums.of;
    const float scale = 2.0f * LN_2 * LN_2;
    const float by_u = a * m[M_UU] + b * m[M_UV], by_v = a * m[M_UV] + b * m[M_VV];
    return {-2.0f * LN_2 * (a * m[M_U] + b * m[M_V]), -2.0f * LN_2 * (c * m[M_V]), scale * (a * by_u + b * by_v),
            scale * c * by_v, scale * c * c * m[M_VV]};
}

__device__ __forceinline__ float3 load_float3(const float* values, size_t n) {
    return make_float3(values[3 * n], values[3 * n + 1], values[3 * n + 2]);
}
__device__ __forceinline__ void store_float3(float* values, size_t n, float3 v) {
    values[3 * n] = v.x, values[3 * n + 1] = v.y, values[3 * n + 2] = v.z;
}

// Everything but the harmonics. `by_direction` is the gradient of the offset from the camera through the colour.
__device__ __forceinline__ void geometry_backward(const ProjectBackwardArgs& args, size_t n, const Sums& sums,
                                                  float3 offset, float3 by_direction) {
    const Frame& frame = *args.frame;
    const float* r = frame.rotation;
    const float3 rx = make_float3(r[0], r[1], r[2]), ry = make_float3(r[3], r[4], r[5]);
    const float3 rz = make_float3(r[6], r[7], r[8]);
    const float inverse_z = 1.0f / dot(rz, offset);
    const float ratio_x = dot(rx, offset) * inverse_z, ratio_y = dot(ry, offset) * inverse_z;
    const float held_x = clamped(ratio_x, frame.held_left, frame.held_right);
    const float held_y = clamped(ratio_y, frame.held_top, frame.held_bottom);
    const float3 jx = frame.fx * inverse_z * add_scaled(rx, -held_x, rz);
    const float3 jy = frame.fy * inverse_z * add_scaled(ry, -held_y, rz);
    const Turned rotation = turned(args.quats[n]);
    const float3 log_scales = load_float3(args.log_scales, n);
    const float scales[3] = {expf(log_scales.x), expf(log_scales.y), expf(log_scales.z)};

    // The splat's axes on the image, in px; covariance = axes axesᵀ + dilation, whose determinant is a sum of squares.
    float ax[3], ay[3];
#pragma unroll
    for (int k = 0; k < 3; k++) {
        ax[k] = scales[k] * dot(jx, rotation.column[k]);
        ay[k] = scales[k] * dot(jy, rotation.column[k]);
    }
    const float xx = ax[0] * ax[0] + ax[1] * ax[1] + ax[2] * ax[2], yy = ay[0] * ay[0] + ay[1] * ay[1] + ay[2] * ay[2];
    const float xy = ax[0] * ay[0] + ax[1] * ay[1] + ax[2] * ay[2];
    const float3 area = make_float3(difference_of_products(ax[1], ay[2], ax[2], ay[1]),
                                    difference_of_products(ax[2], ay[0], ax[0], ay[2]),
                                    difference_of_products(ax[0], ay[1], ax[1], ay[0]));
    const float determinant = dot(area, area) + (DILATION * (xx + yy) + DILATION * DILATION);
    const ImageGradient image = image_gradient(sums, xx + DILATION, xy, determinant);

    float by_log_scale[3];
    float3 by_column[3], by_jx = make_float3(0.0f, 0.0f, 0.0f), by_jy = by_jx;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const float by_ax = 2.0f * (image.xx * ax[k] + image.xy * ay[k]);
        const float by_ay = 2.0f * (image.xy * ax[k] + image.yy * ay[k]);
        by_log_scale[k] = by_ax * ax[k] + by_ay * ay[k];
        by_column[k] = scales[k] * (by_ax * jx + by_ay * jy);
        by_jx = add_scaled(by_jx, scales[k] * by_ax, rotation.column[k]);
        by_jy = add_scaled(by_jy, scales[k] * by_ay, rotation.column[k]);
    }

    // Rows of the Jacobian are focal / z (row of the camera − held ratio × its depth row). A held ratio does not move.
    const float by_depth = dot(by_jx, jx) + dot(by_jy, jy);
    const bool is_free_x = held_x == ratio_x, is_free_y = held_y == ratio_y;
    const float by_ratio_x = frame.fx * (image.x - (is_free_x ? dot(by_jx, rz) * inverse_z : 0.0f));
    const float by_ratio_y = frame.fy * (image.y - (is_free_y ? dot(by_jy, rz) * inverse_z : 0.0f));
    const float by_z = -(by_depth + ratio_x * by_ratio_x + ratio_y * by_ratio_y);
    const float3 by_view = inverse_z * make_float3(by_ratio_x, by_ratio_y, by_z);
    const float3 by_mean = by_view.x * rx + by_view.y * ry + by_view.z * rz + by_direction;

    store_float3(args.means_gradient, n, by_mean);
    store_float3(args.log_scales_gradient, n, make_float3(by_log_scale[0], by_log_scale[1], by_log_scale[2]));
    args.quats_gradient[n] = quat_gradient(rotation, by_column);
    // dopacity / opacity = (1 − opacity) dlogit
    args.logit_opacities_gradient[n] = sums.of[M_0] / (1.0f + expf(args.logit_opacities[n]));
    args.means2d_gradient[n] = make_float2(image.x, image.y);
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

template <ProjectBackwardPolicy P>
__global__ void __launch_bounds__(PROJECT_BACKWARD_THREADS) project_backward(ProjectBackwardArgs args) {
    static_assert(!P.by_slot || P.zero == Zero::memset,
                  "a thread a slot cannot clear what no slot owns: switch zero to memset first");
    const Frame& frame = *args.frame;
    if (frame.overflow) return;
    const unsigned thread = blockIdx.x * PROJECT_BACKWARD_THREADS + threadIdx.x;
    unsigned slot = thread;
    size_t n = thread;
    bool is_active = false;
    if constexpr (P.by_slot) {
        is_active = slot < frame.visible;
    } else if (n < frame.gaussians) {
        const uint2 pair = args.warp_slots[n / 32];
        is_active = pair.x >> lane_index() & 1u;
        slot = pair.y + unsigned(__popc(pair.x & ((1u << lane_index()) - 1u)));
    }
    if constexpr (P.touched) is_active = is_active && args.touched[slot] != 0;

    if constexpr (P.zero == Zero::coop) {
        const unsigned active = __ballot_sync(FULL_WARP, is_active);
        clear_sh_rows<P.sh_dtype>(args.sh_gradient, n - lane_index(), frame.gaussians, active);
        if (!is_active && n < frame.gaussians) {
            store_float3(args.means_gradient, n, make_float3(0.0f, 0.0f, 0.0f));
            store_float3(args.log_scales_gradient, n, make_float3(0.0f, 0.0f, 0.0f));
            args.quats_gradient[n] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            args.logit_opacities_gradient[n] = 0.0f;
            args.means2d_gradient[n] = make_float2(0.0f, 0.0f);
        }
    }
    if (!is_active) return;

    const Splat splat = load_splat(args.splats, slot);
    n = splat.gaussian;
    if constexpr (P.touched) args.touched[slot] = 0;
    const Sums sums = take_sums<P.deterministic>(args, slot);
    const float3 mean = load_float3(args.means, n);
    const float3 offset = make_float3(mean.x - frame.position[0] - frame.position_rest[0],
                                      mean.y - frame.position[1] - frame.position_rest[1],
                                      mean.z - frame.position[2] - frame.position_rest[2]);
    // A channel held at 0 does not move.
    const float3 by_color = make_float3(splat.red > 0.0f ? sums.of[M_RED] : 0.0f,
                                        splat.green > 0.0f ? sums.of[M_GREEN] : 0.0f,
                                        splat.blue > 0.0f ? sums.of[M_BLUE] : 0.0f);
    const float inverse = rsqrtf(dot(offset, offset));
    const float3 direction = inverse * offset;
    const float3 raw = sh_backward<P>(args, n, frame.sh_degree, direction, by_color);
    geometry_backward(args, n, sums, offset, inverse * add_scaled(raw, -dot(raw, direction), direction));
}
