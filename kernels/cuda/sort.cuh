// A stable radix sort of (key, payload) pairs whose number is read from device memory: nothing waits for the host.
//
// Least significant digit first, 8 bits a pass, one pass over the data each (Adinets and Merrill 2022, "Onesweep").
// `histogram` counts every digit of every pass beforehand; its last block turns counts into the start of each bin.
// A `sort_pass` block takes a part of threads × items pairs by ticket, ranks them by digit inside each warp and
// across warps, gathers them in shared memory in sorted order, learns by look-back (scan.cuh) how many of each digit
// the parts before it hold, and writes runs of equal digits side by side.
//
// sort_pass: P.threads a block (256 to 1024), launched for the capacity; blocks without work return. Shared: one word
// a pair (two for 8-byte keys), at least 256 words a warp, and 1 KB. histogram: 512 threads, any number of blocks: they
// share what there is. Shared: 1 KB a byte of the key.
//
// Policy: key_bytes, 2, 4 or 8; threads and items, the part; blocks, how many shall be resident; iota, the payload of
// the first pass is the position itself and is not read. Any bit range from bit 0: `passes` digits, the last with fewer
// bits where the range ends. Read bin.cuh next.
#pragma once
#include "frame.cuh"
#include "scan.cuh"

constexpr unsigned DIGIT_BITS = 8, BINS = 1u << DIGIT_BITS;

template <int BYTES>
struct KeyOf {
    using type = unsigned;
};
template <>
struct KeyOf<2> {
    using type = unsigned short;
};
template <>
struct KeyOf<8> {
    using type = unsigned long long;
};

// ---- Histograms ----------------------------------------------------------------------------------------------------

constexpr unsigned HISTOGRAM_THREADS = 512;

struct HistogramPolicy {
    int key_bytes = 4;
};

struct HistogramArgs {
    Frame* frame;
    const void* __restrict__ keys;      // [*count]
    const unsigned* __restrict__ count;
    unsigned* bins;                     // [passes][256] zero when allocated; left zero
    unsigned* bin_starts;               // out [passes][256] pairs with a lower digit
    unsigned passes;                    // at most 8
    unsigned ticket;                    // which of Frame::tickets counts blocks that have finished
};

// One digit of a key that stands at `shift`.
template <class Key>
__device__ __forceinline__ unsigned digit_at(Key key, unsigned shift) {
    return static_cast<unsigned>(key >> shift) & (BINS - 1);
}

// Turns the launch's counts of one digit into the start of each bin, and leaves the counts zero. Has two barriers.
__device__ __forceinline__ void start_bins(unsigned* bins, unsigned* bin_starts, unsigned* warp_sums) {
    const bool has_bin = threadIdx.x < BINS;
    const unsigned held = has_bin ? atomicExch(&bins[threadIdx.x], 0u) : 0, inclusive = inclusive_warp_sum(held);
    if (has_bin && lane_index() == 31) warp_sums[warp_index()] = inclusive;
    __syncthreads();
    if (has_bin) {
        unsigned before = inclusive - held;
        for (unsigned w = 0; w < warp_index(); w++) before += warp_sums[w];
        bin_starts[threadIdx.x] = before;
    }
    __syncthreads();
}

