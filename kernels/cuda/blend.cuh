// Blends each tile's list of splats front to back, and for training leaves what the backward pass needs.
//
// A block a tile, 256 or 128 threads. A warp owns 8×4 pixels, one a thread, or 8×8, two a thread one above the
// other; lane % 8 is the column, lane / 8 the row or pair of rows. Splats are staged as many at a time as there are
// threads; each thread stages one and tells which warps' pixels it may reach, and each warp goes through those that
// may reach its own. Shared memory: 48 bytes a staged splat, 1 byte of warp bits, and for compaction a word per
// warp and 32 splats.
//
// Also here, because both passes must decide alike which pixel a splat reaches, to the bit: how a splat is staged
// and its alpha. Not here: the order of tiles, the lists. Read blend_backward.cuh next.
#pragma once
#include "frame.cuh"

// ---- Policy and arguments -------------------------------------------------------------------------------------------

enum class Map : int {
    columns_8x4,  // 256 threads: eight warps of 8×4 pixels
    columns_8x8,  // 128 threads: four warps of 8×8 pixels, two rows a thread
};
enum class Subtile : int {
    off,      // every warp goes through every splat of the tile
    aabb,     // those whose bounding box meets the warp's pixels
    ellipse,  // those whose ellipse does, exactly
};
enum class Exponential : int { expf, ex2 };

struct BlendPolicy {
    Map map = Map::columns_8x8;
    Subtile subtile = Subtile::ellipse;
    Exponential exp = Exponential::ex2;
    bool log2_opacity = true;  // opacity enters the exponent instead of being multiplied
    bool branchless = true;    // pixels that are not hit go through the motions with alpha 0
    bool sign_T = true;        // the sign of T says that the pixel is done
    bool training = false;     // writes last and entry_counts
    bool compaction = false;   // training: the list keeps only splats that were blended somewhere in the tile
    bool cmask = false;        // and each entry says in its top bits by which warps
    bool wants_depth = false;
};

struct BlendArgs {
    const Frame* frame;
    const Splat* splats;         // [V]
    const float* depths;         // [V] camera z, world units; read only for depth
    const unsigned* tile_start;  // [T + 1] into list
    unsigned* list;              // [I] slots, nearest first; compaction rewrites the front of each tile's part
    unsigned* entry_counts;      // [T] out, training: entries of the list that the backward pass walks
    float* image;                // [H, W, 3] out, over the background
    float* transmittance;        // [H, W] out
    float* depth;                // [H, W] out, if wanted: mean camera z of what was blended, NaN if nothing was
    unsigned* last;              // [H, W] out, training: entries up to and with the last one blended
};

// ---- What follows from a policy -------------------------------------------------------------------------------------

__device__ constexpr int rows_of(Map map) { return map == Map::columns_8x8 ? 2 : 1; }
__device__ constexpr int warps_of(Map map) { return 8 / rows_of(map); }
__device__ constexpr int threads_of(Map map) { return 32 * warps_of(map); }
// A list entry is a slot, with cmask below as many bits as there are warps: 2^24 or 2^28 slots.
__device__ constexpr int slot_bits(Map map) { return 32 - warps_of(map); }

// Where a thread's topmost pixel is in its tile, px.
struct Place {
    int x, y;
};
template <Map MAP>
__device__ __forceinline__ Place place_in_tile() {
    const int lane = int(lane_index()), warp = int(warp_index());
    constexpr int ROWS = rows_of(MAP);
    return {(warp & 1) * 8 + (lane & 7), (warp >> 1) * 4 * ROWS + (lane >> 3) * ROWS};
}

// ---- Staged splats and their alpha ----------------------------------------------------------------------------------
//
// With d = mean − pixel, u = a dx and v = b dx + c dy, log2 alpha = log2_opacity − u² − v². u belongs to a column of
// pixels, and v falls by c from row to row. Seen from the corner of the tile, u = u0 − a x and v = v0 − b x − c y.

struct Whitened {
    float a, b, c;  // 1/px
};
// From the conic in base 2. The subtraction is exact, so what a needle loses is only what its conic had lost.
__device__ __forceinline__ Whitened whitened(const Splat& s) {
    const float inverse_c = rsqrtf(-s.c), c = -s.c * inverse_c;
    const float determinant = difference_of_products(s.a, s.c, 0.25f * s.b, s.b);
    const float a_squared = fmaxf(quotient_approx(determinant, -s.c), 1e-30f);
    return {a_squared * rsqrtf(a_squared), -0.5f * s.b * inverse_c, c};
}

