// Blends a part of a tile's list into the pixels of a block.
//
// The block stages as many splats at a time as it has threads. Each warp visits the staged splats that may reach its
// pixels: by the bits of 32 splats at a time, or by a list of its own. With compaction, the front of the tile's list
// then keeps the splats that were blended.
//
// Shared memory:
// - 48 bytes (64 if the primitive is tilted) and 1 byte of warp bits for each staged splat;
// - for lists of warps, 4 bytes for each warp and splat;
// - for compaction, two words for each warp of the backward pass and 32 splats.
// Not here: how alpha is computed (staged.cuh), pixels (blend_pixel.cuh), the kernel (blend.cuh).
#pragma once
#include "blend_pixel.cuh"

struct BlendArgs {
    const Frame* frame;
    const Splat* splats;         // [V]
    const float* depths;         // [V] camera z, world units; read only for depth and of disks
    const float* closeness;      // [V] gut3d
    const unsigned* tile_start;  // [T + 1] into list
    unsigned* list;              // [I] slots, nearest first; compaction rewrites the front of each tile's list
    unsigned* entry_counts;      // [T] out, training: entries of the list that the backward pass walks
    float* image;                // [H, W, 3] out, over the background
    float* transmittance;        // [H, W] out
    float* depth;                // [H, W] out, if wanted: mean camera z of the splats blended, NaN if there are none
    unsigned* last;              // [H, W] out, training: entries up to and with the last one blended
};

// ---- What a block works on ------------------------------------------------------------------------------------------

// The pixels of a thread. `last` counts from the range's first entry.
template <BlendPolicy P>
struct Pixels {
    static constexpr int ROWS = rows_of(forward_map(P.map));
    Pixel of[ROWS];

    __device__ __forceinline__ bool go_on() const {
        bool some = is_going_on<P>(of[0]);
        if constexpr (ROWS == 2) some |= is_going_on<P>(of[1]);
        return some;
    }
};
// Returns how many blocks fit a multiprocessor if a thread has that many registers.
__device__ constexpr int blocks_at_once(int warps, int registers) {
    const int by_registers = 65536 / 32 / registers / warps, by_threads = RESIDENT_THREADS / 32 / warps;
    return by_registers < by_threads ? by_registers : by_threads;
}
template <BlendPolicy P>
struct BlendShared {
    static constexpr int WARPS = warps_of(forward_map(P.map)), BATCH = 32 * WARPS, CHUNKS = WARPS;
    // Splats that a warp with a list of its own has in flight.
    static constexpr int AT_ONCE = 4;
    static constexpr bool HAS_LISTS = P.subtile_list == SubtileList::compacted;
    // Registers of a thread, and the blocks on a multiprocessor that they allow. With fewer registers the compiler
    // handles the splats in flight one after the other; the frame then ends with the longest tiles' warps, waiting
    // alone.
    static constexpr int REGISTERS = HAS_LISTS && (P.training || is_tilted(P.primitive)) ? 64
                                     : Pixels<P>::ROWS == 2 && (HAS_LISTS || P.training) ? 48 : 40;
    static constexpr int BLOCKS = blocks_at_once(WARPS, REGISTERS);
    StagedOf<P.primitive> staged[BATCH + 1];  // the last one is empty
    // For each staged splat the bits of the warps it may reach. Splats 32 chunk + i of a lane i are next to each other.
    alignas(8) unsigned char reached[32][CHUNKS];
    // Addresses of the splats that a warp visits, then of the empty one. Four more are read ahead and not used.
    alignas(16) unsigned lists[HAS_LISTS ? WARPS : 1][HAS_LISTS ? BATCH + 2 * AT_ONCE : 4];
    // Bits of blended splats, by the warps of the backward pass. Two sets: that of the next batch is cleared while the
    // present batch is blended.
    static constexpr int MASKS = P.compaction ? warps_of(backward_map(P.map)) : 1;
    unsigned blended[2][MASKS][P.compaction ? CHUNKS : 1];
};

// ---- Compaction -----------------------------------------------------------------------------------------------------

