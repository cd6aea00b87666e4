// Stages a splat for the blending kernels and computes its alpha at the pixels of a thread.
//
// Forward and backward pass must decide alike, to the bit, which pixels a splat reaches. Everything that decides it is
// therefore here once, with its toggles, and both passes include it. Also here: which thread owns which pixels, and
// which warps a splat may reach. Not here: the walk over a list, and primitives other than gs3d. Read staged_tilted.cuh
// next.
#pragma once
#include "frame.cuh"

// ---- Toggles of both passes -----------------------------------------------------------------------------------------

enum class Map : int {
    columns_8x4,  // 256 threads: eight warps of 8×4 pixels
    columns_8x8,  // 128 threads: four warps of 8×8 pixels, two rows a thread
    mixed,        // forward 8x4, backward 8x8; bits of warps mean the warps of the backward pass
    adaptive,     // forward 8x4 or 8x8: the host launches one of two kernels in each frame (cuda/plan/passes.py)
};
enum class Subtile : int {
    off,      // a warp visits every splat of the tile
    aabb,     // a warp visits splats whose bounding box meets its pixels
    ellipse,  // a warp visits splats whose ellipse meets its pixels, computed exactly
};
enum class Fetch : int {
    shared,   // all lanes read the present splat from shared memory
    shuffle,  // each lane holds one of 32 splats and hands it to the others by shuffles
};
enum class Exponential : int { expf, ex2 };
enum class AlphaCap : int {
    cap99,   // 0.99
    cap999,  // 0.999
    none,    // 1 − 2⁻²⁰, so that T stays above 0: the backward pass divides by it
};

__device__ constexpr Map forward_map(Map map) { return map == Map::mixed ? Map::columns_8x4 : map; }
__device__ constexpr Map backward_map(Map map) { return map == Map::mixed ? Map::columns_8x8 : map; }
// The map of one pass, as the two functions above return it.
__device__ constexpr int rows_of(Map map) { return map == Map::columns_8x8 ? 2 : 1; }
__device__ constexpr int warps_of(Map map) { return 8 / rows_of(map); }
__device__ constexpr int threads_of(Map map) { return 32 * warps_of(map); }
// A list entry is a slot. With cmask its top bits are one for each warp of the backward pass, which leaves room for
// 2^24 or 2^28 slots.
__device__ constexpr int slot_bits(Map map) { return 32 - warps_of(backward_map(map)); }

__device__ constexpr float cap_of(AlphaCap cap) {
    return cap == AlphaCap::cap99 ? ALPHA_CAP : cap == AlphaCap::cap999 ? 0.9990000128746033f : 0.99999904632568359375f;
}

// ---- Where a block and a thread work --------------------------------------------------------------------------------

// A part of a tile's list.
struct ListRange {
    int tile_x, tile_y;  // px, the tile's corner
    unsigned first;      // into the list
    unsigned count;
};
// Place of a thread's topmost pixel in its tile, px.
struct Place {
    int x, y;
};
template <Map MAP>  // of one pass
__device__ __forceinline__ Place place_in_tile() {
    const int lane = int(lane_index()), warp = int(warp_index());
    constexpr int ROWS = rows_of(MAP);
    return {(warp & 1) * 8 + (lane & 7), (warp >> 1) * 4 * ROWS + (lane >> 3) * ROWS};
}

// Returns the centre of a thread's topmost pixel, from the tile's corner, px.
struct Spot {
    float x, y;
};
__device__ __forceinline__ Spot spot_of(Place place) { return {float(place.x) + 0.5f, float(place.y) + 0.5f}; }

// ---- Staged splats and their alpha ----------------------------------------------------------------------------------
//
// With d = mean − pixel, u = a dx and v = b dx + c dy, log2 alpha = log2_opacity − u² − v². u belongs to a column of
// pixels, and v falls by c from row to row. Seen from the corner of the tile, u = u0 − a x and v = v0 − b x − c y.