struct alignas(16) Staged {
    float a, u0, b, v0;
    float c, opacity, red, green;  // opacity, or its logarithm to base 2 with log2_opacity
    float blue;
    unsigned index;  // in the tile's list
    float depth;     // only if wanted
    unsigned slot;   // NO_SLOT if there is nothing to add gradients to
};
static_assert(sizeof(Staged) == 48);
constexpr unsigned NO_SLOT = 0xffffffffu;

template <bool LOG2_OPACITY>
__device__ __forceinline__ Staged staged_splat(const Splat& s, int tile_x, int tile_y, unsigned index, unsigned slot) {
    const Whitened w = whitened(s);
    const float x = s.x - float(tile_x), y = s.y - float(tile_y);
    Staged staged;
    staged.a = w.a, staged.b = w.b, staged.c = w.c;
    staged.u0 = __fmul_rn(w.a, x), staged.v0 = __fmaf_rn(w.b, x, __fmul_rn(w.c, y));
    staged.opacity = LOG2_OPACITY ? s.log2_opacity : exp2_approx(s.log2_opacity);
    staged.red = s.red, staged.green = s.green, staged.blue = s.blue;
    staged.depth = 0.0f, staged.index = index, staged.slot = slot;
    return staged;
}
// One that no pixel is hit by.
__device__ __forceinline__ Staged empty_splat() {
    return {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, -FLOAT_MAX, 0.0f, 0.0f, 0.0f, 0u, 0.0f, NO_SLOT};
}

// u, v and alpha of the pixels of one thread. Forward and backward call this with the same policy and round alike.
template <int ROWS>
struct Evaluated {
    float u;
    float v[ROWS];
    float alpha[ROWS];  // opacity times falloff, not capped
};
template <Exponential EXP, bool LOG2_OPACITY, int ROWS>
__device__ __forceinline__ Evaluated<ROWS> evaluate(const Staged& s, float x, float y) {
    Evaluated<ROWS> e;
    e.u = __fmaf_rn(-s.a, x, s.u0);
    const float column = LOG2_OPACITY ? __fmaf_rn(-e.u, e.u, s.opacity) : __fmul_rn(-e.u, e.u);
    e.v[0] = __fmaf_rn(-s.b, x, __fmaf_rn(-s.c, y, s.v0));
    if constexpr (ROWS == 2) e.v[1] = __fadd_rn(e.v[0], -s.c);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const float power = __fmaf_rn(-e.v[row], e.v[row], column);
        const float falloff = EXP == Exponential::ex2 ? exp2_approx(power) : expf(__fmul_rn(LN_2, power));
        e.alpha[row] = LOG2_OPACITY ? falloff : __fmul_rn(s.opacity, falloff);
    }
    return e;
}

// ---- Which warps a splat may reach ----------------------------------------------------------------------------------

// Smallest u² + v² over a box of pixel centres. It lies on one of the two sides that face the mean.
__device__ __forceinline__ float nearest_on_side(const Staged& s, float along_x, float y_low, float y_high) {
    const float u = s.u0 - s.a * along_x, rest = s.v0 - s.b * along_x;
    const float y = clamped(quotient_approx(rest, s.c), y_low, y_high), v = rest - s.c * y;
    return u * u + v * v;
}
__device__ __forceinline__ float nearest_on_row(const Staged& s, float y, float x_low, float x_high) {
    const float rest = s.v0 - s.c * y;
    const float best = quotient_approx(s.a * s.u0 + s.b * rest, s.a * s.a + s.b * s.b);
    const float x = clamped(best, x_low, x_high), u = s.u0 - s.a * x, v = rest - s.b * x;
    return u * u + v * v;
}

