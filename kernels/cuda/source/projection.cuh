// Projects a Gaussian onto the image plane: mean, covariance and extent in pixels.
//
// Source: Zwicker et al. 2002, except that x/z is limited inside the Jacobian only. Used by project.cuh, which selects
// the Gaussians and computes colours, and by project_backward.cuh, which computes the derivatives.
#pragma once
#include "filter.cuh"
#include "frame.cuh"
#include "tiles.cuh"

// A Gaussian on the image plane.
struct Projected {
    float x, y, z;         // px, px, camera z
    float xx, xy, yy;      // covariance with dilation, px²
    float determinant;     // px⁴
    float inverse;         // 1 / determinant
    float log2_opacity;
};

// The splat's axes in world units: the columns of its rotation times the scales. The factor 2/|q|² replaces the
// normalisation of the quaternion and saves its square root.
struct Axes {
    float3 axis[3];
};
__device__ __forceinline__ Axes world_axes(float4 q, float3 scales) {
    const float w = q.x, x = q.y, y = q.z, z = q.w;
    const float two = 2.0f * reciprocal(w * w + x * x + y * y + z * z);
    const float tx = two * x, ty = two * y, tz = two * z;
    const float wx = w * tx, wy = w * ty, wz = w * tz, xx = x * tx, xy = x * ty, xz = x * tz, yy = y * ty, yz = y * tz,
                zz = z * tz;
    return {{scales.x * make_float3(1.0f - yy - zz, xy + wz, xz - wy),
             scales.y * make_float3(xy - wz, 1.0f - xx - zz, yz + wx),
             scales.z * make_float3(xz + wy, yz - wx, 1.0f - xx - yy)}};
}

// Divides by the largest component if squares would overflow or underflow. Returns false if all components are 0.
__device__ __forceinline__ bool tame_quaternion(float4& q) {
    const float squared = q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w;
    if (squared > 1e-30f && squared < 1e30f) return true;
    const float largest = fmaxf(fmaxf(fabsf(q.x), fabsf(q.y)), fmaxf(fabsf(q.z), fabsf(q.w)));
    q = make_float4(q.x / largest, q.y / largest, q.z / largest, q.w / largest);
    return largest > 0.0f;
}

// The part of the frame that each thread reads, in 16-byte loads.
struct View {
    float rotation[9], position[3], position_rest[3], near_z, fx, fy, cx, cy;
    float held_left, held_right, held_top, held_bottom;
};
__device__ __forceinline__ View load_view(const Frame* frame) {
    static_assert(sizeof(View) == 96);  // the beginning of Frame, member by member
    union {
        float4 quads[6];
        View view;
    } both;
#pragma unroll
    for (int k = 0; k < 6; k++) both.quads[k] = reinterpret_cast<const float4*>(frame)[k];
    return both.view;
}

template <Filter F>
__device__ __forceinline__ Projected project_gaussian(const View& v, float3 in_view, float4 quat, float3 scales,
                                                      float logit) {
    const float* r = v.rotation;
    const float inverse_z = reciprocal(in_view.z), ratio_x = in_view.x * inverse_z, ratio_y = in_view.y * inverse_z;
    const float held_x = clamped(ratio_x, v.held_left, v.held_right);
    const float held_y = clamped(ratio_y, v.held_top, v.held_bottom);
    // Rows of d(pixel) / d(mean in world axes).
    const float3 depth_row = make_float3(r[6], r[7], r[8]);
    const float3 jx = v.fx * inverse_z * add_scaled(make_float3(r[0], r[1], r[2]), -held_x, depth_row);
    const float3 jy = v.fy * inverse_z * add_scaled(make_float3(r[3], r[4], r[5]), -held_y, depth_row);
    const Axes axes = world_axes(quat, scales);
    const float3 ax = make_float3(dot(jx, axes.axis[0]), dot(jx, axes.axis[1]), dot(jx, axes.axis[2]));
    const float3 ay = make_float3(dot(jy, axes.axis[0]), dot(jy, axes.axis[1]), dot(jy, axes.axis[2]));
    const float thin_xx = dot(ax, ax), thin_yy = dot(ay, ay);
    // Lagrange's identity gives the determinant as a sum of squares, so that nothing cancels for needle-shaped splats.
    const float3 area = make_float3(difference_of_products(ax.y, ay.z, ax.z, ay.y),
                                    difference_of_products(ax.z, ay.x, ax.x, ay.z),
                                    difference_of_products(ax.x, ay.y, ax.y, ay.x));
    Projected p;
    p.x = fmaf(ratio_x, v.fx, v.cx);
    p.y = fmaf(ratio_y, v.fy, v.cy);
    p.z = in_view.z;
    p.xx = thin_xx + DILATION_OF<F>;
    p.yy = thin_yy + DILATION_OF<F>;
    p.xy = dot(ax, ay);
    const float thin = dot(area, area);
    p.determinant = widened<F>(thin, thin_xx + thin_yy);
    p.inverse = reciprocal(p.determinant);
    p.log2_opacity = filtered_opacity<F>(-log2_approx(1.0f + exp2_approx(-LOG2_E * logit)), thin, p.inverse);
    return p;
}

