// Sorts (key, payload) pairs by a stable radix sort whose pair count is in device memory: the host never waits.
//
// The sort begins with the least significant digit and makes one pass over the data for each (Adinets and Merrill 2022,
// "Onesweep"). `histogram` first counts every digit of every pass.
//
// Blocks of `sort_pass` stay resident and take parts of the pairs by ticket. For each part a block
// - ranks its pairs by digit, within each warp and then across warps;
// - collects them in shared memory in sorted order;
// - learns by look-back (scan.cuh) how many pairs of each digit the parts before hold;
// - writes runs of equal digits side by side.
// Parts are made smaller where this costs no block another turn. Digits that only few sets of keys use may be left to a
// last pass, which does nothing if no key has such a digit: `rare_bins`.
//
// `sort_pass`: P.threads a block (256 to 1024, at least one for each bin), any number of blocks. Shared memory: a key
// and a word for each pair (at least a word for each bin and warp), and a word for each bin. `histogram`: 512 threads a
// block, any number of blocks, which share the keys. Shared memory: a word for each bin and byte of the key.
//
// Policy:
// - key_bytes: 2, 4 or 8. Keys may have any number of bits, from bit 0;
// - bins: 256 or 512, for digits of up to 8 or 9 bits;
// - threads, items: size of the largest part;
// - blocks: how many should fit a multiprocessor;
// - window: how many parts a look-back reads at a time;
// - iota: in the first pass the payload is the position and is not read, and `base` is subtracted from the keys;
// - gathers: the last pass also brings 8 bytes that belong to each payload into order.
// Read bin.cuh next.
#pragma once
#include "frame.cuh"
#include "scan.cuh"

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

// The digit of `bits` bits that stands at `shift`.
template <class Key>
__device__ __forceinline__ unsigned digit_at(Key key, unsigned shift, unsigned bits) {
    return static_cast<unsigned>(key >> shift) & ((1u << bits) - 1);
}

// ---- Histograms ----------------------------------------------------------------------------------------------------

constexpr unsigned HISTOGRAM_THREADS = 512;

struct HistogramPolicy {
    int key_bytes = 4;
    int bins = 256;
};

struct HistogramArgs {
    Frame* frame;
    const void* __restrict__ keys;      // [*count]
    const unsigned* __restrict__ count;
    const unsigned* __restrict__ base;  // is taken from each key; null: nothing is
    unsigned* bins;                     // in, out [passes][P.bins] what is counted is added; project.cuh clears them
    unsigned passes;                    // at most P.key_bytes
    unsigned digit_bits;                // of each pass
};

// Adds 1 to the bin of each digit of a key; `bins` is shared, [passes][BINS].
template <unsigned BINS, unsigned MOST_PASSES, class Key>
__device__ __forceinline__ void count_digits(unsigned* bins, Key key, unsigned passes, unsigned digit_bits) {
#pragma unroll
    for (unsigned pass = 0; pass < MOST_PASSES; pass++)
        if (pass < passes) atomicAdd(&bins[pass * BINS + digit_at(key, digit_bits * pass, digit_bits)], 1u);
}

// Adds a block's shared bins [passes][BINS] to those of the launch.
template <unsigned BINS>
__device__ __forceinline__ void publish_bins(const unsigned* shared_bins, unsigned* bins, unsigned passes) {
    __syncthreads();
    for (unsigned i = threadIdx.x; i < passes * BINS; i += blockDim.x)
        if (shared_bins[i]) atomicAdd(&bins[i], shared_bins[i]);
}

template <HistogramPolicy P>
__global__ void __launch_bounds__(HISTOGRAM_THREADS) histogram(HistogramArgs args) {
    using Key = typename KeyOf<P.key_bytes>::type;
    constexpr unsigned BINS = P.bins, MOST_PASSES = P.key_bytes, UNROLL = 8;
    __shared__ unsigned shared_bins[MOST_PASSES * BINS];
    for (unsigned i = threadIdx.x; i < args.passes * BINS; i += HISTOGRAM_THREADS) shared_bins[i] = 0;
    __syncthreads();
    const Key* keys = static_cast<const Key*>(args.keys);
    const unsigned count = *args.count, base = args.base ? *args.base : 0;
    const size_t stride = size_t(gridDim.x) * HISTOGRAM_THREADS * UNROLL;
    for (size_t first = size_t(blockIdx.x) * HISTOGRAM_THREADS; first < count; first += stride) {
        Key key[UNROLL];
#pragma unroll
        for (unsigned k = 0; k < UNROLL; k++) {
            const size_t i = first + size_t(k) * gridDim.x * HISTOGRAM_THREADS + threadIdx.x;
            key[k] = i < count ? Key(keys[i] - base) : Key(0);
        }
#pragma unroll
        for (unsigned k = 0; k < UNROLL; k++) {
            const size_t i = first + size_t(k) * gridDim.x * HISTOGRAM_THREADS + threadIdx.x;
            if (i < count) count_digits<BINS, MOST_PASSES>(shared_bins, key[k], args.passes, args.digit_bits);
        }
    }
    publish_bins<BINS>(shared_bins, args.bins, args.passes);
}