struct Whitened {
    float a, b, c;  // 1/px
};
// Computes a, b and c from the conic in base 2. The subtraction is exact, so a needle loses no more precision than its
// conic has lost already.
__device__ __forceinline__ Whitened whitened(const Splat& s) {
    const float inverse_c = rsqrtf(-s.c), c = -s.c * inverse_c;
    const float determinant = difference_of_products(s.a, s.c, 0.25f * s.b, s.b);
    const float a_squared = fmaxf(quotient_approx(determinant, -s.c), 1e-30f);
    return {a_squared * rsqrtf(a_squared), -0.5f * s.b * inverse_c, c};
}

struct alignas(16) Staged {
    float a, u0, b, v0;
    float c, opacity;  // opacity; with log2_opacity its logarithm to base 2
    unsigned index;    // place in the tile's list
    unsigned slot;     // NO_SLOT for an empty splat, which gets no gradients
    float red, green, blue;
    float depth;  // camera z, if depth is wanted
};
static_assert(sizeof(Staged) == 48);
constexpr unsigned NO_SLOT = 0xffffffffu;

template <bool LOG2_OPACITY>
__device__ __forceinline__ Staged staged_splat(const Splat& s, const Whitened& w, int tile_x, int tile_y,
                                               unsigned index, unsigned slot) {
    const float x = s.x - float(tile_x), y = s.y - float(tile_y);
    Staged staged;
    staged.a = w.a, staged.b = w.b, staged.c = w.c;
    staged.u0 = __fmul_rn(w.a, x), staged.v0 = __fmaf_rn(w.b, x, __fmul_rn(w.c, y));
    staged.opacity = LOG2_OPACITY ? s.log2_opacity : exp2_approx(s.log2_opacity);
    staged.red = s.red, staged.green = s.green, staged.blue = s.blue;
    staged.depth = 0.0f, staged.index = index, staged.slot = slot;
    return staged;
}
// Returns an empty splat, which hits no pixel.
__device__ __forceinline__ Staged empty_splat() {
    return {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, -FLOAT_MAX, 0u, NO_SLOT, 0.0f, 0.0f, 0.0f, 0.0f};
}
// Returns the splat that lane `lane` holds.
__device__ __forceinline__ Staged handed_out(const Staged& own, int lane) {
    const auto number = [lane](float x) { return __shfl_sync(FULL_WARP, x, lane); };
    return {number(own.a), number(own.u0), number(own.b), number(own.v0), number(own.c), number(own.opacity),
            __shfl_sync(FULL_WARP, own.index, lane), __shfl_sync(FULL_WARP, own.slot, lane),
            number(own.red), number(own.green), number(own.blue), number(own.depth)};
}
// Loads the splat at an address in shared memory, 16 bytes at a time.
__device__ __forceinline__ Staged staged_at(unsigned address) {
    const auto x = load_shared<float4>(address), y = load_shared<float4>(address + 16),
               z = load_shared<float4>(address + 32);
    return {x.x, x.y, x.z, x.w, y.x, y.y, __float_as_uint(y.z), __float_as_uint(y.w), z.x, z.y, z.z, z.w};
}

// u, v and alpha of the pixels of one thread. Forward and backward pass compute them with the same policy and round
// alike, whether a thread has two rows or one.
template <int ROWS>
struct Evaluated {
    float u;
    float v[ROWS];
    float alpha[ROWS];  // opacity times falloff, not capped
};
template <Exponential EXP, bool LOG2_OPACITY, int ROWS>
__device__ __forceinline__ Evaluated<ROWS> evaluate(const Staged& s, const Spot& spot) {
    Evaluated<ROWS> e;
    e.u = __fmaf_rn(-s.a, spot.x, s.u0);
    const float column = LOG2_OPACITY ? __fmaf_rn(-e.u, e.u, s.opacity) : __fmul_rn(-e.u, e.u);
    const float above = __fmaf_rn(-s.b, spot.x, s.v0);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        e.v[row] = __fmaf_rn(-s.c, spot.y + float(row), above);
        const float power = __fmaf_rn(-e.v[row], e.v[row], column);
        const float falloff = EXP == Exponential::ex2 ? exp2_approx(power) : expf(__fmul_rn(LN_2, power));
        e.alpha[row] = LOG2_OPACITY ? falloff : __fmul_rn(s.opacity, falloff);
    }
    return e;
}

