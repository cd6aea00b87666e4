// Projects the scene's Gaussians and packs the visible ones into slots, without gaps and in the order of the scene.
//
// 128 threads a block. A block takes one part of up to 8 × 128 Gaussians, by ticket. It works in two phases:
//
// 1. Each thread reads position and scales of up to eight Gaussians and keeps those whose enclosing sphere may reach
// the image (`may_be_seen`), which are few. Kept Gaussians get slots in scene order, so that every run gives the same
// slots. The block publishes their number at once. One warp learns by look-back how many slots the earlier parts use,
// while the others work on. 2. The warps take 32 kept Gaussians at a time, with all lanes busy. They project them
// (projection.cuh), find tiles (tiles.cuh) and evaluate colours. About one in a hundred turns out too faint, in no tile
// or not finite. It keeps its slot but has no tiles.
//
// For the backward pass, the block leaves for each 32 Gaussians the slot of the first and a bit for each that has one.
//
// Shared memory:
// - 2.4 KB for the block's bookkeeping (`Part`);
// - at most 7.7 KB for positions and scales of kept Gaussians;
// - 6.2 KB a warp, first for positions and scales of all, then for rows of harmonics (6.4 KB with f32 rows).
//
// Policy:
// - primitive: how a Gaussian or a disk is projected (projection.cuh, projection_tilted.cuh);
// - bounds: which tiles list a splat (tiles.cuh);
// - filter: see filter.cuh;
// - sh_gate: colours of all splats that have a slot, or only of those with a tile;
// - sh_load, sh_dtype: how a row of harmonics is read and stored (sh.cuh). With `staged`, rows are fetched while their
//   splats are projected;
// - layout: of the records written.
// Read sort.cuh next.
#pragma once
#include "lazy.cuh"
#include "projection.cuh"
#include "projection_tilted.cuh"

enum class ShGate : int { all, visible };

struct ProjectPolicy {
    Primitive primitive = Primitive::gs3d;
    Bounds bounds = Bounds::row_span;
    Filter filter = Filter::plain;
    ShGate sh_gate = ShGate::visible;
    ShLoad sh_load = ShLoad::float4;
    ShDtype sh_dtype = ShDtype::f32;
    Layout layout = Layout::packed48;  // of the records it writes
    bool lazy_sh = false;  // harmonics may have missed steps of Adam (lazy.cuh)
};

constexpr float LARGEST_LOG_SCALE = 88.72283172607422f;  // the largest whose exponential single precision holds
constexpr unsigned PROJECT_THREADS = 128, PROJECT_WARPS = PROJECT_THREADS / 32;
constexpr unsigned MOST_ROUNDS = 8, MOST_GROUPS = MOST_ROUNDS * PROJECT_WARPS;  // a group is 32 Gaussians
// Of a part's kept Gaussians, how many after the first 128 have position and scales in shared memory. Positions and
// scales of the others are read again, by then often from beyond L2.
constexpr unsigned KEPT_ROOM = HAS_MUCH_SHARED ? 320 : 32;
constexpr int PROJECT_BLOCKS = 6;  // on a multiprocessor

struct ProjectArgs {
    Frame* frame;
    const float* __restrict__ means;            // [N][3] world units
    const float* __restrict__ log_scales;       // [N][3]
    const float4* __restrict__ quats;           // [N] w, x, y, z; any length but zero
    const float* __restrict__ logit_opacities;  // [N]
    const void* __restrict__ sh;                // [N][16][3], rows beyond the scene's degree unused
    Splat* splats;                              // out [visible_capacity] by slot
    Footprint* footprints;                      // out [visible_capacity] by slot
    Extent* extents;                            // out [visible_capacity] by slot, if the footprint has no bits
    unsigned* depth_bits;                       // out [visible_capacity] by slot: camera z, bits that sort like it
    float* closeness;                           // out [visible_capacity] by slot: gut3d (primitive.cuh)
    uint2* warp_slots;                          // out [ceil(N / 32)] visible lanes, first slot of the group
    unsigned* slot_lanes;                       // out [ceil(N / 32)] lanes that have a slot, visible or not
    unsigned* sort_bins;                        // out [sort_bin_count] zeros; later kernels count in them
    unsigned sort_bin_count;
    unsigned long long* look_back;              // [ceil(N / (128 rounds))]
    unsigned rounds;                            // Gaussians a thread looks at, 1 … MOST_ROUNDS
    unsigned ticket;                            // which of Frame::tickets counts parts
    LazySh lazy;                                // lazy_sh
};