// ---- One pass ------------------------------------------------------------------------------------------------------

struct SortPolicy {
    int key_bytes = 4;
    int bins = 256;
    int threads = 512;
    int items = 8;    // pairs a thread, even
    int blocks = 2;   // that should fit a multiprocessor; this limits the registers
    int window = 8;   // parts or groups
    bool iota = false;
    bool gathers = false;
};

struct SortArgs {
    Frame* frame;
    const void* __restrict__ keys_in;           // [*count]
    const unsigned* __restrict__ payloads_in;   // [*count]; unused with iota
    void* keys_out;                             // [*count], or null where only the payloads matter
    unsigned* payloads_out;                     // [*count]
    const unsigned* __restrict__ count;
    const unsigned* __restrict__ base;          // iota: subtracted from each key; null: 0
    const unsigned* __restrict__ bins;          // [P.bins] how many pairs have each digit
    // [P.bins] bins of a last pass that does nothing if all its digits are 0. Given to that pass and to the pass
    // before. The pass before then writes no keys; if the last pass does run, it writes its payloads to
    // `payloads_rare`. Null: there is no such pass.
    const unsigned* __restrict__ rare_bins;
    unsigned* payloads_rare;                    // [*count]
    const uint2* __restrict__ gather_in;        // gathers: by payload
    uint2* gather_out;                          // gathers: [*count] in order
    unsigned long long* look_back;              // [parts and their groups][P.bins]; several passes may share it
    unsigned shift;                             // first bit of the digit
    unsigned digit_bits;                        // 1 … 9
    unsigned launch;                            // below LAUNCHES; different for each launch that shares look_back
    unsigned ticket;                            // which of Frame::tickets counts parts
};

constexpr unsigned SORT_GROUP = 16;  // parts of a group where each thread looks back for its own digit

// Adds up published words backwards, from the newest to the nearest prefix, or to the first word if there is no prefix.
// The `count` words are STEP apart; `words` points just behind the newest. Waits for words that are not published yet.
// Loads WINDOW words at a time, which takes no longer than one. Values are below 2^32.
template <unsigned STEP, unsigned WINDOW>
__device__ __forceinline__ unsigned sum_back(const unsigned long long* words, unsigned count, unsigned long long tag) {
    const unsigned as_total = static_cast<unsigned>((tag | LOOK_BACK_TOTAL) >> 32);
    const unsigned as_prefix = static_cast<unsigned>((tag | LOOK_BACK_PREFIX) >> 32);
    unsigned sum = 0;
    for (unsigned done = 0; done < count;) {
        unsigned value[WINDOW], state[WINDOW];
#pragma unroll
        for (unsigned k = 0; k < WINDOW; k++) {
            const bool exists = done + k < count;
            const unsigned long long word = exists ? load_relaxed(words - size_t(done + k + 1) * STEP) : 0;
            value[k] = static_cast<unsigned>(word);
            state[k] = exists ? static_cast<unsigned>(word >> 32) : as_prefix;
        }
        unsigned ends = 1u << WINDOW, gaps = 1u << WINDOW;
#pragma unroll
        for (unsigned k = 0; k < WINDOW; k++) {
            if (state[k] == as_prefix) ends |= 1u << k;
            else if (state[k] != as_total) gaps |= 1u << k;
        }
        const unsigned end = static_cast<unsigned>(__ffs(static_cast<int>(ends)));  // counts from 1
        const unsigned gap = static_cast<unsigned>(__ffs(static_cast<int>(gaps)));
        const unsigned taken = min(min(end, gap - 1), WINDOW);
#pragma unroll
        for (unsigned k = 0; k < WINDOW; k++)
            if (k < taken) sum += value[k];
        if (end < gap) break;
        done += taken;
    }
    return sum;
}

