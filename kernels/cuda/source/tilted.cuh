// Projects a disk (gs2d) or a Gaussian seen along rays (gut3d), and finds where its alpha may reach 1/255.
//
// In camera axes whitened by the splat, the mean is o and a pixel's ray q. The squared distance of the ray from the mean
// is |o|² − (q·o)²/|q|². In axes of which the third points along o, with q scaled so that its third component is 1 at
// the projected mean, that is N / (Q² + N/|o|²): N, a square of two affine functions of the pixel, is the quadratic form
// of EWA without widening and without limits in the Jacobian; Q is affine. A disk has third scale 0, so 1/|o|² is 0, and
// Q is the mean's camera z by the pixel's. A ray meets the splat behind the camera where Q < 0.
//
// The region N ≤ r² (Q² + closeness N) is an ellipse unless it reaches through the camera plane. With
// ρ² = r²/(1 − r² closeness), e = Σ tilt and w = ρ²/(1 − ρ² tilt·e), its centre is w e from the projected mean and its
// covariance, at level 1, w Σ + w² e eᵀ. Used by project.cuh and staged.cuh.
#pragma once
#include "frame.cuh"
#include "primitive.cuh"

constexpr float CIRCLE_SIGMAS = 3.0f;  // gs2d: the circle is about the centre of the disk's ellipse of that many sigmas

// The outline of a splat at a level, px: {d: (d − center)ᵀ S⁻¹ (d − center) ≤ 1}, seen from the projected mean.
struct Outline {
    float x, y;         // center
    float xx, xy, yy;   // S
    float determinant;  // of S
    bool is_bounded;    // false: the region reaches through the camera plane, and the other members mean nothing
};

// Returns the outline at squared level `squared` (ρ² above), from the rows of the splat's axes on the image, px.
__device__ __forceinline__ Outline outline_of(float3 ax, float3 ay, float determinant, float tilt_x, float tilt_y,
                                              float squared) {
    const float3 along = add_scaled(tilt_x * ax, tilt_y, ay);
    const float e_x = dot(ax, along), e_y = dot(ay, along);
    const float inside = fmaf(-squared, dot(along, along), 1.0f);
    Outline o;
    o.is_bounded = squared > 0.0f && inside > 1e-4f;
    const float w = squared * reciprocal_approx(fmaxf(inside, 1e-4f));
    o.x = w * e_x, o.y = w * e_y;
    o.xx = fmaf(o.x, o.x, w * dot(ax, ax)), o.yy = fmaf(o.y, o.y, w * dot(ay, ay));
    o.xy = fmaf(o.x, o.y, w * dot(ax, ay));
    const float3 across = add_scaled(o.x * ay, -o.y, ax);
    o.determinant = fmaf(w * w, determinant, w * dot(across, across));
    return o;
}
// Makes the outline cover a circle too. A circle within the ellipse adds nothing; otherwise the sum of both covers both.
__device__ __forceinline__ void add_circle(Outline& o, float x, float y, float radius) {
    const float apart_x = x - o.x, apart_y = y - o.y;
    const float reach = radius + root_approx(fmaf(apart_x, apart_x, apart_y * apart_y));
    const float more = reach * reach;
    // With the circle's square taken off its variances the ellipse is still one.
    const float left = o.xx - more, lower = o.yy - more;
    if (left > 0.0f && lower > 0.0f && left * lower > o.xy * o.xy) return;
    o.determinant += more * (o.xx + o.yy + more);
    o.xx += more, o.yy += more;
}
// Returns ρ² for a squared distance in sigmas, or a negative number if the camera is within that distance.
__device__ __forceinline__ float squared_level(float squared, float closeness) {
    const float outside = fmaf(-squared, closeness, 1.0f);
    return outside > 1e-4f ? squared * reciprocal_approx(outside) : -1.0f;
}

struct Place2 {
    float x, y;
};
// Returns the center of a disk's circle, from the projected mean, px.
__device__ __forceinline__ Place2 circle_center(float3 ax, float3 ay, float determinant, float tilt_x, float tilt_y) {
    const Outline o = outline_of(ax, ay, determinant, tilt_x, tilt_y, CIRCLE_SIGMAS * CIRCLE_SIGMAS);
    return {o.is_bounded ? o.x : 0.0f, o.is_bounded ? o.y : 0.0f};
}

// Returns the outline of alpha ≥ 1/255, for a disk without its circle, whose radius is √(squared / 2). `squared` is
// 2 ln(255 opacity).
template <Primitive PRIMITIVE>
__device__ __forceinline__ Outline visible_outline(float3 ax, float3 ay, float determinant, float tilt_x, float tilt_y,
                                                   float closeness, float squared) {
    const float level = PRIMITIVE == Primitive::gs2d ? squared : squared_level(squared, closeness);
    return outline_of(ax, ay, determinant, tilt_x, tilt_y, level);
}