// ---- Who may be seen ------------------------------------------------------------------------------------------------

__device__ __forceinline__ float3 load_three(const float* values, size_t n) {
    return make_float3(values[3 * n], values[3 * n + 1], values[3 * n + 2]);
}
__device__ __forceinline__ float3 offset_from(const View& v, float3 mean) {
    return make_float3(mean.x - v.position[0] - v.position_rest[0], mean.y - v.position[1] - v.position_rest[1],
                       mean.z - v.position[2] - v.position_rest[2]);
}
__device__ __forceinline__ float3 to_view(const View& v, float3 offset) {
    const float* r = v.rotation;
    return make_float3(dot(make_float3(r[0], r[1], r[2]), offset), dot(make_float3(r[3], r[4], r[5]), offset),
                       dot(make_float3(r[6], r[7], r[8]), offset));
}
__device__ __forceinline__ float largest_of(float3 v) { return fmaxf(fmaxf(v.x, v.y), v.z); }

// Returns true if all six numbers are finite and all scales fit single precision.
__device__ __forceinline__ bool is_usable(float3 mean, float3 log_scales) {
    // 0 x is 0 for finite x and NaN otherwise, so one comparison tests all numbers.
    float defect = 0.0f * mean.x;
    for (const float value : {mean.y, mean.z, log_scales.x, log_scales.y, log_scales.z})
        defect = fmaf(0.0f, value, defect);
    return defect == 0.0f && largest_of(log_scales) <= LARGEST_LOG_SCALE;
}

// Returns false only for splats that cannot be in a tile under any bounds: splats behind the camera, and splats whose
// sphere projects to a disc outside the image. The sphere's radius is SPHERE_SIGMAS, a little more than √(2 ln 255),
// times the largest scale. One pixel is added for bounds that round up.
__device__ __forceinline__ bool may_be_seen(const View& v, const Frame& frame, float3 in_view,
                                            float largest_log_scale) {
    constexpr float SPHERE_SIGMAS = 3.36f;
    const float inverse_z = reciprocal_approx(in_view.z), ratio_x = in_view.x * inverse_z;
    const float ratio_y = in_view.y * inverse_z;
    const float held_x = clamped(ratio_x, v.held_left, v.held_right);
    const float held_y = clamped(ratio_y, v.held_top, v.held_bottom);
    const float sigma = fmaxf(v.fx, v.fy) * inverse_z * exp2_approx(LOG2_E * largest_log_scale);
    const float variance = fmaf(sigma * sigma, fmaf(held_x, held_x, fmaf(held_y, held_y, 1.0f)), DILATION);
    const float reach = fmaf(SPHERE_SIGMAS, variance * rsqrtf(variance), 1.0f);
    const float x = fmaf(ratio_x, v.fx, v.cx), y = fmaf(ratio_y, v.fy, v.cy);
    const float right = static_cast<float>(TILE * frame.tile_columns);
    const float bottom = static_cast<float>(TILE * frame.tile_rows);
    // A splat with a NaN passes this test; it is counted as skipped later.
    return in_view.z > v.near_z && !(x + reach < 0.0f) && !(x - reach > right) && !(y + reach < 0.0f) &&
           !(y - reach > bottom);
}

// ---- A splat for a thread -------------------------------------------------------------------------------------------

struct Parameters {
    float3 mean, log_scales;
    float4 quat;
    float logit;
};

// Returns to each lane the three numbers of its Gaussian, local_index[lane]. The warp loads all 96 numbers in order, a
// lane number 32 s + lane, so that it touches each sector of memory once, not three times. It then exchanges them.
__device__ __forceinline__ float3 gather_three(const float* values, const unsigned short* local_index, unsigned count) {
    float numbers[3], three[3];
#pragma unroll
    for (unsigned s = 0; s < 3; s++) {
        const unsigned number = 32 * s + lane_index(), row = number / 3;
        numbers[s] = row < count ? values[3 * local_index[row] + number - 3 * row] : 0.0f;
    }
#pragma unroll
    for (unsigned c = 0; c < 3; c++) {
        // Number 3 l + c goes to lane l. Only lane l asks lane (3 l + c) % 32, since 3 has an inverse modulo 32: 11.
        const unsigned asked = (3 * lane_index() + c) & 31u, asking = 11 * (lane_index() - c) & 31u;
        const unsigned s = (3 * asking + c) / 32;
        const float given = s == 0 ? numbers[0] : s == 1 ? numbers[1] : numbers[2];
        three[c] = __shfl_sync(FULL_WARP, given, static_cast<int>(asked));
    }
    return make_float3(three[0], three[1], three[2]);
}