// A bit for each warp that has a pixel where alpha may reach 1/255.
template <Map MAP, Subtile SUBTILE>
__device__ __forceinline__ unsigned warp_bits(const Staged& s, float mean_x, float mean_y, float log2_opacity) {
    constexpr int COLUMNS = 2, ROWS = warps_of(MAP) / COLUMNS, HEIGHT = TILE / ROWS;
    if constexpr (SUBTILE == Subtile::off) return (1u << warps_of(MAP)) - 1u;
    // Rounding of u and v is in proportion to their parts; it must never hide a pixel that evaluate() finds.
    const float parts = fabsf(s.u0) + fabsf(s.v0) + float(TILE) * (s.a + fabsf(s.b) + s.c);
    const float reach = fmaxf(log2_opacity - LOG2_ALPHA_MIN, 0.0f) * 1.0001f + 1e-5f + 2e-6f * parts;
    unsigned bits = 0;
    if constexpr (SUBTILE == Subtile::aabb) {
        const float radius = sqrtf(reach), slope = s.b / s.a;
        const float half_width = radius / s.a, half_height = radius * sqrtf(1.0f + slope * slope) / s.c;
#pragma unroll
        for (int warp = 0; warp < warps_of(MAP); warp++) {
            const float x = float(warp % COLUMNS * 8) + 4.0f, y = float(warp / COLUMNS * HEIGHT) + 0.5f * HEIGHT;
            const bool meets = fabsf(mean_x - x) <= half_width + 3.5f &&
                               fabsf(mean_y - y) <= half_height + 0.5f * float(HEIGHT - 1);
            bits |= unsigned(meets) << warp;
        }
    } else {
#pragma unroll
        for (int warp = 0; warp < warps_of(MAP); warp++) {
            const float x_low = float(warp % COLUMNS * 8) + 0.5f, x_high = x_low + 7.0f;
            const float y_low = float(warp / COLUMNS * HEIGHT) + 0.5f, y_high = y_low + float(HEIGHT - 1);
            const float side = nearest_on_side(s, clamped(mean_x, x_low, x_high), y_low, y_high);
            const float row = nearest_on_row(s, clamped(mean_y, y_low, y_high), x_low, x_high);
            bits |= unsigned(fminf(side, row) <= reach) << warp;
        }
    }
    return bits;
}

// ---- Pixels ---------------------------------------------------------------------------------------------------------

struct Pixel {
    float T;  // left for what is behind; with sign_T negative once the pixel is done
    float red, green, blue;
    float weight, depth;  // sums, only if depth is wanted
    bool is_done;         // without sign_T
    unsigned blended;     // training: bits of the current 32 splats
    unsigned last;        // training
};

template <BlendPolicy P>
__device__ __forceinline__ bool is_going_on(const Pixel& pixel) {
    return P.sign_T ? pixel.T > 0.0f : !pixel.is_done;
}

template <BlendPolicy P>
__device__ __forceinline__ void add_to_pixel(Pixel& pixel, const Staged& s, float weight) {
    pixel.red = fmaf(weight, s.red, pixel.red);
    pixel.green = fmaf(weight, s.green, pixel.green);
    pixel.blue = fmaf(weight, s.blue, pixel.blue);
    if constexpr (P.wants_depth) {
        pixel.weight += weight;
        pixel.depth = fmaf(weight, s.depth, pixel.depth);
    }
}

// Blends one splat into one pixel. The splat that would take T below the stop ends the pixel and is not blended.
template <BlendPolicy P>
__device__ __forceinline__ void blend_pixel(Pixel& pixel, const Staged& s, float uncapped, unsigned bit) {
    if constexpr (P.sign_T) {
        // Alpha 0 leaves T as it is, and T < 0 stays below the stop: a pixel that is done never blends again.
        const bool is_hit = uncapped >= ALPHA_MIN;
        const float alpha = is_hit ? fminf(uncapped, ALPHA_CAP) : 0.0f;
        const float after = __fmaf_rn(-pixel.T, alpha, pixel.T);
        const bool goes_on = after >= TRANSMITTANCE_STOP;
        add_to_pixel<P>(pixel, s, goes_on ? pixel.T * alpha : 0.0f);
        const unsigned hit_bit = is_hit ? bit : 0u;
        if constexpr (P.training) pixel.blended = goes_on ? pixel.blended | hit_bit : pixel.blended;
        pixel.T = goes_on ? after : -fabsf(pixel.T);
        return;
    }
    const float alpha = fminf(uncapped, ALPHA_CAP);
    const float after = __fmaf_rn(-pixel.T, alpha, pixel.T);
    if constexpr (P.branchless) {
        const bool is_hit = !pixel.is_done && alpha >= ALPHA_MIN;
        const bool is_blended = is_hit && after >= TRANSMITTANCE_STOP;
        add_to_pixel<P>(pixel, s, is_blended ? pixel.T * alpha : 0.0f);
        if constexpr (P.training) pixel.blended |= is_blended ? bit : 0u;
        pixel.is_done |= is_hit && !is_blended;
        pixel.T = is_blended ? after : pixel.T;
    } else {
        if (pixel.is_done || alpha < ALPHA_MIN) return;
        if (after < TRANSMITTANCE_STOP) {
            pixel.is_done = true;
            return;
        }
        add_to_pixel<P>(pixel, s, pixel.T * alpha);
        if constexpr (P.training) pixel.blended |= bit;
        pixel.T = after;
    }
}

