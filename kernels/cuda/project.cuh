// From the scene's parameters to the visible splats, packed without gaps in the order of the scene.
//
// One thread a Gaussian, 256 a block, one block a part of 256; parts are handed out by ticket. A thread projects its
// Gaussian (Zwicker et al. 2002, x/z held inside the Jacobian only), drops it where a value is not finite, it is
// nearer than the near plane, too faint or in no tile, and evaluates its colour. Look-back over the blocks gives the
// visible their slots; slot order is scene order, so every run gives the same. Shared: a word a warp and three more;
// with sh_load = staged, also 3.3 KB a warp (bf16: 1.75 KB) for rows of harmonics.
// What the backward pass needs to find a Gaussian's slot again is one pair a warp: which lanes are visible, and the
// slot of the first of them.
//
// Policy: bounds, which tiles count (tiles.cuh); sh_gate, colour of all or of those with a tile only; sh_load and
// sh_dtype, how a row of harmonics is read and stored (sh.cuh). Does not sort: read sort.cuh next.
#pragma once
#include "frame.cuh"
#include "sh.cuh"
#include "tiles.cuh"

enum class ShGate : int { all, visible };

struct ProjectPolicy {
    Bounds bounds = Bounds::row_span;
    ShGate sh_gate = ShGate::visible;
    ShLoad sh_load = ShLoad::float4;
    ShDtype sh_dtype = ShDtype::f32;
};

constexpr float LARGEST_LOG_SCALE = 88.72283172607422f;  // its exponential is the last that single precision holds
constexpr unsigned PROJECT_THREADS = 256, PROJECT_WARPS = PROJECT_THREADS / 32;

struct ProjectArgs {
    Frame* frame;
    const float* __restrict__ means;            // [N][3] world units
    const float* __restrict__ log_scales;       // [N][3]
    const float4* __restrict__ quats;           // [N] w, x, y, z of any length but zero
    const float* __restrict__ logit_opacities;  // [N]
    const void* __restrict__ sh;                // [N][16][3], rows beyond the scene's degree unused
    Splat* splats;                              // out [visible_capacity] by slot
    Extent* extents;                            // out [visible_capacity] by slot
    unsigned* depth_bits;                       // out [visible_capacity] by slot: camera z, whose bits sort like it
    uint2* warp_slots;                          // out [ceil(N / 32)] visible lanes, slot of the first of them
    unsigned long long* look_back;              // [ceil(N / 256)]
    unsigned ticket;                            // which of Frame::tickets counts parts
};

// A Gaussian on the image plane.
struct Projected {
    float x, y, z;         // px, px, camera z
    float xx, xy, yy;      // covariance with dilation, px²
    float determinant;     // px⁴
    float log2_opacity;
};

// Axes of the splat in world units are the columns of its rotation times the scales. 2/|q|² stands in for the
// square root of a normalisation.
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

// Divides by the largest component where squares would leave single precision; false for no rotation at all.
__device__ __forceinline__ bool tame_quaternion(float4& q) {
    const float squared = q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w;
    if (squared > 1e-30f && squared < 1e30f) return true;
    const float largest = fmaxf(fmaxf(fabsf(q.x), fabsf(q.y)), fmaxf(fabsf(q.z), fabsf(q.w)));
    q = make_float4(q.x / largest, q.y / largest, q.z / largest, q.w / largest);
    return largest > 0.0f;
}

// What the threads read of the frame, in wide loads.
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
    // Lagrange's identity: the determinant as a sum of squares, so that nothing cancels for needles.
    const float3 area = make_float3(difference_of_products(ax.y, ay.z, ax.z, ay.y),
                                    difference_of_products(ax.z, ay.x, ax.x, ay.z),
                                    difference_of_products(ax.x, ay.y, ax.y, ay.x));
    Projected p;
    p.x = fmaf(ratio_x, v.fx, v.cx);
    p.y = fmaf(ratio_y, v.fy, v.cy);
    p.z = in_view.z;
    p.xx = thin_xx + DILATION;
    p.yy = thin_yy + DILATION;
    p.xy = dot(ax, ay);
    p.determinant = dot(area, area) + (DILATION * (thin_xx + thin_yy) + DILATION * DILATION);
    p.log2_opacity = -log2_approx(1.0f + exp2_approx(-LOG2_E * logit));
    return p;
}

