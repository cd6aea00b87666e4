// Evaluates real spherical harmonics of degree 0 to 3, four rows at a time; both passes use it.
//
// A splat's harmonics are 16 basis functions × RGB = 48 numbers. They are read in four groups of 4 × 3 = 12 numbers,
// three wide loads each, so that neither pass holds more than one group in registers. Groups straddle degrees: degree 0
// uses only the first row of group 0, degree 2 only the first row of group 2 (`rows_in_use`).
//
// Policy values of `sh_load`:
// - scalar: each thread loads its row number by number;
// - float4: each thread loads 16 bytes at a time (8 bytes with bf16);
// - staged: a warp copies the rows of its lanes to shared memory together, 16 bytes a lane and step, so that
//   neighbouring lanes read neighbouring bytes. The caller provides the shared memory. Gaps between the rows put the
//   same part of 8 rows into 8 different banks of 16 bytes.
//
// Policy values of `sh_dtype`:
// - f32: a row is 48 floats;
// - bf16: a row is 48 halfwords, the upper halves of floats;
// - split: kernels read a row as with bf16. The lower halves are in another array, which only the optimiser reads.
#pragma once
#include "math.cuh"

constexpr float SH_C0 = 0.28209479177387814f;
constexpr float SH_C1 = 0.4886025119029199f;
constexpr float SH_C2_0 = 1.0925484305920792f, SH_C2_1 = -1.0925484305920792f, SH_C2_2 = 0.31539156525252005f,
                SH_C2_3 = -1.0925484305920792f, SH_C2_4 = 0.5462742152960396f;
constexpr float SH_C3_0 = -0.5900435899266435f, SH_C3_1 = 2.890611442640554f, SH_C3_2 = -0.4570457994644658f,
                SH_C3_3 = 0.3731763325901154f, SH_C3_4 = -0.4570457994644658f, SH_C3_5 = 1.445305721320277f,
                SH_C3_6 = -0.5900435899266435f;

constexpr int SH_GROUPS = 4, SH_ROW = 48;  // numbers of a splat

enum class ShLoad : int { scalar, float4, staged };
enum class ShDtype : int { f32, bf16, split };
template <ShDtype D>
constexpr bool IS_NARROW = D != ShDtype::f32;

// Rows 4 G … 4 G + 3 of one splat.
struct ShGroup {
    float3 row[4];
};

// How many rows of group G count at `degree`: 0, 1 or 4.
template <int G>
__device__ __forceinline__ int rows_in_use(int degree) {
    if constexpr (G == 0) return degree >= 1 ? 4 : 1;
    if constexpr (G == 1) return degree >= 2 ? 4 : 0;
    if constexpr (G == 2) return degree >= 3 ? 4 : degree == 2 ? 1 : 0;
    return degree >= 3 ? 4 : 0;
}

// The four basis functions of group G at a unit vector.
template <int G>
__device__ __forceinline__ float4 sh_basis(float3 d) {
    const float x = d.x, y = d.y, z = d.z;
    const float xx = x * x, yy = y * y, zz = z * z;
    if constexpr (G == 0) return make_float4(SH_C0, -SH_C1 * y, SH_C1 * z, -SH_C1 * x);
    if constexpr (G == 1)
        return make_float4(SH_C2_0 * x * y, SH_C2_1 * y * z, SH_C2_2 * (2.0f * zz - xx - yy), SH_C2_3 * x * z);
    if constexpr (G == 2)
        return make_float4(SH_C2_4 * (xx - yy), SH_C3_0 * y * (3.0f * xx - yy), SH_C3_1 * x * y * z,
                           SH_C3_2 * y * (4.0f * zz - xx - yy));
    return make_float4(SH_C3_3 * z * (2.0f * zz - 3.0f * (xx + yy)), SH_C3_4 * x * (4.0f * zz - xx - yy),
                       SH_C3_5 * z * (xx - yy), SH_C3_6 * x * (xx - 3.0f * yy));
}

// Returns Σ s_k ∇Y_k over the four functions of group G: the derivatives of the polynomials above by x, y and z as if
// they were independent. The caller applies the derivative of the normalisation.
template <int G>
__device__ __forceinline__ float3 sh_derivative(float3 d, float4 s) {
    const float x = d.x, y = d.y, z = d.z;
    const float xx = x * x, yy = y * y, zz = z * z;
    if constexpr (G == 0) return make_float3(-SH_C1 * s.w, -SH_C1 * s.y, SH_C1 * s.z);
    if constexpr (G == 1) {
        const float a = SH_C2_0 * s.x, b = SH_C2_1 * s.y, c = 2.0f * SH_C2_2 * s.z, e = SH_C2_3 * s.w;
        return make_float3(a * y - c * x + e * z, a * x + b * z - c * y, b * y + 2.0f * c * z + e * x);
    }
    if constexpr (G == 2) {
        const float a = 2.0f * SH_C2_4 * s.x, b = 3.0f * SH_C3_0 * s.y, c = SH_C3_1 * s.z, e = SH_C3_2 * s.w;
        return make_float3(a * x + 2.0f * b * x * y + c * y * z - 2.0f * e * x * y,
                           -a * y + b * (xx - yy) + c * x * z + e * (4.0f * zz - xx - 3.0f * yy),
                           c * x * y + 8.0f * e * y * z);
    }
    const float a = 3.0f * SH_C3_3 * s.x, b = SH_C3_4 * s.y, c = SH_C3_5 * s.z, e = 3.0f * SH_C3_6 * s.w;
    return make_float3(-2.0f * a * x * z + b * (4.0f * zz - 3.0f * xx - yy) + 2.0f * c * x * z + e * (xx - yy),
                       -2.0f * a * y * z - 2.0f * b * x * y - 2.0f * c * y * z - 2.0f * e * x * y,
                       a * (2.0f * zz - xx - yy) + 8.0f * b * x * z + c * (xx - yy));
}