struct Seen {
    Splat splat;    // without colour and row in the scene
    Extent extent;  // no rows if the splat is not visible
    float3 offset;  // from the camera to the mean, world axes
    float depth;
    float closeness;  // gut3d
    bool is_skipped;
};
template <ProjectPolicy P>
__device__ __forceinline__ void see(const Frame& frame, const View& v, const Parameters& p, Seen& seen) {
    seen.offset = offset_from(v, p.mean);
    const float3 in_view = to_view(v, seen.offset);
    seen.depth = in_view.z;
    // An infinite opacity logit is allowed: the opacity is 0 or 1.
    float4 quat = p.quat;
    const float defect = fmaf(0.0f, quat.x, fmaf(0.0f, quat.y, fmaf(0.0f, quat.z, 0.0f * quat.w)));
    seen.is_skipped = !(defect == 0.0f && p.logit == p.logit && tame_quaternion(quat));
    if (seen.is_skipped || !(in_view.z > 0.0f)) return;
    const float3 scales = make_float3(expf(p.log_scales.x), expf(p.log_scales.y), expf(p.log_scales.z));
    if constexpr (is_tilted(P.primitive)) {
        const Tilted t = project_tilted<P.primitive>(v, seen.offset, in_view, quat, scales, p.log_scales, p.logit);
        if (!(t.on_image.log2_opacity >= LOG2_ALPHA_MIN) || is_edge_on<P.primitive>(t)) return;
        seen.is_skipped = !is_finite(t.on_image) || !is_finite(t.tilt_x) || !is_finite(t.tilt_y);
        if (seen.is_skipped) return;
        record_tilted(t, seen.splat);
        seen.closeness = t.closeness;
        seen.extent = measure_tilted<P.primitive, P.bounds>(t, frame);
    } else {
        const Projected projected = project_gaussian<P.filter>(v, in_view, quat, scales, p.logit);
        if (!(projected.log2_opacity >= LOG2_ALPHA_MIN)) return;
        seen.is_skipped = !is_finite(projected);
        if (seen.is_skipped) return;
        record(projected, seen.splat);
        seen.extent = measure<P.bounds>(projected, cutoff_of(projected), frame);
    }
}

// ---- Colour ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float3 normalized(float3 v) { return rsqrtf(dot(v, v)) * v; }

constexpr unsigned STAGED_LANES = 32;
// Size of a warp's shared memory in 16-byte parts. It holds the warp's share of the part's positions and scales, and
// later rows of harmonics.
constexpr unsigned VECTORS_ROOM = 2 * MOST_ROUNDS * 32 * 12 / 16;
template <ProjectPolicy P>
constexpr unsigned STAGED_ROOM =
    P.sh_load == ShLoad::staged ? max_of(packed_row<P.sh_dtype>(STAGED_LANES), VECTORS_ROOM) : VECTORS_ROOM;

// Starts to copy the harmonics of Gaussians first + local_index[0 … count) to the rows of the warp's lanes.
template <ShDtype D>
__device__ __forceinline__ void fetch_rows(uint4* rows, const void* sh, size_t first, const unsigned short* local_index,
                                           unsigned count, int degree) {
    // Every third step a lane has the same column, and the same row within a run of rows.
    constexpr unsigned PARTS = SH_PARTS<D>, RUN = 96 / PARTS;
    const unsigned parts = sh_parts_in_use<D>(degree);
    const uint4* source = static_cast<const uint4*>(sh_row<D>(sh, first));
#pragma unroll 1
    for (unsigned phase = 0; phase < 3; phase++) {
        const unsigned within = phase * 32 + lane_index(), row = within / PARTS, column = within - row * PARTS;
        if (column >= parts) continue;
        uint4* target = rows + packed_row<D>(row) + column;
        const uint4* its_source = source + column;
#pragma unroll
        for (unsigned run = 0; run < STAGED_LANES / RUN; run++)
            if (run * RUN + row < count)
                copy_16_async(target + packed_row<D>(run * RUN), its_source + local_index[run * RUN + row] * PARTS);
    }
}