__device__ __forceinline__ bool is_finite(const Projected& p) {
    return is_finite(p.x) && is_finite(p.y) && is_finite(p.xx) && is_finite(p.yy) && is_finite(p.determinant);
}

// The record without colour, and which tiles may list it.
//
// The squared radius r² = 2 ln(255 opacity) is widened by what the quadratic form of a thin splat may be off by in
// single precision, xx yy / det units in the last place: no pixel that blends it is ever outside its tiles.
template <Bounds B>
__device__ __forceinline__ Extent measure(const Projected& p, const Frame& frame, Splat& splat) {
    const float inverse = reciprocal(p.determinant);
    splat.x = p.x, splat.y = p.y;
    splat.a = -0.5f * LOG2_E * p.yy * inverse;
    splat.b = LOG2_E * p.xy * inverse;
    splat.c = -0.5f * LOG2_E * p.xx * inverse;
    splat.log2_opacity = p.log2_opacity;

    const float thinness = fminf(p.yy * inverse * p.xx, 1e9f);  // at least 1
    const float cutoff = 2.0f * LN_2 * (p.log2_opacity - LOG2_ALPHA_MIN) * fmaf(4.0f * 0x1p-23f, thinness, 1.0f);
    const float inverse_radius = rsqrtf(fmaxf(cutoff, 1e-30f)), radius = cutoff * inverse_radius;
    const float inverse_sigma_x = rsqrtf(p.xx), inverse_sigma_y = rsqrtf(p.yy);
    splat.half_width = radius * p.xx * inverse_sigma_x;
    splat.half_height = radius * p.yy * inverse_sigma_y;

    Extent e;
    e.x = p.x, e.y = p.y;
    e.half_width = splat.half_width;
    e.spread = radius * p.determinant * rsqrtf(p.determinant) * inverse_sigma_y;
    e.correlation = p.xy * inverse_sigma_x * inverse_sigma_y;
    e.inverse_half_height = inverse_radius * inverse_sigma_y;
    float half_width = splat.half_width, half_height = splat.half_height;
    if constexpr (B == Bounds::circle3s) {
        const float mean = 0.5f * (p.xx + p.yy), difference = 0.5f * (p.xx - p.yy);
        half_width = half_height = ceilf(3.0f * sqrtf(mean + sqrtf(difference * difference + p.xy * p.xy)));
    }
    e.rows = tile_range(p.y - half_height, p.y + half_height, frame.tile_rows);
    e.tiles = tile_range(p.x - half_width, p.x + half_width, frame.tile_columns);
    if (e.tiles == 0) e.rows = 0;
    return e;
}

// ---- One thread's Gaussian -----------------------------------------------------------------------------------------

struct Parameters {
    float3 mean, log_scales;
    float4 quat;
    float logit;
};
__device__ __forceinline__ Parameters load_parameters(const ProjectArgs& args, size_t n) {
    const float *mean = args.means + 3 * n, *log_scales = args.log_scales + 3 * n;
    return {make_float3(mean[0], mean[1], mean[2]), make_float3(log_scales[0], log_scales[1], log_scales[2]),
            args.quats[n], args.logit_opacities[n]};
}

// False for values no splat can have. An infinite opacity logit is an opacity of 0 or 1. The quaternion may be scaled.
__device__ __forceinline__ bool make_usable(Parameters& p) {
    // 0 x is 0 for finite x and NaN otherwise: one comparison covers them all.
    float defect = 0.0f * p.mean.x;
    for (const float value : {p.mean.y, p.mean.z, p.log_scales.x, p.log_scales.y, p.log_scales.z, p.quat.x, p.quat.y,
                              p.quat.z, p.quat.w})
        defect = fmaf(0.0f, value, defect);
    const float largest = fmaxf(fmaxf(p.log_scales.x, p.log_scales.y), p.log_scales.z);
    return defect == 0.0f && largest <= LARGEST_LOG_SCALE && p.logit == p.logit && tame_quaternion(p.quat);
}

