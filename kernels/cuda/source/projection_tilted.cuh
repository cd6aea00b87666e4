// Projects a disk or a Gaussian seen along rays: what projection.cuh is for a flattened Gaussian. Formulas: tilted.cuh.
#pragma once
#include "projection.cuh"
#include "tilted.cuh"

// A tilted splat on the image plane.
struct Tilted {
    Projected on_image;      // covariance without widening
    float3 ax, ay;           // rows of its axes on the image, px
    float tilt_x, tilt_y;    // 1/px
    float closeness;         // 1/(squared distance of the camera in sigmas, times log2(e)/2); 0 for a disk
};

// Returns false only for splats that no ray of the image can meet: those whose sphere is outside the pyramid of the
// tiles, or whose centre is not in front of the near plane.
__device__ __forceinline__ bool may_be_seen_tilted(const View& v, const Frame& frame, float3 in_view,
                                                   float largest_log_scale) {
    constexpr float SPHERE_SIGMAS = 3.36f, CIRCLE = 4.0f;  // the second in px: radius of a disk's circle and rounding
    const float per_x = reciprocal_approx(v.fx), per_y = reciprocal_approx(v.fy);
    const float left = -v.cx * per_x, right = (float(TILE * frame.tile_columns) - v.cx) * per_x;
    const float top = -v.cy * per_y, bottom = (float(TILE * frame.tile_rows) - v.cy) * per_y;
    const float radius = fmaf(CIRCLE, in_view.z * fmaxf(per_x, per_y),
                              SPHERE_SIGMAS * exp2_approx(LOG2_E * largest_log_scale));
    // A plane through the camera and an edge of the image: x = edge z.
    const auto is_inside = [&](float across, float edge) {
        return !(across * rsqrtf(fmaf(edge, edge, 1.0f)) + radius < 0.0f);
    };
    return in_view.z > v.near_z && is_inside(in_view.x - left * in_view.z, left) &&
           is_inside(right * in_view.z - in_view.x, right) && is_inside(in_view.y - top * in_view.z, top) &&
           is_inside(bottom * in_view.z - in_view.y, bottom);
}

// Returns how the splat's third whitened axis lies to the image: gradient of Q, and 1/|o|² (tilted.cuh), for scales
// times a common factor that makes the smallest of them 1, so that a scale of 0 does no harm.
template <Primitive PRIMITIVE>
__device__ __forceinline__ float3 toward_mean(const Axes& unit_axes, float3 offset, float3 log_scales,
                                              float& squared_distance) {
    if constexpr (PRIMITIVE == Primitive::gs2d) {
        const float across = dot(unit_axes.axis[2], offset);
        squared_distance = across * across;
        return across * unit_axes.axis[2];
    }
    const float least = fminf(fminf(log_scales.x, log_scales.y), log_scales.z);
    const float narrow[3] = {exp2_approx(LOG2_E * (least - log_scales.x)), exp2_approx(LOG2_E * (least - log_scales.y)),
                             exp2_approx(LOG2_E * (least - log_scales.z))};
    float3 toward = make_float3(0.0f, 0.0f, 0.0f);
    squared_distance = 0.0f;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const float along = narrow[k] * dot(unit_axes.axis[k], offset);
        squared_distance = fmaf(along, along, squared_distance);
        toward = add_scaled(toward, narrow[k] * along, unit_axes.axis[k]);
    }
    return toward;
}

