// Turns the sums of each visible splat into the gradients of its raw parameters.
//
// 128 threads a block, a thread a Gaussian, or with `by_slot` a thread a slot of the capacity. A thread finds its
// Gaussian's slot from what projection left for its warp. It then runs the chain rule back through project.cuh
// (geometry_backward.cuh, geometry_backward_tilted.cuh). It sets the sums it has read, and their mark, back to 0, so
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
#include "geometry_backward_tilted.cuh"
#include "sh_backward.cuh"

enum class Zero : int {
    memset,  // the host clears the gradients beforehand
    coop,    // this kernel clears them: the harmonics a warp together, the rest each thread
};

struct ProjectBackwardPolicy {
    Primitive primitive = Primitive::gs3d;
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
    const float* __restrict__ closeness;        // [V] gut3d
    const uint2* __restrict__ warp_slots;       // [ceil(N / 32)] visible lanes, first slot of the group
    const unsigned* __restrict__ slot_lanes;    // [ceil(N / 32)] lanes that have a slot
    float* sums;                                // [V, 12 or 16] as blend_backward leaves them; left at 0
    long long* integer_sums;                    // the same, deterministic: in place of sums; left at 0
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

template <Primitive PRIMITIVE, bool DETERMINISTIC>
__device__ __forceinline__ Sums<PRIMITIVE> load_sums(const ProjectBackwardArgs& args, unsigned slot) {
    constexpr int ROW = Sums<PRIMITIVE>::ROW;
    Sums<PRIMITIVE> sums;
    if constexpr (DETERMINISTIC) {
        const long long* row = args.integer_sums + size_t(slot) * ROW;
        const float unit = 1.0f / args.integer_scale;
#pragma unroll
        for (int i = 0; i < ROW; i++) sums.of[i] = float(row[i]) * unit;
    } else {
        const float4* row = reinterpret_cast<const float4*>(args.sums + size_t(slot) * ROW);
#pragma unroll
        for (int i = 0; i < ROW; i += 4) {
            const float4 four = row[i / 4];
            sums.of[i] = four.x, sums.of[i + 1] = four.y, sums.of[i + 2] = four.z, sums.of[i + 3] = four.w;
        }
    }
    return sums;
}
// Clears the sums of `count` slots from `slot` on, 16 bytes at a time: parts `part`, part + stride, …
template <Primitive PRIMITIVE, bool DETERMINISTIC>
__device__ __forceinline__ void clear_sums(const ProjectBackwardArgs& args, unsigned slot, unsigned count,
                                           unsigned part, unsigned stride) {
    constexpr unsigned PARTS = unsigned(sum_row(PRIMITIVE)) / (DETERMINISTIC ? 2 : 4);  // in a slot
    uint4* sums = DETERMINISTIC ? reinterpret_cast<uint4*>(args.integer_sums) : reinterpret_cast<uint4*>(args.sums);
    sums += size_t(slot) * PARTS;
#pragma unroll 1
    for (; part < count * PARTS; part += stride) sums[part] = make_uint4(0u, 0u, 0u, 0u);
}

// ---- A Gaussian of the scene ----------------------------------------------------------------------------------------

__device__ __forceinline__ float3 load_float3(const float* values, size_t n) {
    return make_float3(values[3 * n], values[3 * n + 1], values[3 * n + 2]);
}
__device__ __forceinline__ void store_float3(float* values, size_t n, float3 v) {
    values[3 * n] = v.x, values[3 * n + 1] = v.y, values[3 * n + 2] = v.z;
}

__device__ __forceinline__ void store_gradient(const ProjectBackwardArgs& args, size_t n, const GaussianGradient& g) {
    store_float3(args.means_gradient, n, g.mean);
    store_float3(args.log_scales_gradient, n, g.log_scales);
    args.quats_gradient[n] = g.quat;
    args.logit_opacities_gradient[n] = g.logit;
    args.means2d_gradient[n] = g.mean2d;
}

template <Primitive PRIMITIVE, bool DETERMINISTIC>
__device__ __forceinline__ Backward<PRIMITIVE> begin_backward(const ProjectBackwardArgs& args, size_t n, unsigned slot,
                                                              const Splat& splat) {
    const Frame& frame = *args.frame;
    const float3 mean = load_float3(args.means, n);
    Backward<PRIMITIVE> b;
    b.sums = load_sums<PRIMITIVE, DETERMINISTIC>(args, slot);
    b.offset = make_float3(mean.x - frame.position[0] - frame.position_rest[0],
                           mean.y - frame.position[1] - frame.position_rest[1],
                           mean.z - frame.position[2] - frame.position_rest[2]);
    b.inverse_distance = rsqrtf(dot(b.offset, b.offset));
    b.direction = b.inverse_distance * b.offset;
    // A channel that was clamped to 0 has no gradient.
    constexpr int RED = red_place(PRIMITIVE), GREEN = green_place(PRIMITIVE), BLUE = blue_place(PRIMITIVE);
    b.sums.of[RED] = splat.red > 0.0f ? b.sums.of[RED] : 0.0f;
    b.sums.of[GREEN] = splat.green > 0.0f ? b.sums.of[GREEN] : 0.0f;
    b.sums.of[BLUE] = splat.blue > 0.0f ? b.sums.of[BLUE] : 0.0f;
    return b;
}

__device__ __forceinline__ Shape load_shape(const ProjectBackwardArgs& args, size_t n) {
    return {load_float3(args.log_scales, n), args.quats[n], args.logit_opacities[n]};
}

// Computes the gradients that come through the colour: hands those of the harmonics to `put`, and returns that of the
// offset from the camera.
template <ProjectBackwardPolicy P, class Put>
__device__ __forceinline__ float3 color_backward(const Backward<P.primitive>& b, const void* row, Put put,
                                                 int degree) {
    const float3 by_color = make_float3(b.sums.of[red_place(P.primitive)], b.sums.of[green_place(P.primitive)],
                                        b.sums.of[blue_place(P.primitive)]);
    const float3 raw = sh_backward<P.sh_bwd, P.sh_dtype>(row, put, degree, b.direction, by_color);
    return b.inverse_distance * add_scaled(raw, -dot(raw, b.direction), b.direction);
}

// The same for any primitive.
template <ProjectBackwardPolicy P>
__device__ __forceinline__ GaussianGradient gradient_of(const ProjectBackwardArgs& args, unsigned slot,
                                                        const Splat& splat, const Backward<P.primitive>& backward,
                                                        const Shape& shape, float3 by_offset) {
    if constexpr (is_tilted(P.primitive)) {
        const float closeness = P.primitive == Primitive::gut3d ? args.closeness[slot] : 0.0f;
        return tilted_backward<P.primitive>(*args.frame, backward, shape, splat, closeness, by_offset);
    } else {
        GaussianGradient gradient = geometry_backward<P.filter>(*args.frame, backward, shape, by_offset);
        if constexpr (P.absolute) gradient.mean2d = absolute_gradient(backward.sums);
        return gradient;
    }
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

    Backward<P.primitive> b;
    Shape shape;
    Splat splat;
    if (is_active) {
        if constexpr (P.touched) args.touched[slot] = 0;
        shape = load_shape(args, n);
        splat = load_splat<P.layout>(args.splats, args.frame->visible_capacity, slot);
        b = begin_backward<P.primitive, P.deterministic>(args, n, slot, splat);
    }
    wait_for_copies();
    __syncwarp();
    sink.template catch_up<D>(rows, n, is_active);
    if (active) clear_sums<P.primitive, P.deterministic>(args, first_slot, held, lane_index(), 32);
    GaussianGradient gradient{};
    if (is_active) {
        const auto put = [&](int group, float4 weight, float3 by_color) {
            sink.template put<D>(own_row, group, weight, by_color);
        };
        const float3 by_offset = color_backward<P>(b, own_row, put, frame.sh_degree);
        gradient = gradient_of<P>(args, slot, splat, b, shape, by_offset);
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
        const Backward<P.primitive> b = begin_backward<P.primitive, P.deterministic>(args, n, slot, splat);
        clear_sums<P.primitive, P.deterministic>(args, slot, 1, 0, 1);
        const void* row = sh_row<P.sh_dtype>(args.sh, n);
        void* sh_gradient = const_cast<void*>(sh_row<P.sh_dtype>(args.sh_gradient, n));
        const float3 by_offset = color_backward<P>(
            b, row,
            [=](int group, float4 weight, float3 by_color) {
                store_sh_gradient<P.sh_dtype>(sh_gradient, group, weight, by_color);
            },
            frame.sh_degree);
        store_gradient(args, n, gradient_of<P>(args, slot, splat, b, load_shape(args, n), by_offset));
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