// Which of a batch's 32 CHUNKS splats were blended, and where they go. In every warp, lane k has chunk k.
struct Kept {
    unsigned word;    // bits of the splats that any warp blended
    unsigned before;  // blended splats in earlier chunks
    unsigned total;   // blended splats in the batch; the same in all lanes
};
template <int MASKS, int CHUNKS>
__device__ __forceinline__ Kept count_kept(const unsigned (&blended)[MASKS][CHUNKS]) {
    const int lane = int(lane_index()), chunk = lane % CHUNKS;
    unsigned word = 0;
#pragma unroll
    for (int i = 0; i < MASKS; i++) word |= blended[i][chunk];
    const unsigned own = unsigned(__popc(word));
    unsigned through = own;
#pragma unroll
    for (int step = 1; step < CHUNKS; step *= 2) {
        const unsigned other = __shfl_up_sync(FULL_WARP, through, unsigned(step));
        if (chunk >= step) through += other;
    }
    return {word, through - own, __shfl_sync(FULL_WARP, through, CHUNKS - 1)};
}
// Returns how many splats of the batch are kept among those up to and with splat `number`. All lanes call.
__device__ __forceinline__ unsigned kept_through(const Kept& kept, unsigned number) {
    const unsigned word = __shfl_sync(FULL_WARP, kept.word, int(number / 32u));
    const unsigned before = __shfl_sync(FULL_WARP, kept.before, int(number / 32u));
    return before + unsigned(__popc(word & ((2u << number % 32u) - 1u)));
}
template <int MASKS, int CHUNKS>
__device__ __forceinline__ unsigned contributor_mask(const unsigned (&blended)[MASKS][CHUNKS], int chunk, int bit) {
    unsigned mask = 0;
#pragma unroll
    for (int i = 0; i < MASKS; i++) mask |= (blended[i][chunk] >> bit & 1u) << i;
    return mask;
}

// ---- A warp and a batch ---------------------------------------------------------------------------------------------

// Blends N splats into the pixels of a thread, in order. Computes the N alphas at the same time.
template <BlendPolicy P, int N>
__device__ __forceinline__ void blend_splats(Pixels<P>& pixels, const StagedOf<P.primitive> (&splats)[N],
                                             const unsigned (&bits)[N], const Spot& spot) {
    constexpr int ROWS = Pixels<P>::ROWS;
    decltype(evaluate_for<P.primitive, P.exp, P.log2_opacity, ROWS>(splats[0], spot)) e[N];
#pragma unroll
    for (int k = 0; k < N; k++) e[k] = evaluate_for<P.primitive, P.exp, P.log2_opacity, ROWS>(splats[k], spot);
#pragma unroll
    for (int k = 0; k < N; k++)
#pragma unroll
        for (int row = 0; row < ROWS; row++)
            blend_pixel<P>(pixels.of[row], splats[k], depth_at<P>(splats[k], e[k], row), e[k].alpha[row], bits[k]);
}

// Returns the warp of the backward pass that has this warp's pixels. 8×4 pixels are half of that warp's 8×8.
template <Map MAP>
__device__ __forceinline__ int mask_of_warp() {
    const int warp = int(warp_index());
    return MAP == Map::mixed ? (warp & 1) | (warp >> 2 << 1) : warp;
}

// Blends a batch of splats with one warp. `turn` selects the batch's half of `BlendShared::blended`. `newest` becomes,
// for each pixel, the number in the batch of the last splat it blended, plus one.
template <BlendPolicy P>
__device__ __forceinline__ void blend_by_ballot(BlendShared<P>& shared, Pixels<P>& pixels,
                                                const Spot& spot, unsigned count, int turn,
                                                unsigned (&newest)[Pixels<P>::ROWS]) {
    constexpr int CHUNKS = BlendShared<P>::CHUNKS;
    const int lane = int(lane_index()), warp = int(warp_index());
    int chunk = 0;
    const auto* of_chunk = shared.staged;
    for (; chunk < CHUNKS && 32u * unsigned(chunk) < count; chunk++, of_chunk += 32) {
        if (!__any_sync(FULL_WARP, pixels.go_on())) break;
        unsigned waiting = __ballot_sync(FULL_WARP, shared.reached[lane][chunk] >> warp & 1);
        StagedOf<P.primitive> own;
        if constexpr (P.splat_fetch == Fetch::shuffle) own = of_chunk[lane];
        while (waiting) {
            const unsigned bit = waiting & (0u - waiting);
            waiting ^= bit;
            const int number = 31 - __clz(int(bit));
            if constexpr (P.splat_fetch == Fetch::shuffle) {
                blend_splats<P, 1>(pixels, {handed_out(own, number)}, {bit}, spot);
            } else {
                blend_splats<P, 1>(pixels, {of_chunk[number]}, {bit}, spot);
            }
        }
        if constexpr (P.training) {
            unsigned blended = 0;
#pragma unroll
            for (int row = 0; row < Pixels<P>::ROWS; row++) {
                const unsigned word = pixels.of[row].blended;
                if (word) newest[row] = unsigned(chunk) * 32u + 32u - unsigned(__clz(int(word)));
                blended |= word;
                pixels.of[row].blended = 0;
            }
            if constexpr (P.compaction) {
                blended = warp_or(blended);
                if (lane == 0 && blended) atomicOr(&shared.blended[turn][mask_of_warp<P.map>()][chunk], blended);
            }
        }
    }
}