__device__ __forceinline__ float low_bf16(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

// ---- Where a row lies -----------------------------------------------------------------------------------------------

template <ShDtype D>
constexpr unsigned SH_PARTS = IS_NARROW<D> ? 6 : 12;  // parts of 16 bytes in a row
template <ShDtype D>
constexpr unsigned STAGED_PARTS = SH_PARTS<D> + 1;  // parts of a row in shared memory: one more, as a gap
// Where a row begins in shared memory with as few gaps between rows as avoid bank conflicts.
template <ShDtype D>
__device__ __forceinline__ constexpr unsigned packed_row(unsigned row) {
    return row * SH_PARTS<D> + (IS_NARROW<D> ? row / 4 : row / 2);
}

// How many parts of a row hold the numbers in use at `degree`.
template <ShDtype D>
__device__ __forceinline__ unsigned sh_parts_in_use(int degree) {
    constexpr unsigned NUMBERS = SH_ROW / SH_PARTS<D>;
    return (3u * unsigned((degree + 1) * (degree + 1)) + NUMBERS - 1) / NUMBERS;
}

template <ShDtype D>
__device__ __forceinline__ const void* sh_row(const void* sh, size_t splat) {
    return static_cast<const uint4*>(sh) + splat * SH_PARTS<D>;
}

// Calls f(step, row, column) for each part of ROWS rows of PARTS parts. In each step a lane has part 32 step + lane.
// Rows and columns repeat after 3 steps (96 parts), which saves divisions.
template <unsigned ROWS, unsigned PARTS, class F>
__device__ __forceinline__ void for_each_part(F f) {
    static_assert(96 % PARTS == 0 && ROWS * PARTS % 32 == 0);
#pragma unroll
    for (unsigned step = 0; step < ROWS * PARTS / 32; step++) {
        const unsigned within = step % 3 * 32 + lane_index(), row = within / PARTS;
        f(step, step / 3 * (96 / PARTS) + row, within - row * PARTS);
    }
}

// ---- Reading --------------------------------------------------------------------------------------------------------

// Four consecutive numbers of a row: 4 i … 4 i + 3.
template <ShDtype D, ShLoad L>
__device__ __forceinline__ float4 load_sh_quad(const void* sh_row, int i) {
    if constexpr (IS_NARROW<D>) {
        const unsigned short* row = static_cast<const unsigned short*>(sh_row);
        if constexpr (L != ShLoad::scalar) {
            const uint2 bits = reinterpret_cast<const uint2*>(row)[i];
            return make_float4(low_bf16(bits.x), high_bf16(bits.x), low_bf16(bits.y), high_bf16(bits.y));
        }
        return make_float4(low_bf16(row[4 * i]), low_bf16(row[4 * i + 1]), low_bf16(row[4 * i + 2]),
                           low_bf16(row[4 * i + 3]));
    }
    const float* row = static_cast<const float*>(sh_row);
    if constexpr (L != ShLoad::scalar) return reinterpret_cast<const ::float4*>(row)[i];
    return make_float4(row[4 * i], row[4 * i + 1], row[4 * i + 2], row[4 * i + 3]);
}

template <int G, ShDtype D, ShLoad L>
__device__ __forceinline__ ShGroup load_sh_group(const void* sh_row) {
    const ::float4 a = load_sh_quad<D, L>(sh_row, 3 * G), b = load_sh_quad<D, L>(sh_row, 3 * G + 1),
                   c = load_sh_quad<D, L>(sh_row, 3 * G + 2);
    return {{make_float3(a.x, a.y, a.z), make_float3(a.w, b.x, b.y), make_float3(b.z, b.w, c.x),
             make_float3(c.y, c.z, c.w)}};
}

// Adds group G to a colour; rows beyond the degree are not even read.
template <int G, ShDtype D, ShLoad L>
__device__ __forceinline__ void add_sh_group(float3& color, const void* sh_row, float3 direction, int degree) {
    const int rows = rows_in_use<G>(degree);
    if (rows == 0) return;
    const ::float4 basis = sh_basis<G>(direction);
    if (rows == 1) {
        const ::float4 first = load_sh_quad<D, L>(sh_row, 3 * G);
        color = add_scaled(color, basis.x, make_float3(first.x, first.y, first.z));
        return;
    }
    const ShGroup group = load_sh_group<G, D, L>(sh_row);
    color = add_scaled(color, basis.x, group.row[0]);
    color = add_scaled(color, basis.y, group.row[1]);
    color = add_scaled(color, basis.z, group.row[2]);
    color = add_scaled(color, basis.w, group.row[3]);
}

// Returns the colour in a direction: 0.5 + the harmonics. It may be negative.
template <ShDtype D, ShLoad L>
__device__ __forceinline__ float3 evaluate_sh(const void* sh_row, float3 direction, int degree) {
    float3 color = make_float3(0.5f, 0.5f, 0.5f);
    add_sh_group<0, D, L>(color, sh_row, direction, degree);
    add_sh_group<1, D, L>(color, sh_row, direction, degree);
    add_sh_group<2, D, L>(color, sh_row, direction, degree);
    add_sh_group<3, D, L>(color, sh_row, direction, degree);
    return color;
}