struct Seen {
    Splat splat;    // all but colour and name
    Extent extent;  // no rows if it is not seen
    float3 offset;  // of the mean from the camera, world axes
    float depth;
    bool is_skipped;
};
template <ProjectPolicy P>
__device__ __forceinline__ void see(const ProjectArgs& args, unsigned n, const View& v, Seen& seen) {
    Parameters p = load_parameters(args, n);
    seen.is_skipped = !make_usable(p);
    seen.offset =
        make_float3(p.mean.x - v.position[0] - v.position_rest[0], p.mean.y - v.position[1] - v.position_rest[1],
                    p.mean.z - v.position[2] - v.position_rest[2]);
    const float* r = v.rotation;
    const float3 in_view =
        make_float3(dot(make_float3(r[0], r[1], r[2]), seen.offset), dot(make_float3(r[3], r[4], r[5]), seen.offset),
                    dot(make_float3(r[6], r[7], r[8]), seen.offset));
    if (seen.is_skipped || !(in_view.z > v.near_z)) return;
    const float3 scales = make_float3(expf(p.log_scales.x), expf(p.log_scales.y), expf(p.log_scales.z));
    const Projected projected = project_gaussian(v, in_view, p.quat, scales, p.logit);
    if (!(projected.log2_opacity >= LOG2_ALPHA_MIN)) return;
    seen.is_skipped = !is_finite(projected);
    seen.depth = projected.z;
    if (!seen.is_skipped) seen.extent = measure<P.bounds>(projected, *args.frame, seen.splat);
}

// ---- Colour ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float3 normalized(float3 v) { return rsqrtf(dot(v, v)) * v; }

// Those of a warp's lanes that are in want of a colour give their rows to the warp to fetch, which most often makes do
// with one round: few of a scene's splats are in view.
constexpr unsigned STAGED_ROWS = 16;

template <ShDtype D>
__device__ __forceinline__ float3 staged_color(const void* sh, unsigned n, float3 offset, int degree, bool is_wanted) {
    __shared__ uint4 shared_rows[PROJECT_WARPS][STAGED_ROWS * STAGED_PARTS<D>];
    uint4* rows = shared_rows[warp_index()];
    const unsigned lanes = __ballot_sync(FULL_WARP, is_wanted), count = static_cast<unsigned>(__popc(lanes));
    const unsigned rank = static_cast<unsigned>(__popc(lanes & ((1u << lane_index()) - 1)));
    unsigned* names = reinterpret_cast<unsigned*>(rows);
    if (is_wanted) names[rank] = n;
    __syncwarp();
    const unsigned name = names[lane_index()];  // the lane of each rank has that rank's
    const unsigned parts = sh_parts_in_use<D>(degree);
    float3 color = make_float3(0.0f, 0.0f, 0.0f);
    for (unsigned begin = 0; begin < count; begin += STAGED_ROWS) {
        __syncwarp();
        for_each_part<STAGED_ROWS, SH_PARTS<D>>([&](unsigned step, unsigned row, unsigned column) {
            const unsigned m = __shfl_sync(FULL_WARP, name, int(begin + row));
            if (begin + row < count && column < parts)
                copy_16_async(rows + row + step * 32 + lane_index(),
                              static_cast<const uint4*>(sh_row<D>(sh, m)) + column);
        });
        wait_for_copies();
        __syncwarp();
        if (is_wanted && rank - begin < STAGED_ROWS)
            color = evaluate_sh<D, ShLoad::staged>(rows + (rank - begin) * STAGED_PARTS<D>, normalized(offset), degree);
    }
    return color;
}

template <ProjectPolicy P>
__device__ __forceinline__ float3 color_of(const ProjectArgs& args, unsigned n, float3 offset, bool is_wanted) {
    constexpr ShDtype D = P.sh_dtype;
    const int degree = args.frame->sh_degree;
    if constexpr (P.sh_load == ShLoad::staged) return staged_color<D>(args.sh, n, offset, degree, is_wanted);
    if (!is_wanted) return make_float3(0.0f, 0.0f, 0.0f);
    return evaluate_sh<D, P.sh_load>(sh_row<D>(args.sh, n), normalized(offset), degree);
}