template <BlendPolicy P>
__device__ __forceinline__ void blend_by_list(BlendShared<P>& shared, Pixels<P>& pixels,
                                              const Spot& spot, int turn, unsigned (&newest)[Pixels<P>::ROWS]) {
    constexpr int CHUNKS = BlendShared<P>::CHUNKS, BATCH = BlendShared<P>::BATCH;
    constexpr int AT_ONCE = BlendShared<P>::AT_ONCE;
    constexpr unsigned SIZE = sizeof(StagedOf<P.primitive>);
    const int lane = int(lane_index()), warp = int(warp_index());
    unsigned* list = shared.lists[warp];
    const unsigned staged = shared_address(shared.staged), listed = shared_address(list);
    const unsigned own = staged + unsigned(lane) * SIZE, lower_lanes = (1u << lane) - 1u;
    const unsigned own_bit = 1u << warp;
    unsigned reached[CHUNKS / 4];
#pragma unroll
    for (int i = 0; i < CHUNKS / 4; i++)
        reached[i] = reinterpret_cast<const unsigned*>(shared.reached[lane])[i];
    unsigned next = listed;  // place in the list
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const unsigned is_own = reached[chunk / 4] & own_bit << chunk % 4 * 8;
        const unsigned lanes = __ballot_sync(FULL_WARP, is_own != 0);
        store_shared_if(is_own, next + 4u * unsigned(__popc(lanes & lower_lanes)), own + unsigned(chunk * 32) * SIZE);
        next += 4u * unsigned(__popc(lanes));
    }
    const int count = int(next - listed) / 4;
    if (lane < AT_ONCE) list[count + lane] = staged + BATCH * SIZE;
    __syncwarp();

    const auto number_of = [&](int place) { return (list[place] - staged) / SIZE; };
    for (int first = 0; first < count; first += 32) {
        if (!__any_sync(FULL_WARP, pixels.go_on())) break;
        const int end = min(first + 32, count);
        StagedOf<P.primitive> held;
        if constexpr (P.splat_fetch == Fetch::shuffle) held = staged_from<P.primitive>(list[min(first + lane, count)]);
        uint4 ahead = load_shared<uint4>(listed + 4u * unsigned(first));
#pragma unroll 1
        for (int place = first; place < end; place += AT_ONCE) {
            const unsigned addresses[AT_ONCE] = {ahead.x, ahead.y, ahead.z, ahead.w};
            ahead = load_shared<uint4>(listed + 4u * unsigned(place + AT_ONCE));
            StagedOf<P.primitive> splats[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                splats[k] = P.splat_fetch == Fetch::shuffle ? handed_out(held, place - first + k)
                                                            : staged_from<P.primitive>(addresses[k]);
            blend_splats<P, AT_ONCE>(pixels, splats, {}, spot);
        }
        if constexpr (P.training) {
            const int past = first + (end - first + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
            unsigned blended = 0;
#pragma unroll
            for (int row = 0; row < Pixels<P>::ROWS; row++) {
                // Bit 0 belongs to the splat before `past`.
                const unsigned word = pixels.of[row].blended;
                if (word) newest[row] = number_of(past - __ffs(int(word))) + 1u;
                blended |= word;
                pixels.of[row].blended = 0;
            }
            if constexpr (P.compaction) {
                blended = warp_or(blended);
                const unsigned number = number_of(max(past - 1 - lane, first));
                if (blended >> lane & 1u)
                    atomicOr(&shared.blended[turn][mask_of_warp<P.map>()][number / 32u], 1u << number % 32u);
            }
        }
    }
}

// ---- A block and a stretch of a list --------------------------------------------------------------------------------

// Stages the thread's splat: number `number` of the range.
template <BlendPolicy P>
__device__ __forceinline__ void stage(const BlendArgs& args, BlendShared<P>& shared, const ListRange& range,
                                      unsigned number) {
    const unsigned thread = threadIdx.x;
    unsigned char& reached = shared.reached[lane_index()][warp_index()];
    if (number >= range.count) {
        reached = 0;
        return;
    }
    const unsigned slot = args.list[range.first + number];
    const Splat splat = load_splat<P.layout>(args.splats, args.frame->visible_capacity, slot);
    const Aside aside = load_aside<P.primitive, P.wants_depth>(args, slot);
    const auto s = stage_for<P.primitive, P.log2_opacity>(splat, aside, range.tile_x, range.tile_y, number, slot);
    shared.staged[thread] = s;
    reached = (unsigned char)(warp_bits_for<P.primitive, forward_map(P.map), P.subtile>(s, splat, aside, range));
}

template <BlendPolicy P>
__device__ __forceinline__ void clear_blended(BlendShared<P>& shared, int turn) {
    constexpr int CHUNKS = BlendShared<P>::CHUNKS;
    const int thread = int(threadIdx.x);
    if (thread < BlendShared<P>::MASKS * CHUNKS) shared.blended[turn][thread / CHUNKS][thread % CHUNKS] = 0;
}
// Keeps the blended splats of a batch in the list, behind the `kept` ones of earlier batches. Returns how many are kept
// now. Each pixel's `last` becomes the new place of its newest splat of the batch.
template <BlendPolicy P>
__device__ __forceinline__ unsigned keep_blended(const BlendArgs& args, BlendShared<P>& shared, const ListRange& range,
                                                 int turn, const unsigned (&newest)[Pixels<P>::ROWS],
                                                 Pixels<P>& pixels, unsigned kept) {
    const int lane = int(lane_index()), warp = int(warp_index());
    const auto& blended = shared.blended[turn];
    const Kept of_batch = count_kept(blended);
    const unsigned own = __shfl_sync(FULL_WARP, of_batch.word, warp);
    const unsigned destination = kept + kept_through(of_batch, threadIdx.x) - 1u;
    if (own >> lane & 1u) {
        unsigned entry = shared.staged[threadIdx.x].slot;
        if constexpr (P.cmask) entry |= contributor_mask(blended, warp, lane) << slot_bits(P.map);
        args.list[range.first + destination] = entry;
    }
#pragma unroll
    for (int row = 0; row < Pixels<P>::ROWS; row++) {
        const unsigned through = kept_through(of_batch, newest[row] ? newest[row] - 1u : 0u);
        if (newest[row]) pixels.of[row].last = kept + through;
    }
    return kept + of_batch.total;
}

// Blends a part of a tile's list into `pixels`, which the caller has initialised. Returns how many entries that part of
// the list has afterwards (fewer with compaction); without training, how many entries were visited. All threads of the
// block call. `shared` is scratch. The range is in shared memory because it then takes no registers.
template <BlendPolicy P>
__device__ __forceinline__ unsigned blend_range(const BlendArgs& args, BlendShared<P>& shared, const ListRange& range,
                                                Pixels<P>& pixels) {
    constexpr int ROWS = Pixels<P>::ROWS, BATCH = BlendShared<P>::BATCH;
    const unsigned thread = threadIdx.x;
    const Spot spot = spot_of(place_in_tile<forward_map(P.map)>());
    if constexpr (BlendShared<P>::HAS_LISTS)
        if (thread == 0) shared.staged[BATCH] = empty_of<P.primitive>();
    if constexpr (P.compaction) {
        __syncthreads();  // other threads may still read what an earlier range left
        clear_blended<P>(shared, 0);
    }
    unsigned kept = 0;  // entries of the list after compaction
    unsigned walked = 0;
    int turn = 0;
    for (unsigned first = 0; first < range.count; first += BATCH, turn ^= 1) {
        stage<P>(args, shared, range, first + thread);
        __syncthreads();
        unsigned newest[ROWS];
#pragma unroll
        for (int row = 0; row < ROWS; row++) newest[row] = 0;
        if constexpr (BlendShared<P>::HAS_LISTS) blend_by_list<P>(shared, pixels, spot, turn, newest);
        else blend_by_ballot<P>(shared, pixels, spot, range.count - first, turn, newest);
        if constexpr (P.compaction) clear_blended<P>(shared, turn ^ 1);
        const bool some_go_on = __syncthreads_or(pixels.go_on());

        if constexpr (P.training && !P.compaction) {
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                if (newest[row]) pixels.of[row].last = first + newest[row];
        }
        if constexpr (P.compaction) kept = keep_blended<P>(args, shared, range, turn, newest, pixels, kept);
        walked = min(first + BATCH, range.count);
        if (!some_go_on) break;
    }
    return P.compaction ? kept : P.training ? range.count : walked;
}
