// Computes the gradients of a flattened Gaussian's raw parameters, its harmonics aside, from its sums: the chain rule
// back through projection.cuh, with the exact derivative of the limits inside the Jacobian. Other primitives:
// geometry_backward_tilted.cuh. Loading, colours and storing: project_backward.cuh.
#pragma once
#include "blend_sums_tilted.cuh"
#include "filter.cuh"

// ---- What goes in and what comes out --------------------------------------------------------------------------------

template <Primitive PRIMITIVE>
struct Sums {
    static constexpr int ROW = sum_row(PRIMITIVE);
    float of[ROW];
};

// Places of the colours in a row of sums.
__device__ constexpr int red_place(Primitive p) { return is_tilted(p) ? int(TILTED_RED) : int(M_RED); }
__device__ constexpr int green_place(Primitive p) { return is_tilted(p) ? int(TILTED_GREEN) : int(M_GREEN); }
__device__ constexpr int blue_place(Primitive p) { return is_tilted(p) ? int(TILTED_BLUE) : int(M_BLUE); }

// What the backward pass keeps of a Gaussian.
template <Primitive PRIMITIVE>
struct Backward {
    Sums<PRIMITIVE> sums;
    float3 offset, direction;  // from the camera to the mean; the same, of unit length
    float inverse_distance;
};

struct Shape {
    float3 log_scales;
    float4 quat;
    float logit_opacity;
};
// Gradients of one Gaussian, without those of its harmonics.
struct GaussianGradient {
    float3 mean, log_scales;
    float4 quat;
    float logit;
    float2 mean2d;
};

// ---- The chain rule -------------------------------------------------------------------------------------------------

// The rotation of a quaternion of any length but zero, column by column, and the numbers its gradient needs.
struct Turned {
    float w, x, y, z, inverse_length;
    float3 column[3];
};
__device__ __forceinline__ Turned turned(float4 q) {
    const float largest = fmaxf(fmaxf(fabsf(q.x), fabsf(q.y)), fmaxf(fabsf(q.z), fabsf(q.w)));
    const float shrink = reciprocal(clamped(largest, 1e-37f, 1e37f));  // so that no square leaves single precision
    float w = q.x * shrink, x = q.y * shrink, y = q.z * shrink, z = q.w * shrink;
    const float inverse = rsqrtf(w * w + x * x + y * y + z * z);
    w *= inverse, x *= inverse, y *= inverse, z *= inverse;
    return {w, x, y, z, shrink * inverse,
            {make_float3(1.0f - 2.0f * (y * y + z * z), 2.0f * (x * y + w * z), 2.0f * (x * z - w * y)),
             make_float3(2.0f * (x * y - w * z), 1.0f - 2.0f * (x * x + z * z), 2.0f * (y * z + w * x)),
             make_float3(2.0f * (x * z + w * y), 2.0f * (y * z - w * x), 1.0f - 2.0f * (x * x + y * y))}};
}

// Returns the quaternion's gradient from those of the columns: back through the matrix, then through the normalisation.
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
    float x, y;        // gradient of the projected mean
    float xx, xy, yy;  // gradient of the covariance
};
__device__ __forceinline__ ImageGradient image_gradient(const Sums<Primitive::gs3d>& sums, float xx, float xy, float determinant) {
    const float inverse_xx = reciprocal(fminf(xx, 0x1p125f));
    const float c = rsqrtf(2.0f * LN_2 * determinant * inverse_xx), a = rsqrtf(2.0f * LN_2 * xx);
    const float b = -c * xy * inverse_xx;
    const float* m = sums.of;
    const float scale = 2.0f * LN_2 * LN_2;
    const float by_u = a * m[M_UU] + b * m[M_UV], by_v = a * m[M_UV] + b * m[M_VV];
    return {-2.0f * LN_2 * (a * m[M_U] + b * m[M_V]), -2.0f * LN_2 * (c * m[M_V]), scale * (a * by_u + b * by_v),
            scale * c * by_v, scale * c * c * m[M_VV]};
}

// Sums over the pixels of |dL/dx| and |dL/dy| of the projected mean.
__device__ __forceinline__ float2 absolute_gradient(const Sums<Primitive::gs3d>& sums) {
    return make_float2(2.0f * LN_2 * sums.of[M_ABSOLUTE_X], 2.0f * LN_2 * sums.of[M_ABSOLUTE_Y]);
}

