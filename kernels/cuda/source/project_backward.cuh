// Turns the nine sums of each visible splat into the gradients of its raw parameters.
//
// 128 threads a block, a thread a Gaussian, or with `by_slot` a thread a slot of the capacity. A thread finds its
// Gaussian's slot from what projection left for its warp. It then runs the chain rule back through project.cuh, with
// the exact derivative of the limits inside the Jacobian. It sets the sums it has read, and their mark, back to 0, so
// that the next backward pass finds them cleared; the host clears them only once, when it allocates them. `zero`
// decides who writes the gradients of Gaussians without sums. Read it side by side with project.cuh.
//
// Policy values of `sh_bwd`:
// - regs: a thread first loads its 48 harmonics;
// - stream4: a thread takes its harmonics through 12 registers, a group of four rows at a time;
// - staged: each warp works alone in 6.5 KB of shared memory (bf16: 3.5 KB), a row a lane. It fetches the rows in use
//   together with all else that it reads. Each lane writes the gradient of its row over the row, and the warp writes
//   all 32 rows, zeros among them, as one run of bytes.
// `sh_dtype`: how harmonics are read and their gradients stored; bf16 rounds to nearest even.
#pragma once
#include "filter.cuh"
#include "frame.cuh"
#include "reduce.cuh"
#include "sh_backward.cuh"

enum class Zero : int {
    memset,  // the host clears the gradients beforehand
    coop,    // this kernel clears them: the harmonics a warp together, the rest each thread
};

struct ProjectBackwardPolicy {
    Filter filter = Filter::plain;
    ShBackward sh_bwd = ShBackward::stream4;
    Zero zero = Zero::coop;
    ShDtype sh_dtype = ShDtype::f32;
    Layout layout = Layout::packed48;  // of the splats' records
    bool touched = true;        // only splats that the backward pass has marked have sums
    bool deterministic = false;  // sums are integers
    bool by_slot = false;       // a thread a slot
    bool absolute = false;      // the means2d gradient is computed from the sums of absolute values
};

constexpr int PROJECT_BACKWARD_THREADS = 128, PROJECT_BACKWARD_WARPS = PROJECT_BACKWARD_THREADS / 32;

struct ProjectBackwardArgs {
    const Frame* frame;
    const float* __restrict__ means;            // [N, 3]
    const float* __restrict__ log_scales;       // [N, 3]
    const float4* __restrict__ quats;           // [N]
    const float* __restrict__ logit_opacities;  // [N]
    const void* __restrict__ sh;                // [N, 16, 3]
    const Splat* __restrict__ splats;           // [V]
    const uint2* __restrict__ warp_slots;       // [ceil(N / 32)] visible lanes, first slot of the group
    const unsigned* __restrict__ slot_lanes;    // [ceil(N / 32)] lanes that have a slot
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
template <bool DETERMINISTIC>
__device__ __forceinline__ Sums load_sums(const ProjectBackwardArgs& args, unsigned slot) {
    Sums sums;
    if constexpr (DETERMINISTIC) {
        const long long* row = args.integer_sums + size_t(slot) * 12;
        const float unit = 1.0f / args.integer_scale;
#pragma unroll
        for (int i = 0; i < SUM_ROW; i++) sums.of[i] = float(row[i]) * unit;
    } else {
        const float4* row = reinterpret_cast<const float4*>(args.sums + size_t(slot) * 12);
        const float4 a = row[0], b = row[1], c = row[2];
        sums = {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w}};
    }
    return sums;
}
// Clears the sums of `count` slots from `slot` on, 16 bytes at a time: parts `part`, part + stride, …
template <bool DETERMINISTIC>
__device__ __forceinline__ void clear_sums(const ProjectBackwardArgs& args, unsigned slot, unsigned count,
                                           unsigned part, unsigned stride) {
    constexpr unsigned PARTS = DETERMINISTIC ? 6 : 3;  // in a slot
    uint4* sums = DETERMINISTIC ? reinterpret_cast<uint4*>(args.integer_sums) : reinterpret_cast<uint4*>(args.sums);
    sums += size_t(slot) * PARTS;
#pragma unroll 1
    for (; part < count * PARTS; part += stride) sums[part] = make_uint4(0u, 0u, 0u, 0u);
}