// Returns how many pairs with the thread's digit are in all parts before `part`. The part itself has `held` of them and
// has published that number. `words` are those of the digit, BINS apart.
template <unsigned BINS, unsigned WINDOW>
__device__ __forceinline__ unsigned pairs_before(unsigned long long* words, unsigned part, unsigned held,
                                                 unsigned long long tag) {
    const unsigned group = part / SORT_GROUP, in_group = part % SORT_GROUP;
    const unsigned long long* word = words + size_t(row_of_part<SORT_GROUP>(part)) * BINS;
    const unsigned nearest = sum_back<BINS, WINDOW>(word, in_group, tag);
    unsigned long long* group_word = words + size_t(row_of_group<SORT_GROUP>(group)) * BINS;
    const bool is_last = in_group == SORT_GROUP - 1;
    if (is_last) store_relaxed(group_word, (nearest + held) | tag | (group ? LOOK_BACK_TOTAL : LOOK_BACK_PREFIX));
    const unsigned before = nearest + sum_back<(SORT_GROUP + 1) * BINS, WINDOW>(group_word, group, tag);
    if (is_last && group) store_relaxed(group_word, (before + held) | tag | LOOK_BACK_PREFIX);
    return before;
}

// Gives COUNT items of each lane their places among the warp's pairs with the same digit, item after item and lane
// after lane. `ranks` [bins] holds how many pairs of each digit came before, and is updated.
template <unsigned COUNT>
__device__ __forceinline__ void rank_by_digit(const unsigned* digit, unsigned* place, unsigned digit_bits,
                                              unsigned* ranks) {
    // Finds the lanes with the same digit, bit by bit. Several items at a time hide the latency of the votes.
    unsigned peers[COUNT];
#pragma unroll
    for (unsigned i = 0; i < COUNT; i++) peers[i] = FULL_WARP;
    for (unsigned bit = 0; bit < digit_bits; bit++) {
#pragma unroll
        for (unsigned i = 0; i < COUNT; i++) {
            const bool is_set = digit[i] >> bit & 1u;
            const unsigned votes = __ballot_sync(FULL_WARP, is_set);
            peers[i] &= is_set ? votes : ~votes;
        }
    }
    const unsigned lower_lanes = (1u << lane_index()) - 1;
#pragma unroll
    for (unsigned i = 0; i < COUNT; i++) {
        const unsigned before = ranks[digit[i]], lower = static_cast<unsigned>(__popc(peers[i] & lower_lanes));
        __syncwarp();
        if (lower == 0) ranks[digit[i]] = before + static_cast<unsigned>(__popc(peers[i]));
        __syncwarp();
        place[i] = before + lower;
    }
}

// The digit d of a part, known to thread d only.
struct Bin {
    unsigned held;   // pairs with this digit
    unsigned begin;  // where they begin in the sorted part
};