template <ProjectPolicy P>
__device__ __forceinline__ float3 color_of(const ProjectArgs& args, uint4* rows, size_t n, float3 offset,
                                           bool is_wanted) {
    constexpr ShDtype D = P.sh_dtype;
    const int degree = args.frame->sh_degree;
    if constexpr (P.sh_load == ShLoad::staged) {
        wait_for_copies();
        __syncwarp();
        if constexpr (P.lazy_sh) catch_up_packed(args.lazy, rows, n, is_wanted, degree);
    }
    if (!is_wanted) return make_float3(0.0f, 0.0f, 0.0f);
    const void* row = P.sh_load == ShLoad::staged ? rows + packed_row<D>(lane_index()) : sh_row<D>(args.sh, n);
    return evaluate_sh<D, P.sh_load>(row, normalized(offset), degree);
}

// ---- Storing --------------------------------------------------------------------------------------------------------

// Writes the records of the warp's first `count` lanes to the slots from `first` on.
template <ProjectPolicy P>
__device__ __forceinline__ void store_seen(const ProjectArgs& args, uint4* shared, unsigned first, unsigned count,
                                           const Seen& seen, Footprint footprint) {
    const unsigned slot = first + lane_index();
    const Splat& s = seen.splat;
    if (lane_index() < count) {
        args.depth_bits[slot] = __float_as_uint(seen.depth);
        if constexpr (P.primitive == Primitive::gut3d) args.closeness[slot] = seen.closeness;
        args.footprints[slot] = footprint;
        if (footprint.bits == 0 && footprint.corner) store_extent(args.extents, slot, seen.extent);
    }
    if constexpr (P.sh_load == ShLoad::staged && P.layout == Layout::packed48) {
        // The records pass through shared memory, so that neighbouring lanes write neighbouring bytes.
        __syncwarp();
        store_splat<Layout::packed48>(reinterpret_cast<Splat*>(shared), 0, lane_index(), s);
        __syncwarp();
        uint4* out = reinterpret_cast<uint4*>(args.splats + first);
#pragma unroll
        for (unsigned part = lane_index(); part < 32 * 3; part += 32)
            if (part < count * 3) out[part] = shared[part];
    } else if (lane_index() < count) {
        store_splat<P.layout>(args.splats, args.frame->visible_capacity, slot, s);
    }
}

// Stores the number of slots, or 0 and the overflow bit. Called by the one thread that knows the number.
__device__ __forceinline__ void finish_slots(Frame& frame, unsigned wanted) {
    const bool fits = wanted <= frame.visible_capacity;
    frame.visible_wanted = wanted;
    frame.slots = fits ? wanted : 0;
    if (!fits) atomicOr(&frame.overflow, OVERFLOW_VISIBLE);
}

// ---- The block ------------------------------------------------------------------------------------------------------

// The block's bookkeeping of its part, in shared memory. A group is 32 Gaussians.
struct Part {
    unsigned short local_index[MOST_GROUPS * 32];  // of each kept Gaussian, counted from the part's first
    unsigned kept[MOST_GROUPS];                    // a bit for each lane with a slot
    unsigned visible[MOST_GROUPS];                 // a bit for each lane with a tile
    unsigned begins[MOST_GROUPS];                  // Gaussians kept in the groups before
    unsigned total;                                // Gaussians kept in the part
    unsigned first_slot;
};

// Starts to copy the first `count` numbers to shared memory. All threads of the block call; `from` is 16-byte aligned.
__device__ __forceinline__ void fetch_numbers(float* shared, const float* from, unsigned count) {
    for (unsigned i = threadIdx.x; i < count / 4; i += PROJECT_THREADS)
        copy_16_async(reinterpret_cast<uint4*>(shared) + i, reinterpret_cast<const uint4*>(from) + i);
    const unsigned rest = count / 4 * 4 + threadIdx.x;
    if (rest < count) shared[rest] = from[rest];
}