// ---- Compaction -----------------------------------------------------------------------------------------------------

// Which of a batch's 32 CHUNKS splats were blended, and where they go: lane k of every warp knows chunk k.
struct Kept {
    unsigned word;    // bits of the splats that any warp blended
    unsigned before;  // how many there are in earlier chunks
    unsigned total;   // in the batch; all lanes
};
template <int WARPS, int CHUNKS>
__device__ __forceinline__ Kept count_kept(const unsigned (&blended)[WARPS][CHUNKS]) {
    const int lane = int(lane_index()), chunk = lane % CHUNKS;
    unsigned word = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) word |= blended[warp][chunk];
    const unsigned own = unsigned(__popc(word));
    unsigned through = own;
#pragma unroll
    for (int step = 1; step < CHUNKS; step *= 2) {
        const unsigned other = __shfl_up_sync(FULL_WARP, through, unsigned(step));
        if (chunk >= step) through += other;
    }
    return {word, through - own, __shfl_sync(FULL_WARP, through, CHUNKS - 1)};
}
// Place among the kept of the batch, counted from 1, of the last one up to splat `number` of it. All lanes call.
__device__ __forceinline__ unsigned kept_through(const Kept& kept, unsigned number) {
    const unsigned word = __shfl_sync(FULL_WARP, kept.word, int(number / 32u));
    const unsigned before = __shfl_sync(FULL_WARP, kept.before, int(number / 32u));
    return before + unsigned(__popc(word & ((2u << number % 32u) - 1u)));
}
template <int WARPS, int CHUNKS>
__device__ __forceinline__ unsigned contributor_mask(const unsigned (&blended)[WARPS][CHUNKS], int chunk, int bit) {
    unsigned mask = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) mask |= (blended[warp][chunk] >> bit & 1u) << warp;
    return mask;
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

