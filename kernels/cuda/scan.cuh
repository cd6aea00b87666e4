// Sums that run across threads, and across the blocks of one launch.
//
// A warp and a block scan with shuffles. Blocks pass their sums on by decoupled look-back (Merrill and Garland 2016):
// each takes a part of the work by ticket, publishes its own total at once, adds up what the parts before it have
// published, and then publishes the sum including its own, at which later parts stop looking.
//
// One word of 64 bits is the whole message, so relaxed accesses are enough: value | tag | state. The tag is that of
// the launch; a word with another tag is left over from before and counts as empty. So look-back buffers are zeroed
// when they are allocated and when the host starts over at epoch 1, never in between.
#pragma once
#include "math.cuh"

constexpr unsigned EPOCHS = 1u << 19;  // Frame::epoch stays below it
constexpr unsigned LAUNCHES = 8;       // that may share one look-back buffer in a frame

constexpr int LOOK_BACK_VALUE_BITS = 40;
constexpr unsigned long long LOOK_BACK_MOST = (1ull << LOOK_BACK_VALUE_BITS) - 1;
constexpr unsigned long long LOOK_BACK_TOTAL = 1ull << 62, LOOK_BACK_PREFIX = 2ull << 62;

__device__ __forceinline__ unsigned long long look_back_tag(unsigned epoch, unsigned launch) {
    return static_cast<unsigned long long>(epoch * LAUNCHES + launch) << LOOK_BACK_VALUE_BITS;
}
__device__ __forceinline__ unsigned long long look_back_value(unsigned long long word) {
    return word & LOOK_BACK_MOST;
}
__device__ __forceinline__ bool is_published(unsigned long long word, unsigned long long tag) {
    constexpr unsigned long long TAG_BITS = ~LOOK_BACK_MOST & ~(3ull << 62);
    return (word & TAG_BITS) == tag;  // tags are never 0, and whoever wrote the tag wrote a state too
}
__device__ __forceinline__ bool is_prefix(unsigned long long word) { return (word & LOOK_BACK_PREFIX) != 0; }

// ---- Within a warp and a block -------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned inclusive_warp_sum(unsigned value) {
#pragma unroll
    for (unsigned step = 1; step < 32; step *= 2) {
        const unsigned other = __shfl_up_sync(FULL_WARP, value, step);
        if (lane_index() >= step) value += other;
    }
    return value;
}
__device__ __forceinline__ unsigned long long warp_sum(unsigned long long value) {
#pragma unroll
    for (int bit = 16; bit; bit >>= 1) value += __shfl_xor_sync(FULL_WARP, value, bit);
    return value;
}

// Exclusive sum over the block of one value a thread. `warp_sums` is shared, one word a warp; `total` the sum of
// all. Has one barrier; another one is needed before `warp_sums` is used again.
template <unsigned WARPS>
__device__ __forceinline__ unsigned exclusive_block_sum(unsigned value, unsigned* warp_sums, unsigned& total) {
    const unsigned inclusive = inclusive_warp_sum(value);
    if (lane_index() == 31) warp_sums[warp_index()] = inclusive;
    __syncthreads();
    unsigned before = 0;
    total = 0;
#pragma unroll
    for (unsigned w = 0; w < WARPS; w++) {
        const unsigned sum = warp_sums[w];
        if (w < warp_index()) before += sum;
        total += sum;
    }
    return before + inclusive - value;
}

// ---- Across blocks -------------------------------------------------------------------------------------------------

// For one whole warp of the block that has part `part`: lets later parts know its total.
__device__ __forceinline__ void publish_total(unsigned long long* words, unsigned part, unsigned long long total,
                                              unsigned long long tag) {
    if (lane_index() == 0) store_relaxed(&words[part], total | tag | (part == 0 ? LOOK_BACK_PREFIX : LOOK_BACK_TOTAL));
}

// For the same warp, after that: the sum of all parts before, and publishes the sum with its own. `words` [parts].
// 64 parts are looked at at a time, two a lane: their answers take as long to come as one.
__device__ __forceinline__ unsigned long long look_back(unsigned long long* words, unsigned part,
                                                        unsigned long long total, unsigned long long tag) {
    constexpr unsigned EACH = 2;
    unsigned long long before = 0;
    for (unsigned looked_at = 0; looked_at < part;) {
        // Lane 0 has the nearest parts; what lies before the first is an empty prefix.
        const unsigned nearest = looked_at + 1 + EACH * lane_index();
        unsigned long long word[EACH];
        bool is_ready = false;
        while (!__all_sync(FULL_WARP, is_ready)) {
            if (is_ready) continue;
#pragma unroll
            for (unsigned k = 0; k < EACH; k++)
                word[k] = nearest + k <= part ? load_relaxed(&words[part - nearest - k]) : (tag | LOOK_BACK_PREFIX);
            is_ready = true;
            // Past a prefix nothing counts, published or not.
            bool is_open = true;
#pragma unroll
            for (unsigned k = 0; k < EACH; k++) {
                is_ready = is_ready && (!is_open || is_published(word[k], tag));
                is_open = is_open && !(is_published(word[k], tag) && is_prefix(word[k]));
            }
        }
        unsigned long long sum = 0;
        bool is_open = true;
#pragma unroll
        for (unsigned k = 0; k < EACH; k++) {
            if (is_open) sum += look_back_value(word[k]);
            is_open = is_open && !is_prefix(word[k]);
        }
        const unsigned ends = __ballot_sync(FULL_WARP, !is_open);
        const unsigned last = ends ? static_cast<unsigned>(__ffs(static_cast<int>(ends))) - 1 : 31;
        before += warp_sum(lane_index() <= last ? sum : 0ull);
        if (ends) break;
        looked_at += 32 * EACH;
    }
    if (part != 0 && lane_index() == 0) store_relaxed(&words[part], (before + total) | tag | LOOK_BACK_PREFIX);
    return before;
}
