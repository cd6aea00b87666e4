// Which tiles a splat is listed in: the one answer that counting (project.cuh) and listing (bin.cuh) both use.
//
// A splat is seen inside the ellipse alpha >= 1/255. With half width w and half height h of that ellipse and the
// correlation ρ = xy / sqrt(xx yy), it covers, at the height t h above or below the mean (-1 <= t <= 1),
//     x = w (ρ t ± sqrt(1 − ρ²) sqrt(1 − t²)),
// widest at t = ±ρ. A tile row, from its first to its last row of pixel centres, is met at the t nearest to those.
//
// Most splats have a row or two and a tile or two in each: their lane finds them alone, and they are passed on as bits
// of a Footprint, so that nobody need find them again. Of a larger one the Extent is passed on, and `visit_rows` gives
// each lane one tile row of one of the warp's splats, so that a splat of hundreds of rows costs its warp what it must
// and no lane waits for another. Everything is written with operations that the compiler may not contract: both callers
// see the same bits.
//
// Policy values of bounds: row_span, as above; aabb_o, the box w × h; circle3s, the square of half width
// ceil(3 sigma_max) whatever the opacity, which cuts tails (2023).
#pragma once
#include "scan.cuh"

enum class Bounds : int { row_span, aabb_o, circle3s };

// What the tiles of a splat follow from, 32 bytes: one memory sector.
struct alignas(16) Extent {
    float x, y;                 // mean, px
    float half_width;           // w, px
    float spread;               // w sqrt(1 − ρ²), px
    float correlation;          // ρ
    float inverse_half_height;  // 1/h, 1/px
    unsigned rows;              // tile rows: first | one past the last << 16
    unsigned columns;           // tile columns of all rows together, packed likewise
};
static_assert(sizeof(Extent) == 32);

// The tiles of a splat, 8 bytes: a bit each if they lie within 4 rows of 8.
constexpr unsigned FOOTPRINT_ROWS = 4, FOOTPRINT_COLUMNS = 8;
struct alignas(8) Footprint {
    unsigned corner;  // first row | first column << 16. Without bits: how many tiles, and an Extent says which
    unsigned bits;    // bit 8 r + c: row r and column c from the corner
};
__device__ __forceinline__ unsigned count_of(Footprint f) {
    return f.bits ? static_cast<unsigned>(__popc(f.bits)) : f.corner;
}

__device__ __forceinline__ Extent load_extent(const Extent* extents, unsigned slot) {
    const float4* halves = reinterpret_cast<const float4*>(extents + slot);
    const float4 p = halves[0], q = halves[1];
    return Extent{p.x, p.y, p.z, p.w, q.x, q.y, __float_as_uint(q.z), __float_as_uint(q.w)};
}
__device__ __forceinline__ void store_extent(Extent* extents, unsigned slot, const Extent& e) {
    float4* halves = reinterpret_cast<float4*>(extents + slot);
    halves[0] = make_float4(e.x, e.y, e.half_width, e.spread);
    halves[1] = make_float4(e.correlation, e.inverse_half_height, __uint_as_float(e.rows), __uint_as_float(e.columns));
}

// Ranges of tile rows and columns: both ends fit 16 bits.
__device__ __forceinline__ unsigned pack_range(int first, int end) {
    return end > first ? static_cast<unsigned>(first) | static_cast<unsigned>(end) << 16 : 0u;
}
__device__ __forceinline__ int first_of(unsigned range) { return static_cast<int>(range & 0xffffu); }
__device__ __forceinline__ unsigned length_of(unsigned range) { return (range >> 16) - (range & 0xffffu); }

// First and one past the last of `count` tiles that have a pixel centre in [low, high] px, packed.
__device__ __forceinline__ unsigned tile_range(float low, float high, int count) {
    constexpr float FIRST_CENTER = 0.5f, LAST_CENTER = TILE - 0.5f;
    const int first = __float2int_ru(__fmul_rn(__fsub_rn(low, LAST_CENTER), 1.0f / TILE));
    const int last = __float2int_rd(__fmul_rn(__fsub_rn(high, FIRST_CENTER), 1.0f / TILE));
    return pack_range(max(first, 0), min(last, count - 1) + 1);
}

// x of the ellipse's right (side 1) or left (−1) edge at height t, px from the mean.
__device__ __forceinline__ float row_edge(const Extent& e, float t, float side) {
    const float inside = fmaxf(__fmaf_rn(-t, t, 1.0f), 1e-30f);
    const float root = __fmul_rn(inside, rsqrtf(inside));
    return __fmaf_rn(__fmul_rn(e.half_width, e.correlation), t, __fmul_rn(__fmul_rn(side, e.spread), root));
}