// Turns the warps' counts of each digit, `ranks` [warps][BINS], into sums over the warps before. Publishes the part's
// total of each digit that exists, and writes to `begins` [BINS] where each digit begins. Has one barrier and needs
// another after it.
template <unsigned WARPS, unsigned BINS>
__device__ __forceinline__ Bin take_bins(unsigned* ranks, unsigned* begins, unsigned* warp_sums, bool has_digit,
                                         unsigned long long* word, unsigned long long state) {
    Bin bin{0, 0};
    if (threadIdx.x < BINS) {
#pragma unroll
        for (unsigned w = 0; w < WARPS; w++) {
            const unsigned in_warp = ranks[w * BINS + threadIdx.x];
            ranks[w * BINS + threadIdx.x] = bin.held;
            bin.held += in_warp;
        }
        if (has_digit) store_relaxed(word, bin.held | state);
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
    constexpr unsigned BINS = P.bins, THREADS = P.threads, WARPS = THREADS / 32;
    constexpr unsigned ITEMS = P.items, FEWER = ITEMS * 3 / 4, FEW = ITEMS / 2;
    constexpr unsigned PAIRS = THREADS * ITEMS, KEY_WORDS = PAIRS * P.key_bytes / 4;
    constexpr unsigned BUFFER = max_of(KEY_WORDS + PAIRS, WARPS * BINS);
    static_assert(THREADS >= BINS && THREADS % 32 == 0 && ITEMS % 2 == 0);
    // Holds the ranks of each warp by digit, later the sorted keys and payloads.
    __shared__ __align__(16) unsigned buffer[BUFFER];
    __shared__ unsigned bin_offsets[BINS], warp_sums[BINS / 32], shared_part;

    Frame& frame = *args.frame;
    const unsigned count = *args.count, base = P.iota && args.base ? *args.base : 0;
    const bool has_digit = threadIdx.x < 1u << args.digit_bits;
    const unsigned in_bin = has_digit ? args.bins[threadIdx.x] : 0;
    const bool is_rare = args.rare_bins && args.rare_bins[0] != count;
    if (args.rare_bins == args.bins && !is_rare) return;
    unsigned all;
    const unsigned bin_start = exclusive_block_sum<WARPS>(in_bin, bin_offsets, all);
    Key* keys_out = args.rare_bins && !is_rare ? nullptr : static_cast<Key*>(args.keys_out);
    unsigned* payloads_out = is_rare ? args.payloads_rare : args.payloads_out;
    const unsigned long long tag = look_back_tag(frame.epoch, args.launch);
    // The fewest items for which no block needs another turn.
    const unsigned step = gridDim.x * THREADS, turns = count ? (count - 1) / (step * ITEMS) + 1 : 1;
    const unsigned items = count <= turns * step * FEW ? FEW : count <= turns * step * FEWER ? FEWER : ITEMS;
    const unsigned size = THREADS * items;
    for (;;) {
        if (threadIdx.x == 0) shared_part = atomicAdd(&frame.tickets[args.ticket], 1u);
        for (unsigned i = threadIdx.x; i < WARPS * BINS / 4; i += THREADS)
            reinterpret_cast<uint4*>(buffer)[i] = make_uint4(0, 0, 0, 0);
        __syncthreads();
        const unsigned part = shared_part;
        if (size_t(part) * size >= count) return;
        const unsigned first = part * size, held = min(count - first, size);

        // A warp has 32 × items consecutive pairs; item i of a lane is pair 32 i + lane. Pairs beyond the last get the
        // largest digit, so that they end up behind all others.
        const unsigned in_part = warp_index() * 32 * items + lane_index();
        const unsigned end = min(held, (warp_index() + 1) * 32 * items);
        const Key* keys_in = static_cast<const Key*>(args.keys_in) + first;
        Key key[ITEMS];
        unsigned payload[ITEMS], place[ITEMS], digit[ITEMS];
#pragma unroll
        for (unsigned i = 0; i < ITEMS; i++)
            key[i] = in_part + 32 * i < end ? Key(keys_in[in_part + 32 * i] - base) : Key(~Key(0));
#pragma unroll
        for (unsigned i = 0; i < ITEMS; i++) digit[i] = digit_at(key[i], args.shift, args.digit_bits);
        unsigned* ranks = buffer + warp_index() * BINS;
        if (items == ITEMS) rank_by_digit<ITEMS>(digit, place, args.digit_bits, ranks);
        else if (items == FEWER) rank_by_digit<FEWER>(digit, place, args.digit_bits, ranks);
        else rank_by_digit<FEW>(digit, place, args.digit_bits, ranks);
#pragma unroll
        for (unsigned i = 0; i < ITEMS; i++) {
            const unsigned at = in_part + 32 * i;
            if constexpr (P.iota) payload[i] = first + at;
            else payload[i] = at < end ? args.payloads_in[first + at] : 0;
        }
        __syncthreads();

        unsigned long long* words = args.look_back + threadIdx.x;
        unsigned long long* word = words + size_t(row_of_part<SORT_GROUP>(part)) * BINS;
        const Bin bin = take_bins<WARPS, BINS>(buffer, bin_offsets, warp_sums, has_digit, word, tag | LOOK_BACK_TOTAL);
        __syncthreads();
#pragma unroll
        for (unsigned i = 0; i < ITEMS; i++)
            if (i < items) place[i] += ranks[digit[i]] + bin_offsets[digit[i]];
        __syncthreads();
        Key* sorted_keys = reinterpret_cast<Key*>(buffer);
        unsigned* sorted_payloads = buffer + KEY_WORDS;
#pragma unroll
        for (unsigned i = 0; i < ITEMS; i++)
            if (i < items) sorted_keys[place[i]] = key[i];
#pragma unroll
        for (unsigned i = 0; i < ITEMS; i++)
            if (i < items) sorted_payloads[place[i]] = payload[i];
        if (has_digit)
            bin_offsets[threadIdx.x] =
                bin_start + pairs_before<BINS, P.window>(words, part, bin.held, tag) - bin.begin;
        __syncthreads();

        // The pair at place j of the part goes to j + the offset of its digit.
#pragma unroll
        for (unsigned two = 0; two < ITEMS; two += 2) {
            uint2 gathered[2];
#pragma unroll
            for (unsigned i = 0; P.gathers && i < 2; i++) {
                const unsigned j = (two + i) * THREADS + threadIdx.x;
                if (j < held) gathered[i] = args.gather_in[sorted_payloads[j]];
            }
#pragma unroll
            for (unsigned i = 0; i < 2; i++) {
                const unsigned j = (two + i) * THREADS + threadIdx.x;
                if (j >= held) continue;
                const Key k = sorted_keys[j];
                const unsigned target = bin_offsets[digit_at(k, args.shift, args.digit_bits)] + j;
                if (keys_out) keys_out[target] = k;
                payloads_out[target] = sorted_payloads[j];
                if constexpr (P.gathers) args.gather_out[target] = gathered[i];
            }
        }
        __syncthreads();
    }
}
