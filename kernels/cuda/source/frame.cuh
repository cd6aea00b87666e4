// The record of a frame, which every kernel reads, and the record of a splat, which passes from stage to stage.
//
// A captured graph fixes the arguments of its launches. Whatever changes from frame to frame is therefore in `Frame`,
// one block of device memory that the host overwrites before each frame. The same copy sets the counters to 0. Not
// here: buffers. The Args struct of each kernel points at them. Read project.cuh next.
#pragma once
#include "math.cuh"

// Bits of Frame::overflow. A frame with any bit set is not drawn, and its counters are 0. The host enlarges the buffer
// that was too small, by the `wanted` counters, and draws the frame again.
constexpr unsigned OVERFLOW_VISIBLE = 1, OVERFLOW_INSTANCES = 2;

// Counters by which the blocks of a launch take their parts of the work. Each launch uses a counter of its own.
constexpr unsigned TICKETS = 16;

struct alignas(16) Frame {
    // Camera: OpenCV axes, pixel centres at +0.5. mean_in_view = rotation (mean − position − position_rest).
    float rotation[9];       // view_from_world, row by row
    float position[3];       // camera centre, world units
    float position_rest[3];  // camera centre minus `position`: the part that single precision lost
    float near_z;            // world units; nearer splats are dropped
    float fx, fy, cx, cy;    // px
    float held_left, held_right, held_top, held_bottom;  // limits of x/z and y/z inside the Jacobian
    int width, height;            // px
    int tile_columns, tile_rows;  // of TILE px
    // Settings.
    float background[3];
    int sh_degree;  // 0 … 3, at most the scene's
    // Size of the scene, and capacity of the buffers.
    unsigned gaussians;          // N
    unsigned visible_capacity;   // slots
    unsigned instance_capacity;  // (splat, tile) pairs
    // Counters: 0 when the frame starts.
    unsigned slots;                       // slots in use, by splats that may be seen. Written by project
    unsigned visible;                     // V: slots whose splat is in a tile. Written by project
    unsigned instances;                   // I: pairs in use. Written by emit
    unsigned visible_wanted;              // slots the frame needs, even if they did not fit
    unsigned skipped;                     // splats dropped for a value that is not finite, or a rotation of zeros
    unsigned heaviest;                    // pairs of the heaviest tile. Written by plan; 0 if no plan is made
    unsigned long long instances_wanted;  // pairs the frame needs, even if they did not fit
    unsigned overflow;
    // 1 … EPOCHS − 1 (scan.cuh), different in each frame. Words that blocks pass each other carry the epoch, so words
    // of earlier frames count as empty and nobody has to clear them.
    unsigned epoch;
    unsigned tickets[TICKETS];
};

constexpr unsigned NO_GAUSSIAN = 0xffffffffu;

// One visible splat, 48 bytes, read as three float4.
//
// With d = mean − pixel: log2 alpha = log2_opacity + a dx² + b dx dy + c dy², so
// (a, b, c) = log2(e) (−A/2, −B, −C/2) of the conic (A, B, C), the inverse of the dilated covariance. For primitives
// other than gs3d, which may be much thinner, (a, b, c) are those of `Whitened` (staged.cuh), in 1/px.
struct alignas(16) Splat {
    float x, y;          // mean, px
    float a, b;          // 1/px²
    float c;             // 1/px²
    float log2_opacity;  // at most 0
    float red, green;    // ≥ 0
    float blue;
    float tilt_x;        // 1/px: how Q changes with the pixel (primitive.cuh)
    float tilt_y;        // 1/px
    unsigned gaussian;   // row in the scene; NO_GAUSSIAN if the splat turned out to be in no tile
};
static_assert(sizeof(Splat) == 48);

// How splats lie in memory.
enum class Layout : int {
    packed48,  // one splat after the other, 48 bytes each
    soa,       // an array for each of the 12 numbers, each as long as the capacity
};
template <Layout LAYOUT>
__device__ __forceinline__ Splat load_splat(const Splat* splats, unsigned capacity, unsigned slot) {
    if constexpr (LAYOUT == Layout::packed48) {
        const float4* rows = reinterpret_cast<const float4*>(splats + slot);
        const float4 p = rows[0], q = rows[1], r = rows[2];
        return Splat{p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w, r.x, r.y, r.z, __float_as_uint(r.w)};
    } else {
        const float* at = reinterpret_cast<const float*>(splats) + slot;
        const size_t n = capacity;
        return Splat{at[0],     at[n],     at[2 * n], at[3 * n], at[4 * n],  at[5 * n],
                     at[6 * n], at[7 * n], at[8 * n], at[9 * n], at[10 * n], __float_as_uint(at[11 * n])};
    }
}
template <Layout LAYOUT>
__device__ __forceinline__ void store_splat(Splat* splats, unsigned capacity, unsigned slot, const Splat& s) {
    if constexpr (LAYOUT == Layout::packed48) {
        float4* rows = reinterpret_cast<float4*>(splats + slot);
        rows[0] = make_float4(s.x, s.y, s.a, s.b);
        rows[1] = make_float4(s.c, s.log2_opacity, s.red, s.green);
        rows[2] = make_float4(s.blue, s.tilt_x, s.tilt_y, __uint_as_float(s.gaussian));
    } else {
        const float numbers[12] = {s.x,   s.y,     s.a,    s.b,          s.c,           s.log2_opacity,
                                   s.red, s.green, s.blue, s.tilt_x, s.tilt_y, __uint_as_float(s.gaussian)};
        float* at = reinterpret_cast<float*>(splats) + slot;
#pragma unroll
        for (int k = 0; k < 12; k++) at[size_t(k) * capacity] = numbers[k];
    }
}
