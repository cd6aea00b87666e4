// Computes the gradients of a disk or of a Gaussian seen along rays from its sums: what geometry_backward.cuh does for
// a flattened Gaussian.
//
// With f1 = (a, 0, 0) T, f2 = (b, c, 0) T, f3 = (tilt, 1) T, where T's rows are z times d(pixel)/d(mean) and the depth
// row, and with A_k an axis of the splat, the gradient of A_k is a symmetric matrix of the sums between f1, f2 and f3:
//     dL/dA_k = 4 ln² 2 / z² [f_i] [[UU, UV, −KU], [UV, VV, −KV], [−KU, −KV, J]] [f_j · A_k].
// Whitened axes are nowhere divided by, so a scale of 0 does no harm. Sums: blend_sums_tilted.cuh, whose u and v point
// the other way.
#pragma once
#include "geometry_backward.cuh"
#include "tilted.cuh"

// Adds the gradient that comes through a disk's circle, whose center follows from the axes as the center of the disk's
// ellipse. `by_x` and `by_y` are the gradients of the center, px. Returns what it adds to the gradient of the mean, in
// world axes.
__device__ __forceinline__ float3 circle_gradient(const float3 (&rows)[3], const float3 (&axes)[3], float z,
                                                          float by_x, float by_y, float3 (&by_axis)[3]) {
    constexpr float LEVEL = CIRCLE_SIGMAS * CIRCLE_SIGMAS;
    float depths[2], across = 0.0f, x = 0.0f, y = 0.0f;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        depths[k] = dot(rows[2], axes[k]);
        across = fmaf(LEVEL * depths[k], depths[k], across);
        x = fmaf(LEVEL * depths[k], dot(rows[0], axes[k]), x), y = fmaf(LEVEL * depths[k], dot(rows[1], axes[k]), y);
    }
    const float below = across - z * z;  // negative while the ellipse is bounded
    float along_x = by_x, along_y = by_y, by_z = 0.0f;
    if (across < (1.0f - 1e-4f) * z * z) {
        const float inverse = reciprocal(below);
        const float by_center = (by_x * x + by_y * y) * inverse;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float weight = LEVEL * depths[k] * inverse;
            by_axis[k] = add_scaled(by_axis[k], weight * by_x, rows[0]);
            by_axis[k] = add_scaled(by_axis[k], weight * by_y, rows[1]);
            const float by_depth = LEVEL * inverse * (by_x * dot(rows[0], axes[k]) + by_y * dot(rows[1], axes[k])) -
                                   2.0f * by_center * weight;
            by_axis[k] = add_scaled(by_axis[k], by_depth, rows[2]);
        }
        along_x *= -z * z * inverse, along_y *= -z * z * inverse;
        by_z = 2.0f * z * by_center * inverse;
    }
    const float inverse_z = reciprocal(z);
    return inverse_z * (along_x * rows[0] + along_y * rows[1]) + by_z * rows[2];
}

// Computes the gradients of all parameters but the harmonics.
template <Primitive PRIMITIVE>
__device__ __forceinline__ GaussianGradient tilted_backward(const Frame& frame, const Backward<PRIMITIVE>& backward,
                                                            const Shape& shape, const Splat& splat, float closeness,
                                                            float3 by_offset) {
    constexpr int AXES = PRIMITIVE == Primitive::gs2d ? 2 : 3;
    const float3 offset = backward.offset;
    const float* m = backward.sums.of;
    const float* r = frame.rotation;
    const float3 rx = make_float3(r[0], r[1], r[2]), ry = make_float3(r[3], r[4], r[5]);
    const float3 rz = make_float3(r[6], r[7], r[8]);
    const float z = dot(rz, offset), inverse_z = reciprocal(z);
    const float ratio_x = dot(rx, offset) * inverse_z, ratio_y = dot(ry, offset) * inverse_z;
    const float3 rows[3] = {frame.fx * add_scaled(rx, -ratio_x, rz), frame.fy * add_scaled(ry, -ratio_y, rz), rz};
    const Whitened w{splat.a, splat.b, splat.c};
    const float3 f1 = w.a * rows[0], f2 = w.b * rows[0] + w.c * rows[1];
    const float3 f3 = splat.tilt_x * rows[0] + splat.tilt_y * rows[1] + rows[2];
    const Turned rotation = turned(shape.quat);
    const float scales[3] = {expf(shape.log_scales.x), expf(shape.log_scales.y), expf(shape.log_scales.z)};
    const float uu = m[TILTED_UU], uv = m[TILTED_UV], vv = m[TILTED_VV], ku = -m[TILTED_KU], kv = -m[TILTED_KV];
    const float j = PRIMITIVE == Primitive::gut3d ? m[TILTED_J] : 0.0f;

    float3 axes[3], by_axis[3];
    const float scale = 4.0f * LN_2 * LN_2 * inverse_z * inverse_z;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        axes[k] = scales[k] * rotation.column[k];
        by_axis[k] = make_float3(0.0f, 0.0f, 0.0f);
        if (k >= AXES) continue;
        const float a1 = scale * dot(f1, axes[k]), a2 = scale * dot(f2, axes[k]);
        const float a3 = PRIMITIVE == Primitive::gut3d ? scale * dot(f3, axes[k]) : 0.0f;
        by_axis[k] = (uu * a1 + uv * a2 - ku * a3) * f1 + (uv * a1 + vv * a2 - kv * a3) * f2 +
                     (j * a3 - ku * a1 - kv * a2) * f3;
    }
    const float each = 2.0f * LN_2 * inverse_z;
    const float along_u = each * (closeness * ku - m[TILTED_UQ]), along_v = each * (closeness * kv - m[TILTED_VQ]);
    const float along_q = -each * (uu + vv + closeness * j);
    float3 by_mean = along_u * f1 + along_v * f2 + along_q * f3;
    float2 mean2d;
    if constexpr (PRIMITIVE == Primitive::gs2d) {
        by_mean += circle_gradient(rows, axes, z, -2.0f * m[TILTED_X], -2.0f * m[TILTED_Y], by_axis);
        // z times the gradient of the third column of K [axes, mean], the circle's aside (Huang et al. 2024, code).
        mean2d = make_float2(z * (w.a * along_u + w.b * along_v + splat.tilt_x * along_q),
                             z * (w.c * along_v + splat.tilt_y * along_q));
    } else {
        mean2d = make_float2(dot(rx, by_mean) * z * reciprocal(frame.fx), dot(ry, by_mean) * z * reciprocal(frame.fy));
    }
    float by_log_scale[3];
    float3 by_column[3];
#pragma unroll
    for (int k = 0; k < 3; k++) {
        by_log_scale[k] = dot(by_axis[k], axes[k]);
        by_column[k] = scales[k] * by_axis[k];
    }
    return {by_mean + by_offset, make_float3(by_log_scale[0], by_log_scale[1], by_log_scale[2]),
            quat_gradient(rotation, by_column),
            quotient_approx(m[TILTED_0], 1.0f + exp2_approx(LOG2_E * shape.logit_opacity)), mean2d};
}