__device__ __forceinline__ bool is_finite(const Projected& p) {
    return is_finite(p.x) && is_finite(p.y) && is_finite(p.xx) && is_finite(p.yy) && is_finite(p.determinant);
}

// Fills the splat's record but for its colour and its tilt.
__device__ __forceinline__ void record(const Projected& p, Splat& splat) {
    splat.x = p.x, splat.y = p.y;
    splat.a = -0.5f * LOG2_E * p.yy * p.inverse;
    splat.b = LOG2_E * p.xy * p.inverse;
    splat.c = -0.5f * LOG2_E * p.xx * p.inverse;
    splat.log2_opacity = p.log2_opacity;
}

// Returns r² = 2 ln(255 opacity), at which alpha is 1/255. In single precision the quadratic form of a thin splat may
// be wrong by xx yy / det units in the last place. r² is enlarged by that much, so no pixel that blends the splat is
// outside its tiles.
__device__ __forceinline__ float cutoff_of(const Projected& p) {
    const float thinness = fminf(p.yy * p.inverse * p.xx, 1e9f);  // at least 1
    return 2.0f * LN_2 * (p.log2_opacity - LOG2_ALPHA_MIN) * fmaf(4.0f * 0x1p-23f, thinness, 1.0f);
}

// Returns the extent of an ellipse, from which a splat's tiles follow: mean and covariance of `p`, at squared radius
// `cutoff`.
template <Bounds B>
__device__ __forceinline__ Extent measure(const Projected& p, float cutoff, const Frame& frame) {
    const float inverse_radius = rsqrtf(fmaxf(cutoff, 1e-30f)), radius = cutoff * inverse_radius;
    const float inverse_sigma_x = rsqrtf(p.xx), inverse_sigma_y = rsqrtf(p.yy);
    Extent e;
    e.x = p.x, e.y = p.y;
    e.half_width = radius * p.xx * inverse_sigma_x;
    e.spread = radius * p.determinant * rsqrtf(p.determinant) * inverse_sigma_y;
    e.correlation = p.xy * inverse_sigma_x * inverse_sigma_y;
    e.inverse_half_height = inverse_radius * inverse_sigma_y;
    float half_width = e.half_width, half_height = radius * p.yy * inverse_sigma_y;
    if constexpr (B == Bounds::circle3s) {
        const float mean = 0.5f * (p.xx + p.yy), difference = 0.5f * (p.xx - p.yy);
        half_width = half_height = ceilf(3.0f * sqrtf(mean + sqrtf(difference * difference + p.xy * p.xy)));
    }
    e.rows = tile_range(p.y - half_height, p.y + half_height, frame.tile_rows);
    e.columns = tile_range(p.x - half_width, p.x + half_width, frame.tile_columns);
    if (e.columns == 0) e.rows = 0;
    return e;
}