// Rotates from camera axes to world axes. Reads the matrix again, in a way that the compiler does not recognise as the
// same load. Otherwise it would keep the matrix in nine registers, which the chain rule needs.
__device__ __forceinline__ float3 rotated_back(const Frame& frame, float3 v) {
    const float* r = frame.rotation;
    return v.x * make_float3(__ldca(r), __ldca(r + 1), __ldca(r + 2)) +
           v.y * make_float3(__ldca(r + 3), __ldca(r + 4), __ldca(r + 5)) +
           v.z * make_float3(__ldca(r + 6), __ldca(r + 7), __ldca(r + 8));
}

// Computes the gradients of all parameters but the harmonics.
template <Filter F>
__device__ __forceinline__ GaussianGradient geometry_backward(const Frame& frame, const Backward<Primitive::gs3d>& backward,
                                                              const Shape& shape, float3 by_offset) {
    const float3 offset = backward.offset;
    const float* r = frame.rotation;
    const float3 rx = make_float3(r[0], r[1], r[2]), ry = make_float3(r[3], r[4], r[5]);
    const float3 rz = make_float3(r[6], r[7], r[8]);
    const float inverse_z = reciprocal(dot(rz, offset));
    const float ratio_x = dot(rx, offset) * inverse_z, ratio_y = dot(ry, offset) * inverse_z;
    const float held_x = clamped(ratio_x, frame.held_left, frame.held_right);
    const float held_y = clamped(ratio_y, frame.held_top, frame.held_bottom);
    const float3 jx = frame.fx * inverse_z * add_scaled(rx, -held_x, rz);
    const float3 jy = frame.fy * inverse_z * add_scaled(ry, -held_y, rz);
    const Turned rotation = turned(shape.quat);
    const float scales[3] = {expf(shape.log_scales.x), expf(shape.log_scales.y), expf(shape.log_scales.z)};

    // The splat's axes on the image, in px. The covariance is axes axesᵀ, widened; its determinant is a sum of squares.
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
    const float thin = dot(area, area), determinant = widened<F>(thin, xx + yy);
    const ImageGradient image = image_gradient(backward.sums, xx + DILATION_OF<F>, xy, determinant);
    const Compensation more = compensation_gradient<F>(backward.sums.of[M_0], thin, xx + yy, determinant);
    const float3 x = make_float3(ax[0], ax[1], ax[2]), y = make_float3(ay[0], ay[1], ay[2]);
    const float3 more_x = F == Filter::plain ? float3{} : add_scaled(more.across * cross(y, area), -more.along, x);
    const float3 more_y = F == Filter::plain ? float3{} : add_scaled(more.across * cross(area, x), -more.along, y);
    const float more_ax[3] = {more_x.x, more_x.y, more_x.z}, more_ay[3] = {more_y.x, more_y.y, more_y.z};

    float by_log_scale[3];
    float3 by_column[3], by_jx = make_float3(0.0f, 0.0f, 0.0f), by_jy = by_jx;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const float by_ax = 2.0f * (image.xx * ax[k] + image.xy * ay[k]) + more_ax[k];
        const float by_ay = 2.0f * (image.xy * ax[k] + image.yy * ay[k]) + more_ay[k];
        by_log_scale[k] = by_ax * ax[k] + by_ay * ay[k];
        by_column[k] = scales[k] * (by_ax * jx + by_ay * jy);
        by_jx = add_scaled(by_jx, scales[k] * by_ax, rotation.column[k]);
        by_jy = add_scaled(by_jy, scales[k] * by_ay, rotation.column[k]);
    }

    // Rows of the Jacobian are focal / z (row of the camera − ratio × its depth row). A ratio at its limit has no
    // gradient.
    const float by_depth = dot(by_jx, jx) + dot(by_jy, jy);
    const bool is_free_x = held_x == ratio_x, is_free_y = held_y == ratio_y;
    const float by_ratio_x = frame.fx * (image.x - (is_free_x ? dot(by_jx, rz) * inverse_z : 0.0f));
    const float by_ratio_y = frame.fy * (image.y - (is_free_y ? dot(by_jy, rz) * inverse_z : 0.0f));
    const float by_z = -(by_depth + ratio_x * by_ratio_x + ratio_y * by_ratio_y);
    const float3 by_view = inverse_z * make_float3(by_ratio_x, by_ratio_y, by_z);
    return {rotated_back(frame, by_view) + by_offset,
            make_float3(by_log_scale[0], by_log_scale[1], by_log_scale[2]), quat_gradient(rotation, by_column),
            // dopacity / opacity = (1 − opacity) dlogit
            quotient_approx(backward.sums.of[M_0], 1.0f + exp2_approx(LOG2_E * shape.logit_opacity)),
            make_float2(image.x, image.y)};
}
