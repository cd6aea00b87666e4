// Sums over the values of preceding threads (scans), within a block and across the blocks of one launch.
//
// Within a warp and a block: shuffles. Across blocks: decoupled look-back (Merrill and Garland 2016). Each block takes
// a part of the work by ticket, publishes the part's total at once, and adds up what the parts before it have
// published.
//
// Parts are divided into groups, so that no part has to walk through all others. The last part of a group publishes the
// group's total. Once it knows the sum of all groups up to its own, it publishes that too: the prefix, where later
// parts stop looking. A part therefore reads the parts before it in its group, and then the nearest groups.
//
// A message is one word of 64 bits (value | tag | state), so relaxed accesses are enough. The tag is that of the
// launch. A word with another tag is left over from an earlier launch and counts as empty. Look-back buffers are
// therefore zeroed only when they are allocated and when the host starts again at epoch 1.
#pragma once
#include "math.cuh"

constexpr unsigned EPOCHS = 1u << 19;  // Frame::epoch stays below it
constexpr unsigned LAUNCHES = 8;       // most launches of a frame that share a look-back buffer

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
    return (word & TAG_BITS) == tag;  // tags are never 0, and each word is written with its state
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

// Returns the sum of the values of all threads before this one in the block; `total` becomes the sum of all values.
// `warp_sums` is shared memory, one word a warp. Has one barrier. The caller needs another before it uses `warp_sums`
// again.
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

// Rows of a look-back buffer: one for each part, and one for each group of SIZE parts, behind the group's last part.
template <unsigned SIZE>
__device__ __forceinline__ unsigned row_of_part(unsigned part) { return part + part / SIZE; }
template <unsigned SIZE>
__device__ __forceinline__ unsigned row_of_group(unsigned group) { return group * (SIZE + 1) + SIZE; }

constexpr unsigned SCAN_GROUP = 32;  // parts of a group where a whole warp looks back

// Adds up published words backwards, from the newest to the nearest prefix, or to the first word if there is no prefix.
// One whole warp calls, a word a lane. The `count` words are STEP apart; `words` points just behind the newest. Waits
// for words that are not published yet.
template <unsigned STEP>
__device__ __forceinline__ unsigned long long warp_sum_back(const unsigned long long* words, unsigned count,
                                                            unsigned long long tag) {
    unsigned long long sum = 0;
    for (unsigned done = 0; done < count;) {
        const unsigned mine = done + lane_index();  // lane 0 has the nearest; beyond the first word: prefix 0
        const unsigned long long word =
            mine < count ? load_relaxed(words - size_t(mine + 1) * STEP) : (tag | LOOK_BACK_PREFIX);
        const unsigned ready = __ballot_sync(FULL_WARP, is_published(word, tag));
        const unsigned ends = ready & __ballot_sync(FULL_WARP, is_prefix(word));
        // Words behind the nearest prefix do not count, published or not.
        const unsigned last = ends ? static_cast<unsigned>(__ffs(static_cast<int>(ends))) - 1 : 31;
        const unsigned counted = (2u << last) - 1;
        if ((ready & counted) != counted) continue;
        sum += warp_sum(lane_index() <= last ? look_back_value(word) : 0ull);
        if (ends) break;
        done += 32;
    }
    return sum;
}

// Publishes the total of part `part`. One whole warp of its block calls.
__device__ __forceinline__ void publish_total(unsigned long long* words, unsigned part, unsigned long long total,
                                              unsigned long long tag) {
    if (lane_index() == 0) store_relaxed(&words[row_of_part<SCAN_GROUP>(part)], total | tag | LOOK_BACK_TOTAL);
}

// Returns the sum of all parts before `part`. The warp that called `publish_total` calls, afterwards.
// `words` [row_of_part(parts) + 1].
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
