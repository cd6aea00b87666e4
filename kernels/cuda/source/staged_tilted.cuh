// Stages a disk or a Gaussian seen along rays, and computes its alpha at the pixels of a thread: what staged.cuh does
// for a flattened Gaussian, with the same u and v, and Q besides. Formulas: tilted.cuh. At the end, what depends on the
// primitive has one name for all three. Read blend.cuh next.
#pragma once
#include "staged.cuh"
#include "tilted.cuh"

// Q is `at_corner` + tilt · (place from the corner of the tile).
//
// A disk's u, v and Q are scaled so that Q is near / z: the near plane is then at 1, and no depth is needed. Alpha, and
// all sums of the backward pass, are the same for any scale. Where the base has the depth, a disk has its circle's y.
struct alignas(16) StagedTilted : Staged {
    float at_corner, tilt_x, tilt_y;
    float more;  // gut3d: closeness; gs2d: the circle's x. Places of circles are px from the corner of the tile

    __device__ __forceinline__ float circle_x() const { return more; }
    __device__ __forceinline__ float circle_y() const { return depth; }
    __device__ __forceinline__ float closeness() const { return more; }
};
static_assert(sizeof(StagedTilted) == 64);

// What is staged besides a splat's record. Kernels read what the primitive needs.
struct Aside {
    float depth;      // camera z of the mean, world units
    float closeness;  // gut3d
    float near_z;     // of the camera
};

// The splat's axes on the image, as far as its conic tells: rows of a triangle, px.
struct ImageAxes {
    float3 x, y;
    float determinant;  // of the covariance
};
__device__ __forceinline__ ImageAxes image_axes(const Whitened& w) {
    constexpr float SCALE = 0.84932180028801904f;  // √(log2(e) / 2)
    const float inverse_a = SCALE * reciprocal_approx(w.a), inverse_c = SCALE * reciprocal_approx(w.c);
    const float area = inverse_a * inverse_c;
    return {make_float3(inverse_a, 0.0f, 0.0f),
            make_float3(-w.b * reciprocal_approx(w.c) * inverse_a, inverse_c, 0.0f), area * area};
}

template <Primitive PRIMITIVE, bool LOG2_OPACITY>
__device__ __forceinline__ StagedTilted stage_tilted(const Splat& s, const Aside& aside, int tile_x, int tile_y,
                                                     unsigned index, unsigned slot) {
    StagedTilted t;
    static_cast<Staged&>(t) = staged_splat<LOG2_OPACITY>(s, {s.a, s.b, s.c}, tile_x, tile_y, index, slot);
    const float x = s.x - float(tile_x), y = s.y - float(tile_y);
    t.at_corner = 1.0f - __fmaf_rn(s.tilt_x, x, __fmul_rn(s.tilt_y, y));
    t.tilt_x = s.tilt_x, t.tilt_y = s.tilt_y;
    if constexpr (PRIMITIVE == Primitive::gut3d) {
        t.depth = aside.depth, t.more = aside.closeness;
    } else {
        const ImageAxes axes = image_axes({t.a, t.b, t.c});
        const Place2 circle = circle_center(axes.x, axes.y, axes.determinant, s.tilt_x, s.tilt_y);
        t.more = x + circle.x, t.depth = y + circle.y;
        const float scale = quotient_approx(aside.near_z, aside.depth);
        t.a *= scale, t.b *= scale, t.c *= scale, t.u0 *= scale, t.v0 *= scale;
        t.at_corner *= scale, t.tilt_x *= scale, t.tilt_y *= scale;
    }
    return t;
}
__device__ __forceinline__ StagedTilted empty_tilted() {
    StagedTilted t;
    static_cast<Staged&>(t) = empty_splat();
    t.at_corner = 1.0f, t.tilt_x = t.tilt_y = t.more = 0.0f;
    return t;
}
__device__ __forceinline__ StagedTilted handed_out(const StagedTilted& own, int lane) {
    const auto number = [lane](float x) { return __shfl_sync(FULL_WARP, x, lane); };
    StagedTilted t;
    static_cast<Staged&>(t) = handed_out(static_cast<const Staged&>(own), lane);
    t.at_corner = number(own.at_corner), t.tilt_x = number(own.tilt_x), t.tilt_y = number(own.tilt_y);
    t.more = number(own.more);
    return t;
}