// Adds a block's shared bins [passes][256] to those of the launch; the last block to do so writes bin_starts and
// leaves the bins zero. `warp_sums` is shared, eight words. At least 256 threads.
__device__ __forceinline__ void publish_bins(const unsigned* shared_bins, unsigned* bins, unsigned* bin_starts,
                                             unsigned passes, unsigned* finished, unsigned* warp_sums) {
    __shared__ bool is_last;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < passes * BINS; i += blockDim.x)
        if (shared_bins[i]) atomicAdd(&bins[i], shared_bins[i]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(finished, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (unsigned pass = 0; pass < passes; pass++) start_bins(bins + pass * BINS, bin_starts + pass * BINS, warp_sums);
}

template <HistogramPolicy P>
__global__ void __launch_bounds__(HISTOGRAM_THREADS) histogram(HistogramArgs args) {
    using Key = typename KeyOf<P.key_bytes>::type;
    constexpr unsigned MOST_PASSES = P.key_bytes, UNROLL = 8;
    __shared__ unsigned shared_bins[MOST_PASSES * BINS], warp_sums[BINS / 32];
    for (unsigned i = threadIdx.x; i < args.passes * BINS; i += HISTOGRAM_THREADS) shared_bins[i] = 0;
    __syncthreads();
    const Key* keys = static_cast<const Key*>(args.keys);
    const unsigned count = *args.count;
    const size_t stride = size_t(gridDim.x) * HISTOGRAM_THREADS * UNROLL;
    for (size_t first = size_t(blockIdx.x) * HISTOGRAM_THREADS * UNROLL; first < count; first += stride) {
        Key key[UNROLL];
        bool exists[UNROLL];
#pragma unroll
        for (unsigned k = 0; k < UNROLL; k++) {
            const size_t i = first + k * HISTOGRAM_THREADS + threadIdx.x;
            exists[k] = i < count;
            key[k] = exists[k] ? keys[i] : Key(0);
        }
#pragma unroll 1
        for (unsigned pass = 0; pass < args.passes; pass++)
#pragma unroll
            for (unsigned k = 0; k < UNROLL; k++)
                if (exists[k]) atomicAdd(&shared_bins[pass * BINS + digit_at(key[k], DIGIT_BITS * pass)], 1u);
    }
    unsigned* finished = &args.frame->tickets[args.ticket];
    publish_bins(shared_bins, args.bins, args.bin_starts, args.passes, finished, warp_sums);
}

// ---- One pass ------------------------------------------------------------------------------------------------------

struct SortPolicy {
    int key_bytes = 4;
    int threads = 512;
    int items = 8;   // pairs a thread, a multiple of 8
    int blocks = 2;  // that shall fit a multiprocessor: bounds the registers
    bool iota = false;
};

struct SortArgs {
    Frame* frame;
    const void* __restrict__ keys_in;          // [*count]
    const unsigned* __restrict__ payloads_in;  // [*count]; unused with iota
    void* keys_out;                            // [*count], or null where only the payloads matter
    unsigned* payloads_out;                    // [*count]
    const unsigned* __restrict__ count;
    const unsigned* __restrict__ bin_starts;   // [256] of this pass
    unsigned long long* look_back;             // [parts][256]; several passes may share it
    unsigned shift;                            // first bit of the digit
    unsigned digit_bits;                       // 1 … 8
    unsigned launch;                           // below LAUNCHES, another one for each launch that shares look_back
    unsigned ticket;                           // which of Frame::tickets counts parts
};

// For thread d of part `part`: pairs with digit d in all parts before. Sixteen parts are asked at a time: their answers
// take as long to come as one.
__device__ __forceinline__ unsigned look_back_at_bin(const unsigned long long* words, unsigned part, unsigned bin,
                                                     unsigned long long tag) {
    constexpr unsigned WINDOW = 16;
    unsigned before = 0;
    for (unsigned next = part; next > 0;) {
        unsigned long long word[WINDOW];
#pragma unroll
        for (unsigned k = 0; k < WINDOW; k++)
            word[k] = k < next ? load_relaxed(&words[size_t(next - 1 - k) * BINS + bin]) : 0;
        bool goes_on = true;
#pragma unroll
        for (unsigned k = 0; k < WINDOW; k++) {
            goes_on = goes_on && next > 0 && is_published(word[k], tag);
            if (!goes_on) continue;
            before += static_cast<unsigned>(look_back_value(word[k]));
            next--;
            if (is_prefix(word[k])) next = 0;
        }
    }
    return before;
}

// Ranks some items of each lane of a warp among the warp's pairs with the same digit: item after item, lane after
// lane. `ranks` [256] holds how many of each digit came before, and is brought up to date.
constexpr unsigned RANKED_TOGETHER = 8;
__device__ __forceinline__ void rank_by_digit(const unsigned* digit, unsigned* place, unsigned digit_bits,
                                              unsigned* ranks) {
    // Lanes with the same digit, bit by bit; several items at a time hide the latency of the votes.
    unsigned peers[RANKED_TOGETHER];
#pragma unroll
    for (unsigned i = 0; i < RANKED_TOGETHER; i++) peers[i] = FULL_WARP;
    for (unsigned bit = 0; bit < digit_bits; bit++) {
#pragma unroll
        for (unsigned i = 0; i < RANKED_TOGETHER; i++) {
            const bool is_set = digit[i] >> bit & 1u;
            const unsigned votes = __ballot_sync(FULL_WARP, is_set);
            peers[i] &= is_set ? votes : ~votes;
        }
    }
    const unsigned lower_lanes = (1u << lane_index()) - 1;
#pragma unroll
    for (unsigned i = 0; i < RANKED_TOGETHER; i++) {
        const unsigned before = ranks[digit[i]], lower = static_cast<unsigned>(__popc(peers[i] & lower_lanes));
        __syncwarp();
        if (lower == 0) ranks[digit[i]] = before + static_cast<unsigned>(__popc(peers[i]));
        __syncwarp();
        place[i] = before + lower;
    }
}

// What thread d knows of digit d in its part; other threads know nothing.
struct Bin {
    unsigned held;   // pairs with this digit
    unsigned begin;  // where they begin in the sorted part
};

// Turns the warps' counts of each digit (`ranks` [warps][256]) into sums over the warps before, publishes the part's
// totals, and writes where each digit begins to `begins` [256]. Has one barrier, and needs one after it.
template <unsigned WARPS>
__device__ __forceinline__ Bin take_bins(unsigned* ranks, unsigned* begins, unsigned* warp_sums,
                                         unsigned long long* word, unsigned long long state) {
    Bin bin{0, 0};
    if (threadIdx.x < BINS) {
#pragma unroll
        for (unsigned w = 0; w < WARPS; w++) {
            const unsigned in_warp = ranks[w * BINS + threadIdx.x];
            ranks[w * BINS + threadIdx.x] = bin.held;
            bin.held += in_warp;
        }
        store_relaxed(word, bin.held | state);
        const unsigned inclusive = inclusive_warp_sum(bin.held);
        if (lane_index() == 31) warp_sums[warp_index()] = inclusive;
        bin.begin = inclusive - bin.held;
    }
    __syncthreads();
    if (threadIdx.x < BINS) {
#pragma unroll
        for (unsigned w = 0; w < BINS / 32; w++)
            if (w < warp_index()) bin.begin += warp_sums[w];
        begins[threadIdx.x] = bin.begin;
    }
    return bin;
}

template <SortPolicy P>
__global__ void __launch_bounds__(P.threads, P.blocks) sort_pass(SortArgs args) {
    using Key = typename KeyOf<P.key_bytes>::type;
    constexpr unsigned THREADS = P.threads, WARPS = THREADS / 32, ITEMS = P.items, PART = THREADS * ITEMS;
    constexpr unsigned WORDS = PART * (P.key_bytes == 8 ? 2 : 1), BUFFER = WORDS > WARPS * BINS ? WORDS : WARPS * BINS;
    static_assert(THREADS >= BINS && THREADS % 32 == 0 && ITEMS % RANKED_TOGETHER == 0);
    // First the ranks of each warp by digit, then the sorted keys, then the sorted payloads.
    __shared__ __align__(16) unsigned buffer[BUFFER];
    __shared__ unsigned bin_offsets[BINS], warp_sums[BINS / 32], shared_part;

    Frame& frame = *args.frame;
    const unsigned count = *args.count;
    if (size_t(blockIdx.x) * PART >= count) return;
    if (threadIdx.x == 0) shared_part = atomicAdd(&frame.tickets[args.ticket], 1u);
    for (unsigned i = threadIdx.x; i < WARPS * BINS; i += THREADS) buffer[i] = 0;
    __syncthreads();
    const unsigned part = shared_part, held = min(count - part * PART, PART);
    const unsigned long long tag = look_back_tag(frame.epoch, args.launch);

    // A warp has 32 × ITEMS pairs in a row; item i of a lane is the pair 32 i + lane of them. Pairs beyond the last
    // take the largest digit, so that they end up behind all others.
    const unsigned in_part = warp_index() * 32 * ITEMS + lane_index();
    const Key* keys_in = static_cast<const Key*>(args.keys_in) + size_t(part) * PART;
    Key key[ITEMS];
    unsigned payload[ITEMS], place[ITEMS], digit[ITEMS];
    const unsigned digit_mask = (1u << args.digit_bits) - 1;
#pragma unroll
    for (unsigned i = 0; i < ITEMS; i++) key[i] = in_part + 32 * i < held ? keys_in[in_part + 32 * i] : Key(~Key(0));
#pragma unroll
    for (unsigned i = 0; i < ITEMS; i++) digit[i] = digit_at(key[i], args.shift) & digit_mask;
    unsigned* ranks = buffer + warp_index() * BINS;
#pragma unroll
    for (unsigned first = 0; first < ITEMS; first += RANKED_TOGETHER)
        rank_by_digit(digit + first, place + first, args.digit_bits, ranks);
#pragma unroll
    for (unsigned i = 0; i < ITEMS; i++) {
        const unsigned at = in_part + 32 * i;
        if constexpr (P.iota) payload[i] = part * PART + at;
        else payload[i] = at < held ? args.payloads_in[size_t(part) * PART + at] : 0;
    }
    __syncthreads();

    unsigned long long* word = args.look_back + size_t(part) * BINS + threadIdx.x;
    const unsigned long long state = tag | (part == 0 ? LOOK_BACK_PREFIX : LOOK_BACK_TOTAL);
    const Bin bin = take_bins<WARPS>(buffer, bin_offsets, warp_sums, word, state);
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < ITEMS; i++) place[i] += ranks[digit[i]] + bin_offsets[digit[i]];
    __syncthreads();
    Key* sorted_keys = reinterpret_cast<Key*>(buffer);
#pragma unroll
    for (unsigned i = 0; i < ITEMS; i++) sorted_keys[place[i]] = key[i];
    if (threadIdx.x < BINS) {
        const unsigned before = look_back_at_bin(args.look_back, part, threadIdx.x, tag);
        if (part != 0) store_relaxed(word, (before + bin.held) | tag | LOOK_BACK_PREFIX);
        bin_offsets[threadIdx.x] = args.bin_starts[threadIdx.x] + before - bin.begin;
    }
    __syncthreads();

    // The pair at place j of the part goes to j + what its digit was moved by.
    Key* keys_out = static_cast<Key*>(args.keys_out);
    unsigned target[ITEMS];
#pragma unroll
    for (unsigned i = 0; i < ITEMS; i++) {
        const unsigned j = i * THREADS + threadIdx.x;
        const Key k = sorted_keys[j];
        target[i] = bin_offsets[digit_at(k, args.shift) & digit_mask] + j;
        if (keys_out && j < held) keys_out[target[i]] = k;
    }
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < ITEMS; i++) buffer[place[i]] = payload[i];
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < ITEMS; i++) {
        const unsigned j = i * THREADS + threadIdx.x;
        if (j < held) args.payloads_out[target[i]] = buffer[j];
    }
}