// Decides which Gaussians of a part are kept. Fills `part` except `first_slot`, and `kept` with positions and then
// scales of kept Gaussians. `numbers` is shared memory for positions and scales of the whole part. Has three barriers;
// the caller needs another before it uses any of these.
template <Primitive PRIMITIVE>
__device__ __forceinline__ void keep_seen(const ProjectArgs& args, unsigned number, Part& part, float* numbers,
                                          float* kept) {
    Frame& frame = *args.frame;
    const unsigned first = number * args.rounds * PROJECT_THREADS;
    const unsigned size = args.rounds * PROJECT_THREADS, held = min(size, frame.gaussians - first);
    float* scale_numbers = numbers + 3 * size;
    fetch_numbers(numbers, args.means + 3 * size_t(first), 3 * held);
    fetch_numbers(scale_numbers, args.log_scales + 3 * size_t(first), 3 * held);
    const View v = load_view(&frame);
    wait_for_copies();
    __syncthreads();
#pragma unroll 1
    for (unsigned k = 0; k < args.rounds; k++) {
        const unsigned index = k * PROJECT_THREADS + threadIdx.x;
        bool is_kept = index < held;
        if (is_kept) {
            const float3 mean = load_three(numbers, index), log_scales = load_three(scale_numbers, index);
            const bool usable = is_usable(mean, log_scales);
            if (!usable) atomicAdd(&frame.skipped, 1u);
            const float3 in_view = to_view(v, offset_from(v, mean));
            const float largest = largest_of(log_scales);
            is_kept = usable && (is_tilted(PRIMITIVE) ? may_be_seen_tilted(v, frame, in_view, largest)
                                                      : may_be_seen(v, frame, in_view, largest));
        }
        const unsigned lanes = __ballot_sync(FULL_WARP, is_kept);
        if (lane_index() == 0) part.kept[k * PROJECT_WARPS + warp_index()] = lanes;
    }
    __syncthreads();
    if (warp_index() == 0) {
        static_assert(MOST_GROUPS == 32);
        const unsigned lanes = lane_index() < args.rounds * PROJECT_WARPS ? part.kept[lane_index()] : 0;
        const unsigned in_group = static_cast<unsigned>(__popc(lanes)), end = inclusive_warp_sum(in_group);
        publish_total(args.look_back, number, __shfl_sync(FULL_WARP, end, 31), look_back_tag(frame.epoch, 0));
        part.begins[lane_index()] = end - in_group;
        part.visible[lane_index()] = lanes;
        if (lane_index() == 31) part.total = end;
    }
    __syncthreads();
    for (unsigned k = 0; k < args.rounds; k++) {
        const unsigned group = k * PROJECT_WARPS + warp_index(), lanes = part.kept[group];
        const unsigned before = static_cast<unsigned>(__popc(lanes & ((1u << lane_index()) - 1)));
        if ((lanes >> lane_index() & 1u) == 0) continue;
        const unsigned index = k * PROJECT_THREADS + threadIdx.x, place = part.begins[group] + before;
        part.local_index[place] = static_cast<unsigned short>(index);
        const unsigned row = place - PROJECT_THREADS;  // wraps for the first ones
        if (row < KEPT_ROOM) {
#pragma unroll
            for (unsigned c = 0; c < 3; c++) {
                kept[3 * row + c] = numbers[3 * index + c];
                kept[3 * (KEPT_ROOM + row) + c] = scale_numbers[3 * index + c];
            }
        }
    }
}

// What is left of the part once all its splats are stored: who is visible.
__device__ __forceinline__ void finish_part(const ProjectArgs& args, unsigned first, const Part& part) {
    Frame& frame = *args.frame;
    const unsigned group = first / 32 + threadIdx.x;
    const bool exists = threadIdx.x < args.rounds * PROJECT_WARPS && group < ceil_div(frame.gaussians, 32);
    if (exists) {
        args.warp_slots[group] = make_uint2(part.visible[threadIdx.x], part.first_slot + part.begins[threadIdx.x]);
        args.slot_lanes[group] = part.kept[threadIdx.x];
    }
    if (warp_index() == 0) {
        const unsigned visible = warp_add(exists ? static_cast<unsigned>(__popc(part.visible[threadIdx.x])) : 0u);
        if (lane_index() == 0 && visible) atomicAdd(&frame.visible, visible);
    }
}