// The columns of tile row `row` that the ellipse meets, packed.
__device__ __forceinline__ unsigned row_span(const Extent& e, int row, int tile_columns) {
    const float first = __fsub_rn(static_cast<float>(row * TILE) + 0.5f, e.y);
    const float top = clamped(__fmul_rn(first, e.inverse_half_height), -1.0f, 1.0f);
    const float bottom = clamped(__fmul_rn(__fadd_rn(first, TILE - 1.0f), e.inverse_half_height), -1.0f, 1.0f);
    const float left = row_edge(e, clamped(-e.correlation, top, bottom), -1.0f);
    const float right = row_edge(e, clamped(e.correlation, top, bottom), 1.0f);
    return tile_range(__fadd_rn(e.x, left), __fadd_rn(e.x, right), tile_columns);
}

// How many lanes' sums `ends` (inclusive, so nondecreasing from lane to lane) are at most `place`; at most 31.
__device__ __forceinline__ unsigned lanes_before(unsigned ends, unsigned place) {
    unsigned lanes = 0;
#pragma unroll
    for (unsigned step = 16; step; step /= 2)
        if (__shfl_sync(FULL_WARP, ends, static_cast<int>(lanes + step - 1)) <= place) lanes += step;
    return lanes;
}

// Calls visit(base, owner, row, columns) with the whole warp until every tile row of the splats of all lanes had its
// turn, splat after splat, row after row. In each call the lane has row number base + lane of all; `owner` is the
// lane whose splat it belongs to. Lanes beyond the last row have no columns.
template <Bounds B, class Visit>
__device__ __forceinline__ void visit_rows(const Extent& mine, unsigned rows_end, unsigned row_count, int tile_columns,
                                           Visit visit) {
    const unsigned total = __shfl_sync(FULL_WARP, rows_end, 31);
    const int to_row = first_of(mine.rows) - static_cast<int>(rows_end - row_count);
    for (unsigned base = 0; base < total; base += 32) {
        const unsigned place = base + lane_index(), owner = lanes_before(rows_end, place);
        const auto of_owner = [owner](auto value) { return __shfl_sync(FULL_WARP, value, static_cast<int>(owner)); };
        const int row = of_owner(to_row) + static_cast<int>(place);
        unsigned columns;
        if constexpr (B == Bounds::row_span) {
            const Extent its{of_owner(mine.x),
                             of_owner(mine.y),
                             of_owner(mine.half_width),
                             of_owner(mine.spread),
                             of_owner(mine.correlation),
                             of_owner(mine.inverse_half_height),
                             0u,
                             0u};
            columns = row_span(its, row, tile_columns);
        } else {
            columns = of_owner(mine.columns);
        }
        visit(base, owner, row, place < total ? columns : 0u);
    }
}

// The tiles of each lane's splat; the whole warp calls. A lane without a splat has empty `rows`.
template <Bounds B>
__device__ __forceinline__ Footprint find_tiles(const Extent& mine, int tile_columns) {
    const unsigned row_count = length_of(mine.rows);
    bool is_small = row_count <= FOOTPRINT_ROWS && length_of(mine.columns) <= FOOTPRINT_COLUMNS;
    unsigned bits = 0;
    for (unsigned k = 0; is_small && k < row_count; k++) {
        const int row = first_of(mine.rows) + static_cast<int>(k);
        const unsigned columns = B == Bounds::row_span ? row_span(mine, row, tile_columns) : mine.columns;
        const unsigned length = length_of(columns);
        if (length == 0) continue;
        // What is rounded row by row may lie a tile outside of what is rounded for all rows.
        const unsigned begin = static_cast<unsigned>(first_of(columns) - first_of(mine.columns));
        is_small = begin < FOOTPRINT_COLUMNS && length <= FOOTPRINT_COLUMNS - begin;
        if (is_small) bits |= ((1u << length) - 1) << (FOOTPRINT_COLUMNS * k + begin);
    }
    const unsigned corner = static_cast<unsigned>(first_of(mine.rows) | first_of(mine.columns) << 16);
    const Footprint small{bits ? corner : 0, bits};
    if (!__any_sync(FULL_WARP, !is_small)) return small;
    if constexpr (B != Bounds::row_span) return is_small ? small : Footprint{row_count * length_of(mine.columns), 0};
    const unsigned large_rows = is_small ? 0 : row_count;
    const unsigned rows_end = inclusive_warp_sum(large_rows), rows_begin = rows_end - large_rows;
    unsigned tiles = 0;
    visit_rows<B>(mine, rows_end, large_rows, tile_columns, [&](unsigned base, unsigned, int, unsigned columns) {
        const unsigned sum = inclusive_warp_sum(length_of(columns));
        const unsigned begin = max(rows_begin, base), end = min(rows_end, base + 32);  // of this splat, in this call
        const unsigned before = __shfl_sync(FULL_WARP, sum, static_cast<int>((begin - base - 1) & 31u));
        const unsigned through = __shfl_sync(FULL_WARP, sum, static_cast<int>((end - base - 1) & 31u));
        if (end > begin) tiles += begin > base ? through - before : through;
    });
    return is_small ? small : Footprint{tiles, 0};
}