// ---- Which warps a splat may reach ----------------------------------------------------------------------------------

// The numbers that decide where a splat's alpha may reach 1/255, from the corner of the tile.
struct Reach {
    float x, y;           // mean
    float slope, steepness, half;
    float extreme, height;
    float slack;
};
template <Subtile SUBTILE>
__device__ __forceinline__ Reach reach_of(const Staged& s, float mean_x, float mean_y, float log2_opacity) {
    // The rounding errors of u and v are proportional to their parts. They must never hide a pixel that evaluate()
    // finds.
    const float parts = fabsf(s.u0) + fabsf(s.v0) + float(TILE) * (s.a + fabsf(s.b) + s.c);
    const float reach = fmaxf(log2_opacity - LOG2_ALPHA_MIN, 0.0f) * 1.0001f + 1e-5f + 2e-6f * parts;
    // At height dy from a pixel to the mean, the ellipse covers dx = −slope dy ± √(half − (steepness dy)²). It is
    // widest to the right at dy = extreme and to the left at −extreme, or as near to that as a row of warps gets.
    const float radius = root_approx(reach), across = fmaf(s.a, s.a, s.b * s.b);
    const float per_height = reciprocal_approx(s.a * s.c) * radius;
    Reach r;
    r.x = mean_x, r.y = mean_y;
    r.slack = 2e-3f + 2e-6f * (fabsf(mean_x) + fabsf(mean_y));  // px, covers the rounding of positions
    r.height = fmaf(root_approx(across), per_height, r.slack);
    if constexpr (SUBTILE == Subtile::aabb) {
        r.half = radius * reciprocal_approx(s.a);
        r.slope = r.steepness = r.extreme = 0.0f;
    } else {
        const float inverse = reciprocal_approx(across);
        r.slope = s.b * s.c * inverse, r.steepness = s.a * s.c * inverse, r.half = reach * inverse;
        r.extreme = -s.b * per_height;
    }
    return r;
}
// Computes how far the ellipse reaches, left and right, between two rows of pixel centres. `right` is below `left` if
// it does not reach them.
struct Span {
    float left, right;

    __device__ __forceinline__ bool meets(float low, float high) const { return (right >= low) & (left <= high); }
};
template <Subtile SUBTILE>
__device__ __forceinline__ Span span_of(const Reach& r, float top, float bottom) {
    const float first = fmaxf(r.y - bottom, -r.height), last = fminf(r.y - top, r.height);
    Span span{r.x - r.slack, r.x + r.slack};
    if constexpr (SUBTILE == Subtile::aabb) {
        span.left -= r.half, span.right += r.half;
    } else {
        const auto width_at = [&](float dy) {
            return root_approx(fmaxf(fmaf(-r.steepness * dy, r.steepness * dy, r.half), 0.0f));
        };
        const float at_right = clamped(r.extreme, first, last), at_left = clamped(-r.extreme, first, last);
        span.left = fmaf(r.slope, at_right, span.left) - width_at(at_right);
        span.right = fmaf(r.slope, at_left, span.right) + width_at(at_left);
    }
    if (first > last) span.right = -FLOAT_MAX;
    return span;
}

// Returns a bit for each warp with a pixel within reach.
template <Map MAP, Subtile SUBTILE>
__device__ __forceinline__ unsigned bits_of(const Reach& reach) {
    constexpr int COLUMNS = 2, ROWS = warps_of(MAP) / COLUMNS, HEIGHT = TILE / ROWS;
    unsigned bits = 0;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const float top = float(row * HEIGHT) + 0.5f;
        const Span span = span_of<SUBTILE>(reach, top, top + float(HEIGHT - 1));
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            const float low = float(column * 8) + 0.5f;
            bits |= span.meets(low, low + 7.0f) ? 1u << (row * COLUMNS + column) : 0u;
        }
    }
    return bits;
}