// u, v, Q and alpha of the pixels of one thread. D is Q² + closeness N.
template <int ROWS>
struct EvaluatedTilted {
    float u;
    float v[ROWS], q[ROWS], inverse[ROWS];  // inverse: 1/D
    float alpha[ROWS];                      // opacity times falloff, not capped; 0 where the ray meets it too near
    bool is_circle[ROWS];                   // a disk's alpha is that of its circle
};
template <Primitive PRIMITIVE, Exponential EXP, bool LOG2_OPACITY, int ROWS>
__device__ __forceinline__ EvaluatedTilted<ROWS> evaluate_tilted(const StagedTilted& s, const Spot& spot) {
    EvaluatedTilted<ROWS> e;
    e.u = __fmaf_rn(-s.a, spot.x, s.u0);
    const float column = __fmul_rn(e.u, e.u);
    const float above = __fmaf_rn(-s.b, spot.x, s.v0), q_above = __fmaf_rn(s.tilt_x, spot.x, s.at_corner);
    const float to_circle = __fadd_rn(spot.x, -s.circle_x()), circle_column = __fmul_rn(to_circle, to_circle);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const float y = spot.y + float(row);
        e.v[row] = __fmaf_rn(-s.c, y, above);
        e.q[row] = __fmaf_rn(s.tilt_y, y, q_above);
        const float squared = __fmaf_rn(e.v[row], e.v[row], column), q_squared = __fmul_rn(e.q[row], e.q[row]);
        bool is_met = e.q[row] > 0.0f;
        float power;
        e.is_circle[row] = false;
        if constexpr (PRIMITIVE == Primitive::gs2d) {
            e.inverse[row] = reciprocal_approx(q_squared);
            const float down = __fadd_rn(y, -s.circle_y());
            const float circle = __fmul_rn(LOG2_E, __fmaf_rn(down, down, circle_column));
            const float plane = __fmul_rn(squared, e.inverse[row]);
            e.is_circle[row] = circle < plane;
            power = -fminf(plane, circle);
            is_met &= e.q[row] <= 1.0f;
        } else {
            e.inverse[row] = reciprocal_approx(__fmaf_rn(s.closeness(), squared, q_squared));
            power = -__fmul_rn(squared, e.inverse[row]);
        }
        if constexpr (LOG2_OPACITY) power = __fadd_rn(power, s.opacity);
        const float falloff = EXP == Exponential::ex2 ? exp2_approx(power) : expf(__fmul_rn(LN_2, power));
        e.alpha[row] = !is_met ? 0.0f : LOG2_OPACITY ? falloff : __fmul_rn(s.opacity, falloff);
    }
    return e;
}

// Returns a bit for each warp with a pixel where the alpha of a tilted splat may reach 1/255.
template <Primitive PRIMITIVE, Map MAP, Subtile SUBTILE>
__device__ __forceinline__ unsigned tilted_bits(const Splat& s, const Aside& aside, float mean_x, float mean_y) {
    const Whitened w{s.a, s.b, s.c};
    // The rounding errors of u, v and Q are proportional to their parts, as in reach_of.
    const float parts = fabsf(w.a * mean_x) + fabsf(w.b * mean_x) + fabsf(w.c * mean_y) +
                        float(TILE) * (w.a + fabsf(w.b) + w.c);
    const float reach = fmaxf(s.log2_opacity - LOG2_ALPHA_MIN, 0.0f) * 1.0001f + 1e-4f + 4e-6f * parts;
    const ImageAxes axes = image_axes(w);
    const float squared = 2.0f * LN_2 * reach;
    const Outline o = visible_outline<PRIMITIVE>(axes.x, axes.y, axes.determinant, s.tilt_x, s.tilt_y,
                                                 aside.closeness * (0.5f * LOG2_E), squared);
    if (!o.is_bounded) return (1u << warps_of(MAP)) - 1u;
    Reach r;
    r.x = mean_x + o.x, r.y = mean_y + o.y;
    r.slack = 2e-3f + 2e-6f * (fabsf(mean_x) + fabsf(mean_y)) + 1e-4f * (fabsf(o.x) + fabsf(o.y));
    const float height = root_approx(o.yy);
    r.height = height + r.slack;
    if constexpr (SUBTILE == Subtile::aabb) {
        r.half = root_approx(o.xx);
        r.slope = r.steepness = r.extreme = 0.0f;
    } else {
        // With dx and dy from a pixel to the centre, the ellipse covers dx = dy xy/yy ± √(det/yy (1 − dy²/yy)).
        const float inverse = reciprocal_approx(o.yy);
        r.slope = -o.xy * inverse, r.half = o.determinant * inverse;
        r.steepness = root_approx(r.half) * reciprocal_approx(height);
        r.extreme = o.xy * rsqrtf(o.xx);
    }
    unsigned bits = bits_of<MAP, SUBTILE>(r);
    if constexpr (PRIMITIVE == Primitive::gs2d) {
        const Place2 circle = circle_center(axes.x, axes.y, axes.determinant, s.tilt_x, s.tilt_y);
        const float radius = root_approx(0.5f * squared);
        r.x = mean_x + circle.x, r.y = mean_y + circle.y;
        r.height = radius + r.slack, r.extreme = r.slope = 0.0f;
        r.half = SUBTILE == Subtile::aabb ? radius : radius * radius;
        r.steepness = SUBTILE == Subtile::aabb ? 0.0f : 1.0f;
        bits |= bits_of<MAP, SUBTILE>(r);
    }
    return bits;
}

