// Finds the tiles in which a splat is listed, once for counting (project.cuh) and for listing (bin.cuh).
//
// A splat is visible inside the ellipse alpha >= 1/255. With its half width w and half height h and the correlation
// ρ = xy / sqrt(xx yy), the ellipse covers, at the height t h above or below the mean (-1 <= t <= 1),
//     x = w (ρ t ± sqrt(1 − ρ²) sqrt(1 − t²)).
// It is widest at t = ±ρ. Within a tile row, which spans the heights of its pixel centres, it is widest at the t
// nearest to ±ρ.
//
// - Small splats: most splats meet one or two rows of one or two tiles. Their lane finds the tiles alone, and they are
//   passed on as bits of a Footprint, so that no later kernel computes them again.
// - Large splats: their Extent is passed on. `visit_rows` gives each lane one tile row of one of the warp's splats. A
//   splat of hundreds of rows then keeps all lanes busy.
//
// Both callers must get the same bits, so everything is written with operations that the compiler may not contract.
//
// Policy values of `bounds`:
// - row_span: as above;
// - aabb_o: the box w × h;
// - circle3s: the square of half width ceil(3 sigma_max) whatever the opacity, which cuts off tails (2023).
#pragma once
#include "scan.cuh"

enum class Bounds : int { row_span, aabb_o, circle3s };

// The numbers that determine a splat's tiles, in 32 bytes: one memory sector.
struct alignas(16) Extent {
    float x, y;                 // mean, px
    float half_width;           // w, px
    float spread;               // w sqrt(1 − ρ²), px
    float correlation;          // ρ
    float inverse_half_height;  // 1/h, 1/px
    unsigned rows;              // tile rows: first | one past the last << 16
    unsigned columns;           // tile columns of all rows together: first | one past the last << 16
};
static_assert(sizeof(Extent) == 32);

// The tiles of a splat in 8 bytes: a bit for each tile if all lie within 4 rows of 8 tiles.
constexpr unsigned FOOTPRINT_ROWS = 4, FOOTPRINT_COLUMNS = 8;
struct alignas(8) Footprint {
    unsigned corner;  // first row | first column << 16. If `bits` is 0: the number of tiles, which the Extent gives
    unsigned bits;    // bit 8 r + c: the tile in row r and column c from the corner
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

// Returns the range of tiles, of `count` in all, that have a pixel centre in [low, high] px.
__device__ __forceinline__ unsigned tile_range(float low, float high, int count) {
    constexpr float FIRST_CENTER = 0.5f, LAST_CENTER = TILE - 0.5f;
    const int first = __float2int_ru(__fmul_rn(__fsub_rn(low, LAST_CENTER), 1.0f / TILE));
    const int last = __float2int_rd(__fmul_rn(__fsub_rn(high, FIRST_CENTER), 1.0f / TILE));
    return pack_range(max(first, 0), min(last, count - 1) + 1);
}

// Returns x of the ellipse's right (side 1) or left (side −1) edge at height t, in px from the mean.
__device__ __forceinline__ float row_edge(const Extent& e, float t, float side) {
    const float inside = fmaxf(__fmaf_rn(-t, t, 1.0f), 1e-30f);
    const float root = __fmul_rn(inside, rsqrtf(inside));
    return __fmaf_rn(__fmul_rn(e.half_width, e.correlation), t, __fmul_rn(__fmul_rn(side, e.spread), root));
}

// Returns the range of columns of tile row `row` that the ellipse meets.
__device__ __forceinline__ unsigned row_span(const Extent& e, int row, int tile_columns) {
    const float first = __fsub_rn(static_cast<float>(row * TILE) + 0.5f, e.y);
    const float top = clamped(__fmul_rn(first, e.inverse_half_height), -1.0f, 1.0f);
    const float bottom = clamped(__fmul_rn(__fadd_rn(first, TILE - 1.0f), e.inverse_half_height), -1.0f, 1.0f);
    const float left = row_edge(e, clamped(-e.correlation, top, bottom), -1.0f);
    const float right = row_edge(e, clamped(e.correlation, top, bottom), 1.0f);
    return tile_range(__fadd_rn(e.x, left), __fadd_rn(e.x, right), tile_columns);
}

// Returns how many lanes have `ends` <= `place`, at most 31. `ends` are inclusive sums, so they never decrease from
// lane to lane.
__device__ __forceinline__ unsigned lanes_before(unsigned ends, unsigned place) {
    unsigned lanes = 0;
#pragma unroll
    for (unsigned step = 16; step; step /= 2)
        if (__shfl_sync(FULL_WARP, ends, static_cast<int>(lanes + step - 1)) <= place) lanes += step;
    return lanes;
}

// Calls visit(base, owner, row, columns) with the whole warp, until it has visited every tile row of all lanes' splats,
// splat after splat and row after row. In each call the lane has row number base + lane of all rows; `owner` is the
// lane whose splat the row belongs to. Lanes beyond the last row have no columns.
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

// Returns the tiles of each lane's splat. The whole warp calls; a lane without a splat has empty `rows`.
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
        // Rounding may put a row's columns one tile outside the columns of all rows together.
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
