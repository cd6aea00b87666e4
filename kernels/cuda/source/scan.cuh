// Sums that run across threads, and across the blocks of one launch.
//
// A warp and a block scan with shuffles. Blocks pass their sums on by decoupled look-back (Merrill and Garland 2016):
// each takes a part of the work by ticket, publishes its own total at once, and adds up what the parts before it have
// published. Parts come in groups: the last of a group publishes the group's total, and then, once it knows that, the
// sum of all groups up to its own, at which later parts stop looking. So a part asks those before it in its group and
// the nearest groups: two short ways in place of one through all parts.
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

// In a look-back buffer a part has row `row_of_part`, and a group of SIZE parts the row behind its last.
template <unsigned SIZE>
__device__ __forceinline__ unsigned row_of_part(unsigned part) { return part + part / SIZE; }
template <unsigned SIZE>
__device__ __forceinline__ unsigned row_of_group(unsigned group) { return group * (SIZE + 1) + SIZE; }

constexpr unsigned SCAN_GROUP = 32;  // parts, where a warp looks back

// For one whole warp: the sum of the last of `count` words that are STEP apart, back to one that is a prefix or to the
// first; `words` is where the next one would be. Waits for what is not published, a word a lane at a time.
template <unsigned STEP>
__device__ __forceinline__ unsigned long long warp_sum_back(const unsigned long long* words, unsigned count,
                                                            unsigned long long tag) {
    unsigned long long sum = 0;
    for (unsigned done = 0; done < count;) {
        const unsigned mine = done + lane_index();  // lane 0 has the nearest; what lies before the first is a prefix
        const unsigned long long word =
            mine < count ? load_relaxed(words - size_t(mine + 1) * STEP) : (tag | LOOK_BACK_PREFIX);
        const unsigned ready = __ballot_sync(FULL_WARP, is_published(word, tag));
        const unsigned ends = ready & __ballot_sync(FULL_WARP, is_prefix(word));
        // Past a prefix nothing counts, published or not.
        const unsigned last = ends ? static_cast<unsigned>(__ffs(static_cast<int>(ends))) - 1 : 31;
        const unsigned counted = (2u << last) - 1;
        if ((ready & counted) != counted) continue;
        sum += warp_sum(lane_index() <= last ? look_back_value(word) : 0ull);
        if (ends) break;
        done += 32;
    }
    return sum;
}

// For one whole warp of the block that has part `part`: lets later parts know its total.
__device__ __forceinline__ void publish_total(unsigned long long* words, unsigned part, unsigned long long total,
                                              unsigned long long tag) {
    if (lane_index() == 0) store_relaxed(&words[row_of_part<SCAN_GROUP>(part)], total | tag | LOOK_BACK_TOTAL);
}

// For the same warp, after that: the sum of all parts before. `words` [row_of_part(parts) + 1].
__device__ __forceinline__ unsigned long long look_back(unsigned long long* words, unsigned part,
                                                        unsigned long long total, unsigned long long tag) {
    const unsigned group = part / SCAN_GROUP, in_group = part % SCAN_GROUP;
    const unsigned long long nearest = warp_sum_back<1>(words + row_of_part<SCAN_GROUP>(part), in_group, tag);
    unsigned long long* group_word = words + row_of_group<SCAN_GROUP>(group);
    const bool publishes = in_group == SCAN_GROUP - 1 && lane_index() == 0;
    if (publishes) store_relaxed(group_word, (nearest + total) | tag | (group ? LOOK_BACK_TOTAL : LOOK_BACK_PREFIX));
    const unsigned long long before = nearest + warp_sum_back<SCAN_GROUP + 1>(group_word, group, tag);
    if (publishes && group) store_relaxed(group_word, (before + total) | tag | LOOK_BACK_PREFIX);
    return before;
}
