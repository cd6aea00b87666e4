// CUDA's own names on the CPU: keywords, vector types, thread indices, warp and block collectives, atomics, bit and
// float intrinsics, and the functions that kernels/cuda/source/warp.cuh defines for a GPU only.
//
// Not here on purpose: `__activemask` (its value is nobody's promise), cooperative groups, textures, half types.
// A missing intrinsic is one line: add it here when a kernel first needs it.
#pragma once

#include <math.h>
#include <stdint.h>
#include <time.h>

#include <limits>

#include "cuda_on_cpu.h"

// ---- Keywords ---------------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ thread_local  // a block's own: see cuda_on_cpu.h
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx (::cuda_on_cpu::running->thread)
#define blockIdx (::cuda_on_cpu::running->block->index)
#define blockDim (::cuda_on_cpu::block_dim())
#define gridDim (::cuda_on_cpu::grid_dim())
constexpr int warpSize = 32;

namespace cuda_on_cpu {
inline uint3 block_dim() { return {launch.block[0], launch.block[1], launch.block[2]}; }
inline uint3 grid_dim() { return {launch.grid[0], launch.grid[1], launch.grid[2]}; }
template <class T>
uint64_t bits_of(T value) {
    static_assert(sizeof(T) <= 8);
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}
template <class T>
T from_bits(uint64_t bits) {
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
}  // namespace cuda_on_cpu

// ---- Vector types -----------------------------------------------------------------------------------------------

#define CUDA_ON_CPU_VECTORS(T, name, align2, align4)                                                              \
    struct alignas(align2) name##2 { T x, y; };                                                                   \
    struct alignas(align4) name##4 { T x, y, z, w; };                                                             \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                    \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                            \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
struct float3 { float x, y, z; };
struct int3 { int x, y, z; };
struct uchar3 { unsigned char x, y, z; };
struct ushort3 { unsigned short x, y, z; };
CUDA_ON_CPU_VECTORS(float, float, 8, 16)
CUDA_ON_CPU_VECTORS(int, int, 8, 16)
CUDA_ON_CPU_VECTORS(unsigned, uint, 8, 16)
CUDA_ON_CPU_VECTORS(unsigned char, uchar, 2, 4)
CUDA_ON_CPU_VECTORS(unsigned short, ushort, 4, 8)
struct alignas(16) ulonglong2 { unsigned long long x, y; };
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

// ---- Warp and block collectives ---------------------------------------------------------------------------------

#define WHERE ::cuda_on_cpu::Where where = ::cuda_on_cpu::Where::current()

namespace cuda_on_cpu {

template <class F>
void each_lane(unsigned mask, F f) {
    for (unsigned rest = mask; rest; rest &= rest - 1) f(unsigned(std::countr_zero(rest)));
}
inline void resolve_shuffle(Fiber* lanes, unsigned mask) {
    each_lane(mask, [&](unsigned lane) {
        const unsigned source = lanes[lane].source;
        if (!(mask >> source & 1))
            fail(lanes[lane].where, "%s: lane %u reads lane %u, which the mask %08x does not name",
                 lanes[lane].kind->name, lane, source, mask);
        lanes[lane].result = lanes[source].value;
    });
}
inline void resolve_nothing(Fiber*, unsigned) {}
inline void resolve_ballot(Fiber* lanes, unsigned mask) {
    uint64_t votes = 0;
    each_lane(mask, [&](unsigned lane) { votes |= uint64_t(lanes[lane].value != 0) << lane; });
    each_lane(mask, [&](unsigned lane) { lanes[lane].result = votes; });
}
inline void resolve_match(Fiber* lanes, unsigned mask) {
    each_lane(mask, [&](unsigned lane) {
        lanes[lane].result = 0;
        each_lane(mask, [&](unsigned other) {
            lanes[lane].result |= uint64_t(lanes[lane].value == lanes[other].value) << other;
        });
    });
}
template <class T, class Combine>
void resolve_reduce(Fiber* lanes, unsigned mask) {
    T total = from_bits<T>(lanes[std::countr_zero(mask)].value);
    each_lane(mask & (mask - 1), [&](unsigned lane) { total = Combine{}(total, from_bits<T>(lanes[lane].value)); });
    each_lane(mask, [&](unsigned lane) { lanes[lane].result = bits_of(total); });
}
inline constexpr Collective SHUFFLE{"__shfl_sync", resolve_shuffle}, SHUFFLE_XOR{"__shfl_xor_sync", resolve_shuffle},
    SHUFFLE_UP{"__shfl_up_sync", resolve_shuffle}, SHUFFLE_DOWN{"__shfl_down_sync", resolve_shuffle},
    SYNC_WARP{"__syncwarp", resolve_nothing}, BALLOT{"__ballot_sync", resolve_ballot},
    ANY{"__any_sync", resolve_ballot}, ALL{"__all_sync", resolve_ballot}, MATCH{"__match_any_sync", resolve_match},
    SYNC{"__syncthreads", nullptr}, SYNC_COUNT{"__syncthreads_count", nullptr}, SYNC_OR{"__syncthreads_or", nullptr},
    SYNC_AND{"__syncthreads_and", nullptr};

// The running lane reads lane `source` of its group of `width` lanes, or itself where that leaves the group.
template <class T>
T shuffle(const Collective& kind, unsigned mask, T value, int source, int width, const Where& where) {
    const int lane = int(running->lane), first = lane & ~(width - 1);
    const bool is_inside = source >= first && source < first + width;
    return from_bits<T>(meet(kind, mask, bits_of(value), unsigned(is_inside ? source : lane), where));
}

}  // namespace cuda_on_cpu

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, WHERE) {
    using namespace cuda_on_cpu;
    const int in_group = (int(running->lane) & ~(width - 1)) + (source & (width - 1));
    return shuffle(SHUFFLE, mask, value, in_group, width, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, WHERE) {
    using namespace cuda_on_cpu;
    return shuffle(SHUFFLE_XOR, mask, value, int(running->lane) ^ bits, width, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, WHERE) {
    using namespace cuda_on_cpu;
    return shuffle(SHUFFLE_UP, mask, value, int(running->lane) - int(delta), width, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, WHERE) {
    using namespace cuda_on_cpu;
    return shuffle(SHUFFLE_DOWN, mask, value, int(running->lane) + int(delta), width, where);
}
inline void __syncwarp(unsigned mask = ~0u, WHERE) { cuda_on_cpu::meet(cuda_on_cpu::SYNC_WARP, mask, 0, 0, where); }
inline unsigned __ballot_sync(unsigned mask, int predicate, WHERE) {
    return unsigned(cuda_on_cpu::meet(cuda_on_cpu::BALLOT, mask, predicate != 0, 0, where));
}
inline int __any_sync(unsigned mask, int predicate, WHERE) {
    return cuda_on_cpu::meet(cuda_on_cpu::ANY, mask, predicate != 0, 0, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, WHERE) {
    return cuda_on_cpu::meet(cuda_on_cpu::ALL, mask, predicate != 0, 0, where) == mask;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, WHERE) {
    return unsigned(cuda_on_cpu::meet(cuda_on_cpu::MATCH, mask, cuda_on_cpu::bits_of(value), 0, where));
}
#define CUDA_ON_CPU_REDUCE(T, name, ...)                                                                      \
    inline T name(unsigned mask, T value, WHERE) {                                                            \
        using namespace cuda_on_cpu;                                                                          \
        using Combine = decltype([](T a, T b) -> T { return __VA_ARGS__; });                                  \
        static constexpr Collective kind{#name, resolve_reduce<T, Combine>};                                  \
        return from_bits<T>(meet(kind, mask, bits_of(value), 0, where));                                      \
    }
CUDA_ON_CPU_REDUCE(unsigned, __reduce_add_sync, a + b)
CUDA_ON_CPU_REDUCE(unsigned, __reduce_min_sync, a < b ? a : b)
CUDA_ON_CPU_REDUCE(unsigned, __reduce_max_sync, a < b ? b : a)
CUDA_ON_CPU_REDUCE(int, __reduce_add_sync, int(unsigned(a) + unsigned(b)))
CUDA_ON_CPU_REDUCE(int, __reduce_min_sync, a < b ? a : b)
CUDA_ON_CPU_REDUCE(int, __reduce_max_sync, a < b ? b : a)
CUDA_ON_CPU_REDUCE(unsigned, __reduce_and_sync, a & b)
CUDA_ON_CPU_REDUCE(unsigned, __reduce_or_sync, a | b)
CUDA_ON_CPU_REDUCE(unsigned, __reduce_xor_sync, a ^ b)

inline void __syncthreads(WHERE) { cuda_on_cpu::meet_block(cuda_on_cpu::SYNC, false, where); }
inline int __syncthreads_count(int predicate, WHERE) {
    return int(cuda_on_cpu::meet_block(cuda_on_cpu::SYNC_COUNT, predicate != 0, where));
}
inline int __syncthreads_or(int predicate, WHERE) {
    return cuda_on_cpu::meet_block(cuda_on_cpu::SYNC_OR, predicate != 0, where) != 0;
}
inline int __syncthreads_and(int predicate, WHERE) {
    return cuda_on_cpu::meet_block(cuda_on_cpu::SYNC_AND, predicate != 0, where) == cuda_on_cpu::block_threads;
}

// ---- Memory: atomics, fences, polls. Others may run before and after each. -----------------------------------------

namespace cuda_on_cpu {
template <class T, class F>
T update(T* address, F changed) {
    maybe_yield();
    const T before = *address, after = changed(before);
    *address = after;
    if (memcmp(&before, &after, sizeof(T))) progress();
    maybe_yield();
    return before;
}
}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_ATOMIC(T, name, after) \
    inline T name(T* address, T value) { return cuda_on_cpu::update(address, [=](T before) -> T { return after; }); }
#define CUDA_ON_CPU_ATOMICS(T)                                                                                    \
    CUDA_ON_CPU_ATOMIC(T, atomicMin, before < value ? before : value)                                             \
    CUDA_ON_CPU_ATOMIC(T, atomicMax, before > value ? before : value)                                             \
    CUDA_ON_CPU_ATOMIC(T, atomicAnd, before & value)                                                              \
    CUDA_ON_CPU_ATOMIC(T, atomicOr, before | value)                                                               \
    CUDA_ON_CPU_ATOMIC(T, atomicXor, before ^ value)                                                              \
    CUDA_ON_CPU_ATOMIC(T, atomicExch, (void(before), value))                                                      \
    inline T atomicCAS(T* address, T expected, T value, WHERE) {                                                  \
        const T before = cuda_on_cpu::update(address, [=](T now) { return now == expected ? value : now; });      \
        if (before != expected) cuda_on_cpu::poll(where);                                                         \
        return before;                                                                                            \
    }
CUDA_ON_CPU_ATOMICS(int)
CUDA_ON_CPU_ATOMICS(unsigned)
CUDA_ON_CPU_ATOMICS(unsigned long long)
CUDA_ON_CPU_ATOMIC(int, atomicAdd, int(unsigned(before) + unsigned(value)))
CUDA_ON_CPU_ATOMIC(unsigned, atomicAdd, before + value)
CUDA_ON_CPU_ATOMIC(unsigned long long, atomicAdd, before + value)
CUDA_ON_CPU_ATOMIC(float, atomicAdd, before + value)
CUDA_ON_CPU_ATOMIC(double, atomicAdd, before + value)
CUDA_ON_CPU_ATOMIC(float, atomicExch, (void(before), value))
CUDA_ON_CPU_ATOMIC(int, atomicSub, int(unsigned(before) - unsigned(value)))
CUDA_ON_CPU_ATOMIC(unsigned, atomicSub, before - value)

inline void __threadfence() { cuda_on_cpu::maybe_yield(); }
inline void __threadfence_block() { cuda_on_cpu::maybe_yield(); }
inline void __nanosleep(unsigned) { cuda_on_cpu::switch_to(cuda_on_cpu::any_runnable()); }

template <class T> T __ldg(const T* address) { return *address; }
template <class T> T __ldca(const T* address) { return *address; }
template <class T> T __ldcg(const T* address) { return *address; }
template <class T> T __ldcs(const T* address) { return *address; }
template <class T> void __stcg(T* address, T value) { *address = value; }
template <class T> void __stcs(T* address, T value) { *address = value; }

// ---- Integers and floats ----------------------------------------------------------------------------------------

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __clzll(long long x) { return std::countl_zero((unsigned long long)(x)); }
inline int __ffs(int x) { return x ? std::countr_zero(unsigned(x)) + 1 : 0; }
inline int __ffsll(long long x) { return x ? std::countr_zero((unsigned long long)(x)) + 1 : 0; }
inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return unsigned((uint64_t(high) << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return unsigned((uint64_t(high) << 32 | low) >> (by & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = uint64_t(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned pick = selector >> (4 * i), byte = unsigned(bytes >> (pick & 7) * 8) & 255;
        result |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
    }
    return result;
}

#define CUDA_ON_CPU_MIN_MAX(T)                            \
    inline T min(T a, T b) { return b < a ? b : a; }      \
    inline T max(T a, T b) { return a < b ? b : a; }
CUDA_ON_CPU_MIN_MAX(int)
CUDA_ON_CPU_MIN_MAX(unsigned)
CUDA_ON_CPU_MIN_MAX(long)
CUDA_ON_CPU_MIN_MAX(unsigned long)
CUDA_ON_CPU_MIN_MAX(long long)
CUDA_ON_CPU_MIN_MAX(unsigned long long)
inline unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
inline unsigned max(int a, unsigned b) { return max(unsigned(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __saturatef(float x) { return x > 0.0f ? fminf(x, 1.0f) : 0.0f; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }

namespace cuda_on_cpu {
// A GPU's conversion: saturates, and NaN becomes 0.
template <class T>
T to_integer(float rounded) {
    constexpr double low = double(std::numeric_limits<T>::min()), high = double(std::numeric_limits<T>::max());
    if (!(rounded == rounded)) return 0;
    return double(rounded) <= low ? std::numeric_limits<T>::min()
           : double(rounded) >= high ? std::numeric_limits<T>::max() : T(rounded);
}
}  // namespace cuda_on_cpu
#define CUDA_ON_CPU_CONVERT(suffix, rounding)                                                                     \
    inline int __float2int_##suffix(float x) { return cuda_on_cpu::to_integer<int>(rounding(x)); }                \
    inline unsigned __float2uint_##suffix(float x) { return cuda_on_cpu::to_integer<unsigned>(rounding(x)); }
CUDA_ON_CPU_CONVERT(rn, rintf)
CUDA_ON_CPU_CONVERT(rz, truncf)
CUDA_ON_CPU_CONVERT(rd, floorf)
CUDA_ON_CPU_CONVERT(ru, ceilf)

// ---- What kernels/cuda/source/warp.cuh defines for a GPU ----------------------------------------------------------------

template <class T> unsigned shared_address(const T* pointer) {
    return static_cast<unsigned>(reinterpret_cast<const char*>(pointer) - cuda_on_cpu::running->block->shared);
}
template <class T> T load_shared(unsigned address) {
    return *reinterpret_cast<const T*>(cuda_on_cpu::running->block->shared + address);
}
inline void store_shared_if(unsigned stores, unsigned address, unsigned value) {
    if (stores) *reinterpret_cast<unsigned*>(cuda_on_cpu::running->block->shared + address) = value;
}
template <class T> T* dynamic_shared() { return reinterpret_cast<T*>(cuda_on_cpu::running->block->dynamic_shared); }
template <class T> T load_relaxed(const T* address, WHERE) {
    cuda_on_cpu::poll(where);
    return *static_cast<const volatile T*>(address);
}
template <class T> T load_acquire(const T* address, WHERE) { return load_relaxed(address, where); }
template <class T> void store_relaxed(T* address, T value) {
    cuda_on_cpu::update(address, [=](T) { return value; });
}
template <class T> void store_release(T* address, T value) { store_relaxed(address, value); }
inline unsigned add_acq_rel(unsigned* address, unsigned value) { return atomicAdd(address, value); }
inline unsigned warp_or(unsigned value, WHERE) { return __reduce_or_sync(~0u, value, where); }
inline unsigned warp_add(unsigned value, WHERE) { return __reduce_add_sync(~0u, value, where); }
inline unsigned warp_max(unsigned value, WHERE) { return __reduce_max_sync(~0u, value, where); }
inline float exp2_approx(float x) { return exp2f(x); }
inline float log2_approx(float x) { return log2f(x); }
inline void add_pair(float* address, float2 values, bool) {
    atomicAdd(address, values.x);
    atomicAdd(address + 1, values.y);
}
constexpr int RESIDENT_THREADS = 1536;
constexpr bool HAS_MUCH_SHARED = false;
inline float root_approx(float x) { return sqrtf(x); }
inline float reciprocal_approx(float x) { return 1.0f / x; }
// Until a thread waits, its copies are not there: what a kernel reads too early is poison.
namespace cuda_on_cpu {
struct Copy { const Fiber* thread; uint4 *to, value; };
inline std::vector<Copy> copies;
}  // namespace cuda_on_cpu
inline void copy_16_async(uint4* shared, const uint4* global) {
    cuda_on_cpu::copies.push_back({cuda_on_cpu::running, shared, *global});
    memset(shared, 0xff, sizeof *shared);
}
inline void wait_for_copies() {
    std::erase_if(cuda_on_cpu::copies, [](const cuda_on_cpu::Copy& copy) {
        if (copy.thread != cuda_on_cpu::running) return false;
        *copy.to = copy.value;
        return true;
    });
}
inline unsigned sm_index() { return unsigned(cuda_on_cpu::running->block - cuda_on_cpu::slots.data()); }
inline long long clock64() {
    cuda_on_cpu::maybe_yield();
    return (long long)(cuda_on_cpu::outcome->switches);
}
inline unsigned long long global_timer() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)(now.tv_sec) * 1000000000ull + (unsigned long long)(now.tv_nsec);
}