// ---- The block's slots ---------------------------------------------------------------------------------------------

// For the thread that knows the number of all visible.
__device__ __forceinline__ void finish_visible(Frame& frame, unsigned wanted) {
    const bool fits = wanted <= frame.visible_capacity;
    frame.visible_wanted = wanted;
    frame.visible = fits ? wanted : 0;
    if (!fits) atomicOr(&frame.overflow, OVERFLOW_VISIBLE);
}

// The slot of the first visible lane of this warp. `lanes`: the warp's visible ones.
__device__ __forceinline__ unsigned first_slot(Frame& frame, unsigned long long* words, unsigned part, unsigned parts,
                                               unsigned lanes) {
    __shared__ unsigned warp_counts[PROJECT_WARPS];
    __shared__ unsigned shared_before;
    if (lane_index() == 0) warp_counts[warp_index()] = static_cast<unsigned>(__popc(lanes));
    __syncthreads();
    unsigned in_block = 0, total = 0;
#pragma unroll
    for (unsigned w = 0; w < PROJECT_WARPS; w++) {
        if (w == warp_index()) in_block = total;
        total += warp_counts[w];
    }
    if (warp_index() == 0) {
        const unsigned before = static_cast<unsigned>(look_back(words, part, total, look_back_tag(frame.epoch, 0)));
        if (lane_index() == 0) {
            shared_before = before;
            if (part == parts - 1) finish_visible(frame, before + total);
        }
    }
    __syncthreads();
    return shared_before + in_block;
}

template <ProjectPolicy P>
__global__ void __launch_bounds__(PROJECT_THREADS, 4) project(ProjectArgs args) {
    __shared__ unsigned shared_part;
    Frame& frame = *args.frame;
    const unsigned count = frame.gaussians, parts = ceil_div(count, PROJECT_THREADS);
    if (blockIdx.x >= parts) return;
    if (threadIdx.x == 0) shared_part = atomicAdd(&frame.tickets[args.ticket], 1u);
    __syncthreads();
    const unsigned part = shared_part, n = part * PROJECT_THREADS + threadIdx.x;

    Seen seen{};
    if (n < count) see<P>(args, n, load_view(&frame), seen);
    const unsigned tiles = count_tiles<P.bounds>(seen.extent, frame.tile_columns);
    bool is_visible = tiles > 0;
    const float3 color = color_of<P>(args, n, seen.offset, P.sh_gate == ShGate::all ? n < count : is_visible);
    if (is_visible) {
        is_visible = is_finite(color.x) && is_finite(color.y) && is_finite(color.z);
        seen.is_skipped = !is_visible;
    }

    const unsigned lanes = __ballot_sync(FULL_WARP, is_visible), skipped = __ballot_sync(FULL_WARP, seen.is_skipped);
    if (lane_index() == 0 && skipped) atomicAdd(&frame.skipped, static_cast<unsigned>(__popc(skipped)));
    const unsigned first = first_slot(frame, args.look_back, part, parts, lanes);
    if (lane_index() == 0 && n < count) args.warp_slots[n / 32] = make_uint2(lanes, first);
    const unsigned slot = first + static_cast<unsigned>(__popc(lanes & ((1u << lane_index()) - 1)));
    if (!is_visible || slot >= frame.visible_capacity) return;
    Splat& splat = seen.splat;
    splat.red = fmaxf(color.x, 0.0f), splat.green = fmaxf(color.y, 0.0f), splat.blue = fmaxf(color.z, 0.0f);
    splat.gaussian = n;
    if constexpr (P.bounds == Bounds::row_span) seen.extent.tiles = tiles;
    store_splat(args.splats, slot, splat);
    store_extent(args.extents, slot, seen.extent);
    args.depth_bits[slot] = __float_as_uint(seen.depth);
}