// ---- One name for all primitives ------------------------------------------------------------------------------------

template <Primitive PRIMITIVE>
struct StagedFor {
    using type = StagedTilted;
};
template <>
struct StagedFor<Primitive::gs3d> {
    using type = Staged;
};
template <Primitive PRIMITIVE>
using StagedOf = typename StagedFor<PRIMITIVE>::type;

template <Primitive PRIMITIVE>
__device__ __forceinline__ StagedOf<PRIMITIVE> empty_of() {
    if constexpr (is_tilted(PRIMITIVE)) return empty_tilted();
    else return empty_splat();
}
// Loads the splat at an address in shared memory, 16 bytes at a time.
template <Primitive PRIMITIVE>
__device__ __forceinline__ StagedOf<PRIMITIVE> staged_from(unsigned address) {
    if constexpr (is_tilted(PRIMITIVE)) {
        StagedTilted t;
        static_cast<Staged&>(t) = staged_at(address);
        const auto row = load_shared<float4>(address + 48);
        t.at_corner = row.x, t.tilt_x = row.y, t.tilt_y = row.z, t.more = row.w;
        return t;
    } else {
        return staged_at(address);
    }
}
template <Primitive PRIMITIVE, Exponential EXP, bool LOG2_OPACITY, int ROWS>
__device__ __forceinline__ auto evaluate_for(const StagedOf<PRIMITIVE>& s, const Spot& spot) {
    if constexpr (is_tilted(PRIMITIVE)) return evaluate_tilted<PRIMITIVE, EXP, LOG2_OPACITY, ROWS>(s, spot);
    else return evaluate<EXP, LOG2_OPACITY, ROWS>(s, spot);
}
// Reads what a splat's record does not hold. `Args` has `depths` and `closeness`.
template <Primitive PRIMITIVE, bool WANTS_DEPTH, class Args>
__device__ __forceinline__ Aside load_aside(const Args& args, unsigned slot) {
    Aside aside{};
    if constexpr (PRIMITIVE == Primitive::gs2d) aside.near_z = args.frame->near_z;
    if constexpr (PRIMITIVE == Primitive::gs2d || WANTS_DEPTH) aside.depth = args.depths[slot];
    if constexpr (PRIMITIVE == Primitive::gut3d) aside.closeness = args.closeness[slot];
    return aside;
}
template <Primitive PRIMITIVE, bool LOG2_OPACITY>
__device__ __forceinline__ StagedOf<PRIMITIVE> stage_for(const Splat& s, const Aside& aside, int tile_x, int tile_y,
                                                         unsigned index, unsigned slot) {
    if constexpr (is_tilted(PRIMITIVE)) {
        return stage_tilted<PRIMITIVE, LOG2_OPACITY>(s, aside, tile_x, tile_y, index, slot);
    } else {
        Staged staged = staged_splat<LOG2_OPACITY>(s, whitened(s), tile_x, tile_y, index, slot);
        staged.depth = aside.depth;
        return staged;
    }
}
// Returns a bit for each warp with a pixel where the splat's alpha may reach 1/255.
template <Primitive PRIMITIVE, Map MAP, Subtile SUBTILE>
__device__ __forceinline__ unsigned warp_bits_for(const StagedOf<PRIMITIVE>& staged, const Splat& s, const Aside& aside,
                                                  const ListRange& range) {
    if constexpr (SUBTILE == Subtile::off) return (1u << warps_of(MAP)) - 1u;
    const float x = s.x - float(range.tile_x), y = s.y - float(range.tile_y);
    if constexpr (is_tilted(PRIMITIVE)) return tilted_bits<PRIMITIVE, MAP, SUBTILE>(s, aside, x, y);
    else return bits_of<MAP, SUBTILE>(reach_of<SUBTILE>(staged, x, y, s.log2_opacity));
}