template <Primitive PRIMITIVE>
__device__ __forceinline__ Tilted project_tilted(const View& v, float3 offset, float3 in_view, float4 quat,
                                                 float3 scales, float3 log_scales, float logit) {
    const float* r = v.rotation;
    const float inverse_z = reciprocal(in_view.z), ratio_x = in_view.x * inverse_z, ratio_y = in_view.y * inverse_z;
    const float3 row_x = make_float3(r[0], r[1], r[2]), row_y = make_float3(r[3], r[4], r[5]);
    const float3 depth_row = make_float3(r[6], r[7], r[8]);
    const float3 jx = v.fx * inverse_z * add_scaled(row_x, -ratio_x, depth_row);
    const float3 jy = v.fy * inverse_z * add_scaled(row_y, -ratio_y, depth_row);
    const Axes unit = world_axes(quat, make_float3(1.0f, 1.0f, 1.0f));
    const float third = PRIMITIVE == Primitive::gs2d ? 0.0f : scales.z;
    Tilted t;
    t.ax = make_float3(scales.x * dot(jx, unit.axis[0]), scales.y * dot(jx, unit.axis[1]),
                       third * dot(jx, unit.axis[2]));
    t.ay = make_float3(scales.x * dot(jy, unit.axis[0]), scales.y * dot(jy, unit.axis[1]),
                       third * dot(jy, unit.axis[2]));
    float squared_distance;
    const float3 toward = toward_mean<PRIMITIVE>(unit, offset, log_scales, squared_distance);
    // The area vector of the axes. A disk's follows from its distance to the camera along its normal, like its tilt:
    // an error of that distance then only moves the disk.
    float3 area = make_float3(difference_of_products(t.ax.y, t.ay.z, t.ax.z, t.ay.y),
                              difference_of_products(t.ax.z, t.ay.x, t.ax.x, t.ay.z),
                              difference_of_products(t.ax.x, t.ay.y, t.ax.y, t.ay.x));
    if constexpr (PRIMITIVE == Primitive::gs2d)
        area.z = (v.fx * scales.x * inverse_z) * (v.fy * scales.y * inverse_z) * (sqrtf(squared_distance) * inverse_z);
    Projected& p = t.on_image;
    p.x = fmaf(ratio_x, v.fx, v.cx), p.y = fmaf(ratio_y, v.fy, v.cy), p.z = in_view.z;
    p.xx = dot(t.ax, t.ax), p.yy = dot(t.ay, t.ay), p.xy = dot(t.ax, t.ay);
    p.determinant = dot(area, area);
    p.inverse = reciprocal(p.determinant);
    p.log2_opacity = -log2_approx(1.0f + exp2_approx(-LOG2_E * logit));

    const float scale = in_view.z * reciprocal(squared_distance);
    t.tilt_x = scale * dot(row_x, toward) * reciprocal(v.fx);
    t.tilt_y = scale * dot(row_y, toward) * reciprocal(v.fy);
    const float least = fminf(fminf(scales.x, scales.y), scales.z);
    t.closeness = PRIMITIVE == Primitive::gs2d ? 0.0f : 2.0f * LN_2 * least * least * reciprocal(squared_distance);
    return t;
}

// Fills the splat's record but for its colour.
__device__ __forceinline__ void record_tilted(const Tilted& t, Splat& splat) {
    constexpr float SCALE = 0.84932180028801904f;  // √(log2(e) / 2)
    const Projected& p = t.on_image;
    const float inverse_root = rsqrtf(p.xx);
    splat.x = p.x, splat.y = p.y;
    splat.a = SCALE * inverse_root;
    splat.c = SCALE * p.xx * inverse_root * rsqrtf(p.determinant);
    splat.b = -splat.c * p.xy * inverse_root * inverse_root;
    splat.log2_opacity = p.log2_opacity;
    splat.tilt_x = t.tilt_x, splat.tilt_y = t.tilt_y;
}

// True for a splat of no area on the image: a disk seen from its edge, or one with a scale of 0. Nothing is wrong with
// it, and no pixel sees it.
template <Primitive PRIMITIVE>
__device__ __forceinline__ bool is_edge_on(const Tilted& t) {
    return !(t.on_image.determinant > 1e-30f) || (PRIMITIVE == Primitive::gs2d && !is_finite(t.tilt_x + t.tilt_y));
}

// Returns the extent from which a splat's tiles follow. One that reaches through the camera plane is in all tiles.
template <Primitive PRIMITIVE, Bounds B>
__device__ __forceinline__ Extent measure_tilted(const Tilted& t, const Frame& frame) {
    Projected p = t.on_image;
    float cutoff = 1.0f;
    if constexpr (B == Bounds::circle3s) {
        p.xx += DILATION, p.yy += DILATION;
        return measure<B>(p, cutoff, frame);
    }
    const float squared = cutoff_of(p);
    Outline o = visible_outline<PRIMITIVE>(t.ax, t.ay, p.determinant, t.tilt_x, t.tilt_y,
                                           t.closeness * (0.5f * LOG2_E), squared);
    if constexpr (PRIMITIVE == Primitive::gs2d) {
        const Place2 circle = circle_center(t.ax, t.ay, p.determinant, t.tilt_x, t.tilt_y);
        add_circle(o, circle.x, circle.y, sqrtf(0.5f * squared));
    }
    constexpr float FAR = 1e9f;  // px²
    p.x += o.x, p.y += o.y;
    p.xx = o.xx, p.xy = o.xy, p.yy = o.yy, p.determinant = o.determinant;
    if (!o.is_bounded || !(fmaxf(o.xx, o.yy) < FAR)) {
        p.x = 0.5f * float(frame.width), p.y = 0.5f * float(frame.height);
        p.xx = p.yy = FAR, p.xy = 0.0f, p.determinant = FAR * FAR;
    }
    return measure<B>(p, cutoff, frame);
}