// ---- Geometry -------------------------------------------------------------------------------------------------------

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
__device__ __forceinline__ ImageGradient image_gradient(const Sums& sums, float xx, float xy, float determinant) {
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
__device__ __forceinline__ float2 absolute_gradient(const Sums& sums) {
    return make_float2(2.0f * LN_2 * sums.of[M_ABSOLUTE_X], 2.0f * LN_2 * sums.of[M_ABSOLUTE_Y]);
}

__device__ __forceinline__ float3 load_float3(const float* values, size_t n) {
    return make_float3(values[3 * n], values[3 * n + 1], values[3 * n + 2]);
}
__device__ __forceinline__ void store_float3(float* values, size_t n, float3 v) {
    values[3 * n] = v.x, values[3 * n + 1] = v.y, values[3 * n + 2] = v.z;
}

// Gradients of one Gaussian, without those of its harmonics.
struct GaussianGradient {
    float3 mean, log_scales;
    float4 quat;
    float logit;
    float2 mean2d;
};
__device__ __forceinline__ void store_gradient(const ProjectBackwardArgs& args, size_t n, const GaussianGradient& g) {
    store_float3(args.means_gradient, n, g.mean);
    store_float3(args.log_scales_gradient, n, g.log_scales);
    args.quats_gradient[n] = g.quat;
    args.logit_opacities_gradient[n] = g.logit;
    args.means2d_gradient[n] = g.mean2d;
}

// What the backward pass keeps of a Gaussian.
struct Backward {
    Sums sums;
    float3 offset, direction;  // from the camera to the mean; the same, of unit length
    float inverse_distance;
};
template <bool DETERMINISTIC>
__device__ __forceinline__ Backward begin_backward(const ProjectBackwardArgs& args, size_t n, unsigned slot,
                                                   const Splat& splat) {
    const Frame& frame = *args.frame;
    const float3 mean = load_float3(args.means, n);
    Backward b;
    b.sums = load_sums<DETERMINISTIC>(args, slot);
    b.offset = make_float3(mean.x - frame.position[0] - frame.position_rest[0],
                           mean.y - frame.position[1] - frame.position_rest[1],
                           mean.z - frame.position[2] - frame.position_rest[2]);
    b.inverse_distance = rsqrtf(dot(b.offset, b.offset));
    b.direction = b.inverse_distance * b.offset;
    // A channel that was clamped to 0 has no gradient.
    b.sums.of[M_RED] = splat.red > 0.0f ? b.sums.of[M_RED] : 0.0f;
    b.sums.of[M_GREEN] = splat.green > 0.0f ? b.sums.of[M_GREEN] : 0.0f;
    b.sums.of[M_BLUE] = splat.blue > 0.0f ? b.sums.of[M_BLUE] : 0.0f;
    return b;
}

struct Shape {
    float3 log_scales;
    float4 quat;
    float logit_opacity;
};
__device__ __forceinline__ Shape load_shape(const ProjectBackwardArgs& args, size_t n) {
    return {load_float3(args.log_scales, n), args.quats[n], args.logit_opacities[n]};
}

// Computes the gradients that come through the colour: hands those of the harmonics to `put`, and returns that of the
// offset from the camera.
template <ProjectBackwardPolicy P, class Put>
__device__ __forceinline__ float3 color_backward(const Backward& b, const void* row, Put put, int degree) {
    const float3 by_color = make_float3(b.sums.of[M_RED], b.sums.of[M_GREEN], b.sums.of[M_BLUE]);
    const float3 raw = sh_backward<P.sh_bwd, P.sh_dtype>(row, put, degree, b.direction, by_color);
    return b.inverse_distance * add_scaled(raw, -dot(raw, b.direction), b.direction);
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
__device__ __forceinline__ GaussianGradient geometry_backward(const Frame& frame, const Backward& backward,
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

// ---- Where gradients go ---------------------------------------------------------------------------------------------

// Stores a warp's gradients in the arrays. Every class that takes gradients has these members. All lanes call them;
// `first` is the warp's first Gaussian.
struct StoreGradients {
    // True: all rows are fetched, before anything else. False: only rows of active lanes.
    static constexpr bool FETCHES_ALL = false;

    const ProjectBackwardArgs& args;

    // Nothing to catch up: the fetched rows are what the forward pass read.
    template <ShDtype D>
    __device__ __forceinline__ void catch_up(uint4*, size_t, bool) const {}
    // Takes rows 4 group … 4 group + 3 of the lane's gradient: `weight` times `by_color`. `own_row` is the row as
    // fetched.
    template <ShDtype D>
    __device__ __forceinline__ void put(uint4* own_row, int group, float4 weight, float3 by_color) const {
        store_sh_gradient<D>(own_row, group, weight, by_color);
    }
    __device__ __forceinline__ void put_nothing() const {}
    // Stores the gradients that lanes have `put`; `filled` has a bit for each such lane.
    template <ShDtype D>
    __device__ __forceinline__ void harmonics(size_t first, size_t count, unsigned filled, uint4* rows) const {
        const uint4* staged = rows + lane_index();
        store_sh_rows<D>(args.sh_gradient, first, count, FULL_WARP, [&](unsigned step, unsigned row) {
            return filled >> row & 1u ? staged[row + step * 32] : make_uint4(0u, 0u, 0u, 0u);
        });
    }
    // Stores the other gradients. `numbers` is shared memory with those of all lanes: 96 of means, then 96 of log
    // scales. `g` has the lane's own, zeros if it is not active.
    __device__ __forceinline__ void geometry(size_t first, size_t count, unsigned, bool, const float* numbers,
                                             const GaussianGradient& g) const {
        float *means = args.means_gradient + 3 * first + lane_index();
        float *log_scales = args.log_scales_gradient + 3 * first + lane_index();
#pragma unroll
        for (int i = 0; i < 96; i += 32) {
            if (3 * first + i + lane_index() < 3 * count) {
                __stcs(means + i, numbers[i + lane_index()]);
                __stcs(log_scales + i, numbers[96 + i + lane_index()]);
            }
        }
        const size_t n = first + lane_index();
        if (n >= count) return;
        __stcs(args.quats_gradient + n, g.quat);
        __stcs(args.logit_opacities_gradient + n, g.logit);
        __stcs(args.means2d_gradient + n, g.mean2d);
    }
};

// ---- Staged ---------------------------------------------------------------------------------------------------------

// Returns the warp's own rows in shared memory.
template <ShDtype D>
__device__ __forceinline__ uint4* staged_rows() {
    __shared__ uint4 rows[PROJECT_BACKWARD_WARPS][32 * STAGED_PARTS<D>];
    return rows[warp_index()];
}

// Starts to copy the parts in use of rows from `first` on, if `is_wanted(row)`, to the warp's shared memory.
template <ShDtype D, class F>
__device__ __forceinline__ void fetch_rows(const void* sh, size_t first, int degree, F is_wanted) {
    const unsigned parts = sh_parts_in_use<D>(degree);
    const uint4* source = static_cast<const uint4*>(sh_row<D>(sh, first)) + lane_index();
    uint4* staged = staged_rows<D>() + lane_index();
    for_each_part<32, SH_PARTS<D>>([&](unsigned step, unsigned row, unsigned column) {
        if (column < parts && is_wanted(row)) copy_16_async(staged + row + step * 32, source + step * 32);
    });
}

// Computes the gradients of a warp's 32 Gaussians from `first` on. `held` of them have slots, from `first_slot` on; the
// thread's own is `slot`.
template <ProjectBackwardPolicy P, class Sink>
__device__ __forceinline__ void staged_backward(const ProjectBackwardArgs& args, const Sink& sink, size_t first,
                                                unsigned first_slot, unsigned held, unsigned slot, bool is_visible,
                                                bool is_active) {
    constexpr ShDtype D = P.sh_dtype;
    uint4* rows = staged_rows<D>();
    uint4* own_row = rows + lane_index() * STAGED_PARTS<D>;
    const Frame& frame = *args.frame;
    const size_t n = first + lane_index(), count = frame.gaussians;
    const unsigned active = __ballot_sync(FULL_WARP, is_active);
    if constexpr (!Sink::FETCHES_ALL)
        fetch_rows<D>(args.sh, first, frame.sh_degree, [&](unsigned row) { return active >> row & 1u; });

    Backward b;
    Shape shape;
    if (is_active) {
        if constexpr (P.touched) args.touched[slot] = 0;
        shape = load_shape(args, n);
        const Splat splat = load_splat<P.layout>(args.splats, args.frame->visible_capacity, slot);
        b = begin_backward<P.deterministic>(args, n, slot, splat);
    }
    wait_for_copies();
    __syncwarp();
    sink.template catch_up<D>(rows, n, is_active);
    if (active) clear_sums<P.deterministic>(args, first_slot, held, lane_index(), 32);
    GaussianGradient gradient{};
    if (is_active) {
        const auto put = [&](int group, float4 weight, float3 by_color) {
            sink.template put<D>(own_row, group, weight, by_color);
        };
        const float3 by_offset = color_backward<P>(b, own_row, put, frame.sh_degree);
        gradient = geometry_backward<P.filter>(frame, b, shape, by_offset);
        if constexpr (P.absolute) gradient.mean2d = absolute_gradient(b.sums);
    } else {
        sink.put_nothing();
    }
    // Four numbers wait in the gap behind the row, because there are too few registers.
    float4* spare = reinterpret_cast<float4*>(own_row + SH_PARTS<D>);
    *spare = make_float4(gradient.mean.x, gradient.mean.y, gradient.mean.z, gradient.logit);
    __syncwarp();
    // Equals `active`. Voting again keeps the compiler from holding each bit of `active` in a register.
    const unsigned filled = __ballot_sync(FULL_WARP, is_active);
    sink.template harmonics<D>(first, count, filled, rows);

    const float4 waiting = *spare;
    gradient.mean = make_float3(waiting.x, waiting.y, waiting.z), gradient.logit = waiting.w;
    // Means and log scales also pass through shared memory, so that neighbouring lanes write neighbouring bytes.
    __syncwarp();
    float* numbers = reinterpret_cast<float*>(rows);
    store_float3(numbers, lane_index(), gradient.mean);
    store_float3(numbers, 32 + lane_index(), gradient.log_scales);
    __syncwarp();
    sink.geometry(first, count, filled, is_visible, numbers, gradient);
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

template <ProjectBackwardPolicy P, class Sink>
__device__ __forceinline__ void backward_of_thread(const ProjectBackwardArgs& args, const Sink& sink) {
    static_assert(!P.by_slot || P.zero == Zero::memset,
                  "a thread a slot cannot clear what no slot owns: switch zero to memset first");
    static_assert(P.sh_bwd != ShBackward::staged || P.zero == Zero::coop,
                  "a warp writes all of its rows, those without gradients too: switch zero to coop first");
    const Frame& frame = *args.frame;
    const size_t count = frame.gaussians;
    if (frame.overflow) return;
    const unsigned thread = blockIdx.x * PROJECT_BACKWARD_THREADS + threadIdx.x;
    unsigned slot = thread;
    size_t n = thread;
    const size_t first = n - lane_index();
    if constexpr (P.sh_bwd == ShBackward::staged && Sink::FETCHES_ALL) {
        if (first < count)
            fetch_rows<P.sh_dtype>(args.sh, first, frame.sh_degree, [](unsigned) { return true; });
    }
    bool is_active = false;
    unsigned first_slot = 0, lanes = 0;
    if constexpr (P.by_slot) {
        is_active = slot < frame.slots;
    } else if (first < count) {
        const uint2 group = args.warp_slots[n / 32];
        lanes = args.slot_lanes[n / 32];
        is_active = group.x >> lane_index() & 1u;
        first_slot = group.y;
        slot = first_slot + unsigned(__popc(lanes & ((1u << lane_index()) - 1u)));
    }
    const bool is_visible = is_active;
    if constexpr (P.touched) is_active = is_active && args.touched[slot] != 0;

    if constexpr (P.sh_bwd == ShBackward::staged) {
        if (first < count)
            staged_backward<P>(args, sink, first, first_slot, unsigned(__popc(lanes)), slot, is_visible, is_active);
    } else {
        if constexpr (P.zero == Zero::coop) {
            const unsigned active = __ballot_sync(FULL_WARP, is_active);
            if (first < count)
                store_sh_rows<P.sh_dtype>(args.sh_gradient, first, count, ~active,
                                          [](unsigned, unsigned) { return make_uint4(0u, 0u, 0u, 0u); });
            if (!is_active && n < count) store_gradient(args, n, GaussianGradient{});
        }
        if (!is_active) return;

        const Splat splat = load_splat<P.layout>(args.splats, frame.visible_capacity, slot);
        n = splat.gaussian;
        if (P.by_slot && splat.gaussian == NO_GAUSSIAN) return;
        if constexpr (P.touched) args.touched[slot] = 0;
        const Backward b = begin_backward<P.deterministic>(args, n, slot, splat);
        clear_sums<P.deterministic>(args, slot, 1, 0, 1);
        const void* row = sh_row<P.sh_dtype>(args.sh, n);
        void* sh_gradient = const_cast<void*>(sh_row<P.sh_dtype>(args.sh_gradient, n));
        const float3 by_offset = color_backward<P>(
            b, row,
            [=](int group, float4 weight, float3 by_color) {
                store_sh_gradient<P.sh_dtype>(sh_gradient, group, weight, by_color);
            },
            frame.sh_degree);
        GaussianGradient gradient = geometry_backward<P.filter>(frame, b, load_shape(args, n), by_offset);
        if constexpr (P.absolute) gradient.mean2d = absolute_gradient(b.sums);
        store_gradient(args, n, gradient);
    }
}

// Six blocks on a multiprocessor; with more, a thread would spill registers. Before Ampere, shared memory has no room
// for six, and six would spill.
constexpr int PROJECT_BACKWARD_BLOCKS = RESIDENT_THREADS < 1536 ? 4 : 6;

template <ProjectBackwardPolicy P>
__global__ void __launch_bounds__(PROJECT_BACKWARD_THREADS, PROJECT_BACKWARD_BLOCKS)
    project_backward(ProjectBackwardArgs args) {
    backward_of_thread<P>(args, StoreGradients{args});
}