template <BlendPolicy P>
__global__ void __launch_bounds__(threads_of(P.map)) blend(BlendArgs args) {
    static_assert(!P.sign_T || P.branchless, "sign_T keeps a pixel's end in the sign of T: switch on branchless first");
    static_assert(!P.branchless || P.subtile != Subtile::off,
                  "branchless needs sub-tile masks: switch on subtile first");
    static_assert(!P.compaction || P.training, "compaction serves the backward pass: it needs training");
    static_assert(!P.compaction || P.subtile != Subtile::off,
                  "compaction needs sub-tile masks: switch on subtile first");
    static_assert(!P.cmask || P.compaction, "cmask is stored by compaction: switch on compaction first");
    static_assert(!P.log2_opacity || P.exp == Exponential::ex2,
                  "log2_opacity is an exponent of 2: switch exp to ex2 first");
    constexpr int ROWS = rows_of(P.map), WARPS = warps_of(P.map), BATCH = threads_of(P.map), CHUNKS = BATCH / 32;

    __shared__ Staged staged[BATCH];
    __shared__ unsigned char reached[BATCH];
    __shared__ unsigned blended_words[P.compaction ? WARPS : 1][P.compaction ? CHUNKS : 1];

    const Frame& frame = *args.frame;
    if (frame.overflow) return;
    const int tile = int(blockIdx.x);
    const int tile_x = tile % frame.tile_columns * TILE, tile_y = tile / frame.tile_columns * TILE;
    const unsigned start = args.tile_start[tile], count = args.tile_start[tile + 1] - start;
    const Place place = place_in_tile<P.map>();
    const float x = float(place.x) + 0.5f, y = float(place.y) + 0.5f;
    const int lane = int(lane_index()), warp = int(warp_index()), thread = int(threadIdx.x);

    Pixel pixels[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const bool is_outside = tile_x + place.x >= frame.width || tile_y + place.y + row >= frame.height;
        pixels[row] = {is_outside && P.sign_T ? -1.0f : 1.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, is_outside, 0u, 0u};
    }

    unsigned kept = 0;  // entries of the list after compaction
    for (unsigned first = 0; first < count; first += BATCH) {
        // Stage.
        const unsigned mine = first + unsigned(thread);
        unsigned slot = NO_SLOT;
        if (mine < count) {
            slot = args.list[start + mine];
            const Splat splat = load_splat(args.splats, slot);
            Staged s = staged_splat<P.log2_opacity>(splat, tile_x, tile_y, mine, slot);
            if constexpr (P.wants_depth) s.depth = args.depths[slot];
            staged[thread] = s;
            reached[thread] = (unsigned char)(warp_bits<P.map, P.subtile>(
                s, splat.x - float(tile_x), splat.y - float(tile_y), splat.log2_opacity));
        } else {
            reached[thread] = 0;
        }
        __syncthreads();

        // Blend: each warp its own pixels, 32 splats at a time.
        unsigned newest[ROWS];  // training: chunk and bit of the batch's last blended splat, plus one
#pragma unroll
        for (int row = 0; row < ROWS; row++) newest[row] = 0;
        int chunk = 0;
        const Staged* of_chunk = staged;
        for (; chunk < CHUNKS && first + 32u * unsigned(chunk) < count; chunk++, of_chunk += 32) {
            bool goes_on = is_going_on<P>(pixels[0]);
            if constexpr (ROWS == 2) goes_on |= is_going_on<P>(pixels[1]);
            if (!__any_sync(FULL_WARP, goes_on)) break;
            unsigned waiting = __ballot_sync(FULL_WARP, reached[chunk * 32 + lane] >> warp & 1);
            while (waiting) {
                const unsigned bit = waiting & (0u - waiting);
                waiting ^= bit;
                const Staged& s = of_chunk[31 - __clz(int(bit))];
                const Evaluated<ROWS> e = evaluate<P.exp, P.log2_opacity, ROWS>(s, x, y);
#pragma unroll
                for (int row = 0; row < ROWS; row++) blend_pixel<P>(pixels[row], s, e.alpha[row], bit);
            }
            if constexpr (P.training) {
                unsigned blended = 0;
#pragma unroll
                for (int row = 0; row < ROWS; row++) {
                    const unsigned word = pixels[row].blended;
                    if (word) newest[row] = unsigned(chunk) * 32u + 32u - unsigned(__clz(int(word)));
                    blended |= word;
                    pixels[row].blended = 0;
                }
                if constexpr (P.compaction) {
                    blended = warp_or(blended);
                    if (lane == 0) blended_words[warp][chunk] = blended;
                }
            }
        }
        if constexpr (P.compaction)
            if (lane == 0)
                for (; chunk < CHUNKS; chunk++) blended_words[warp][chunk] = 0;

        bool goes_on = is_going_on<P>(pixels[0]);
        if constexpr (ROWS == 2) goes_on |= is_going_on<P>(pixels[1]);
        const bool some_go_on = __syncthreads_or(goes_on);

        // Where each pixel's last splat ended up, and the front of the list.
        if constexpr (P.training && !P.compaction) {
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                if (newest[row]) pixels[row].last = first + newest[row];
        }
        if constexpr (P.compaction) {
            const Kept of_batch = count_kept(blended_words);
            const unsigned own = __shfl_sync(FULL_WARP, of_batch.word, warp);
            const unsigned destination = kept + kept_through(of_batch, unsigned(thread)) - 1u;
            if (own >> lane & 1u) {
                unsigned entry = slot;
                if constexpr (P.cmask) entry |= contributor_mask(blended_words, warp, lane) << slot_bits(P.map);
                args.list[start + destination] = entry;
            }
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                const unsigned through = kept_through(of_batch, newest[row] ? newest[row] - 1u : 0u);
                if (newest[row]) pixels[row].last = kept + through;
            }
            kept += of_batch.total;
        }
        if (!some_go_on) break;
    }

    if constexpr (P.training)
        if (thread == 0) args.entry_counts[tile] = P.compaction ? kept : count;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const int px = tile_x + place.x, py = tile_y + place.y + row;
        if (px >= frame.width || py >= frame.height) continue;
        const size_t i = size_t(py) * size_t(frame.width) + size_t(px);
        const Pixel& pixel = pixels[row];
        const float left = fabsf(pixel.T);
        args.image[3 * i] = fmaf(left, frame.background[0], pixel.red);
        args.image[3 * i + 1] = fmaf(left, frame.background[1], pixel.green);
        args.image[3 * i + 2] = fmaf(left, frame.background[2], pixel.blue);
        args.transmittance[i] = left;
        if constexpr (P.wants_depth) args.depth[i] = pixel.depth / pixel.weight;
        if constexpr (P.training) args.last[i] = pixel.last;
    }
}
