// The few functions whose text differs between a GPU and the CPU that tests run on.
//
// This is the only place for inline assembly and for questions about the architecture. Every kernel file includes it
// first. On the CPU, tests/support/cuda_on_cpu/intrinsics.h defines the same names, so the #ifdef below is the only
// one.
//
// Rules that let a kernel run, and be checked, in both worlds:
// - it is `template <StagePolicy P> __global__ void __launch_bounds__(256) stage(StageArgs args)`, or without the
//   template. It takes one struct by value, whose members are numbers, vectors, pointers and arrays
//   (kernels/cuda/launch/arguments.py reads it);
// - blocks are one-dimensional and a multiple of 32 threads. No order of blocks may be assumed, not even that a block
//   with a lower number has started: take a ticket;
// - `__shared__` variables are declared in functions; dynamic shared memory comes from `dynamic_shared<T>()`;
// - no thread returns before the last barrier of its block, nor before the last collective whose mask names it, and all
//   threads of a collective call it on the same line;
// - a loop that waits for another block reads with `load_acquire` or `load_relaxed`;
// - numbers that may wrap are unsigned, and shifts stay below the width. A float that may be NaN or too large for an
//   integer is converted by `__float2int_rd` or a similar function that saturates.
#pragma once

#ifdef __CUDACC__

// The block's dynamic shared memory, 16-byte aligned; its size is the `shared` of the launch.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
    extern __shared__ uint4 splatscope_dynamic_shared[];
    return reinterpret_cast<T*>(splatscope_dynamic_shared);
}

// Words of 4 or 8 bytes that blocks pass each other. `relaxed` is enough if the word itself is the message; `acquire`
// also orders later accesses after it, `release` earlier accesses before it. A loop that waits for another block calls
// a load of these, never a plain or volatile read: on the CPU, this is where the other block gets to run.
#define SPLATSCOPE_LOAD(name, order)                                                                                  \
    template <class T>                                                                                                \
    __device__ __forceinline__ T name(const T* address) {                                                             \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8);                                                              \
        T value;                                                                                                      \
        if constexpr (sizeof(T) == 4)                                                                                 \
            asm volatile("ld." order ".gpu.b32 %0, [%1];"                                                             \
                         : "=r"(reinterpret_cast<unsigned&>(value)) : "l"(address) : "memory");                       \
        else                                                                                                          \
            asm volatile("ld." order ".gpu.b64 %0, [%1];"                                                             \
                         : "=l"(reinterpret_cast<unsigned long long&>(value)) : "l"(address) : "memory");             \
        return value;                                                                                                 \
    }
#define SPLATSCOPE_STORE(name, order)                                                                                 \
    template <class T>                                                                                                \
    __device__ __forceinline__ void name(T* address, T value) {                                                       \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8);                                                              \
        if constexpr (sizeof(T) == 4)                                                                                 \
            asm volatile("st." order ".gpu.b32 [%0], %1;"                                                             \
                         ::"l"(address), "r"(reinterpret_cast<unsigned&>(value)) : "memory");                         \
        else                                                                                                          \
            asm volatile("st." order ".gpu.b64 [%0], %1;"                                                             \
                         ::"l"(address), "l"(reinterpret_cast<unsigned long long&>(value)) : "memory");               \
    }
SPLATSCOPE_LOAD(load_relaxed, "relaxed")
SPLATSCOPE_LOAD(load_acquire, "acquire")
SPLATSCOPE_STORE(store_relaxed, "relaxed")
SPLATSCOPE_STORE(store_release, "release")
// Adds, and returns the old value. What the block wrote before its last barrier is visible to blocks that add later;
// after its next barrier, the block sees what blocks that added earlier wrote before theirs.
__device__ __forceinline__ unsigned add_acq_rel(unsigned* address, unsigned value) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before) : "l"(__cvta_generic_to_global(address)), "r"(value) : "memory");
    return before;
}
#undef SPLATSCOPE_LOAD
#undef SPLATSCOPE_STORE

// Reductions over a whole warp: one instruction from sm_80 on, five shuffles before.
__device__ __forceinline__ unsigned warp_or(unsigned value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_or_sync(0xffffffffu, value);
#else
    for (int bit = 16; bit; bit >>= 1) value |= __shfl_xor_sync(0xffffffffu, value, bit);
    return value;
#endif
}
__device__ __forceinline__ unsigned warp_add(unsigned value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(0xffffffffu, value);
#else
    for (int bit = 16; bit; bit >>= 1) value += __shfl_xor_sync(0xffffffffu, value, bit);
    return value;
#endif
}
__device__ __forceinline__ unsigned warp_max(unsigned value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, value);
#else
    for (int bit = 16; bit; bit >>= 1) value = max(value, __shfl_xor_sync(0xffffffffu, value, bit));
    return value;
#endif
}

// One instruction each; subnormal numbers count as 0. The same bits at every call on one architecture.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float root_approx(float x) {  // 2 ulp; of numbers that are not negative
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal_approx(float x) {  // 1 ulp
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Threads that every multiprocessor of the architecture holds at once.
#if __CUDA_ARCH__ >= 800
constexpr int RESIDENT_THREADS = 1536;
#else
constexpr int RESIDENT_THREADS = 1024;
#endif

// Whether a multiprocessor has 164 KB of shared memory and more; others have 100 and less.
#if __CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
constexpr bool HAS_MUCH_SHARED = true;
#else
constexpr bool HAS_MUCH_SHARED = false;
#endif

// Adds to a number in global memory, 8-byte aligned, and to its neighbour: one instruction from sm_90 on, before that
// to the neighbour only if asked to. So the neighbour's own place must be of no account where it is not asked for.
__device__ __forceinline__ void add_pair(float* address, float2 values, [[maybe_unused]] bool has_second) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};"
                 ::"l"(__cvta_generic_to_global(address)), "f"(values.x), "f"(values.y));
#else
    atomicAdd(address, values.x);
    if (has_second) atomicAdd(address + 1, values.y);
#endif
}

// Where something lies in the block's shared memory: half as long as a pointer, and needs no sum to load from.
template <class T>
__device__ __forceinline__ unsigned shared_address(const T* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
template <class T>
__device__ __forceinline__ T load_shared(unsigned address) {
    return *static_cast<const T*>(__cvta_shared_to_generic(address));
}
// Without a branch, which the compiler would make of more than a store.
__device__ __forceinline__ void store_shared_if(unsigned stores, unsigned address, unsigned value) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.shared.u32 [%1], %2; }"
                 ::"r"(stores), "r"(address), "r"(value) : "memory");
}

// Starts to copy 16 bytes from global to shared memory without passing through registers; before sm_80, copies them.
// The thread has its own copies after `wait_for_copies`, its warp after a __syncwarp that follows.
__device__ __forceinline__ void copy_16_async(uint4* shared, const uint4* global) {
#if __CUDA_ARCH__ >= 800
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#else
    *shared = *global;
#endif
}
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Which multiprocessor the block runs on, and a clock in nanoseconds that all of them share (coarse).
__device__ __forceinline__ unsigned sm_index() {
    unsigned index;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(index));
    return index;
}
__device__ __forceinline__ unsigned long long global_timer() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

#endif

constexpr unsigned FULL_WARP = 0xffffffffu;

__device__ __forceinline__ unsigned lane_index() { return threadIdx.x & 31u; }
__device__ __forceinline__ unsigned warp_index() { return threadIdx.x >> 5; }