template <ProjectPolicy P>
__global__ void __launch_bounds__(PROJECT_THREADS, PROJECT_BLOCKS) project(ProjectArgs args) {
    __shared__ uint4 shared_rows[PROJECT_WARPS][STAGED_ROOM<P>];
    __shared__ float kept[6 * KEPT_ROOM];
    __shared__ Part part;
    __shared__ unsigned shared_number;
    Frame& frame = *args.frame;
    const unsigned size = args.rounds * PROJECT_THREADS;
    for (unsigned i = blockIdx.x * PROJECT_THREADS + threadIdx.x; i < args.sort_bin_count;
         i += gridDim.x * PROJECT_THREADS)
        args.sort_bins[i] = 0;
    if (blockIdx.x >= ceil_div(frame.gaussians, size)) return;
    if (threadIdx.x == 0) shared_number = atomicAdd(&frame.tickets[args.ticket], 1u);
    __syncthreads();
    const unsigned first = shared_number * size;
    float* numbers = reinterpret_cast<float*>(shared_rows);
    keep_seen<P.primitive>(args, shared_number, part, numbers, kept);
    __syncthreads();

    uint4* rows = shared_rows[warp_index()];
    const unsigned total = part.total;
    // The loop runs at least once, because its first turn learns the part's first slot.
    for (unsigned done = 0; done == 0 || done < total; done += PROJECT_THREADS) {
        const unsigned begin = done + 32 * warp_index(), held = begin < total ? min(total - begin, 32u) : 0;
        const unsigned short* local_index = part.local_index + begin;
        const bool has_splat = lane_index() < held;
        const unsigned index = has_splat ? local_index[lane_index()] : 0;
        // The warp starts all its loads before it does anything else. Positions and scales of the first 128 kept
        // Gaussians are still in shared memory.
        Parameters parameters{};
        if (has_splat) {
            parameters.quat = args.quats[size_t(first) + index];
            parameters.logit = args.logit_opacities[size_t(first) + index];
        }
        if (done == 0) {
            if (has_splat) {
                parameters.mean = load_three(numbers, index);
                parameters.log_scales = load_three(numbers + 3 * size, index);
            }
            __syncthreads();
        }
        __syncwarp();
        if (P.sh_load == ShLoad::staged && held)
            fetch_rows<P.sh_dtype>(rows, args.sh, first, local_index, held, frame.sh_degree);
        if (done > 0 && begin < PROJECT_THREADS + KEPT_ROOM) {
            if (has_splat) {
                const unsigned row = begin - PROJECT_THREADS + lane_index();
                parameters.mean = load_three(kept, row);
                parameters.log_scales = load_three(kept + 3 * KEPT_ROOM, row);
            }
        } else if (done > 0) {
            parameters.mean = gather_three(args.means + 3 * size_t(first), local_index, held);
            parameters.log_scales = gather_three(args.log_scales + 3 * size_t(first), local_index, held);
        }
        if (done == 0 && warp_index() == 0) {
            const unsigned long long tag = look_back_tag(frame.epoch, 0);
            const unsigned before = static_cast<unsigned>(look_back(args.look_back, shared_number, part.total, tag));
            if (lane_index() == 0) {
                part.first_slot = before;
                if (first + size >= frame.gaussians) finish_slots(frame, before + part.total);
            }
        }

        Seen seen{};
        if (has_splat) see<P>(frame, load_view(&frame), parameters, seen);
        Footprint footprint = find_tiles<P.bounds>(seen.extent, frame.tile_columns);
        const bool has_tiles = footprint.corner || footprint.bits;
        const bool is_colored = P.sh_gate == ShGate::all ? has_splat : has_tiles;
        const float3 color = color_of<P>(args, rows, size_t(first) + index, seen.offset, is_colored);
        const bool is_visible = has_tiles && is_finite(color.x) && is_finite(color.y) && is_finite(color.z);
        if (has_tiles) seen.is_skipped = !is_visible;
        if (seen.is_skipped) atomicAdd(&frame.skipped, 1u);
        if (has_splat && !is_visible) {
            atomicAnd(&part.visible[index / 32], ~(1u << index % 32));
            footprint = {0, 0};
        }
        if (done == 0) __syncthreads();

        Splat& splat = seen.splat;
        splat.red = fmaxf(color.x, 0.0f), splat.green = fmaxf(color.y, 0.0f), splat.blue = fmaxf(color.z, 0.0f);
        splat.gaussian = is_visible ? first + index : NO_GAUSSIAN;
        const unsigned slot = part.first_slot + begin, capacity = frame.visible_capacity;
        const unsigned room = slot < capacity ? capacity - slot : 0;
        if (held)
            store_seen<P>(args, rows, slot, min(held, room), seen, footprint);
    }
    __syncthreads();
    finish_part(args, first, part);
}
