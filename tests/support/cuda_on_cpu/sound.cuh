// Kernels that are right, in the manner of the project's own: the harness must run them right in every order.
//
// One-dimensional blocks. look_back_scan and last_arriver have a policy whose non-default values are famous
// mistakes; the harness must find those in some order. Read broken.cuh next.
#pragma once
#include "warp.cuh"

// ---- warp_sums: 1 float a thread in, 1 float a warp out; no shared memory -----------------------------------------

struct WarpSumsArgs {
    const float* __restrict__ values;  // [threads of the grid]
    float* sums;                       // [warps of the grid]
};

__global__ void warp_sums(WarpSumsArgs args) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = args.values[i];
    for (int bit = 16; bit; bit >>= 1) sum += __shfl_xor_sync(FULL_WARP, sum, bit);
    if (lane_index() == 0) args.sums[i / 32] = sum;
}

// ---- Scan of one block: inclusive, 256 threads; shared: one word a warp -------------------------------------------

constexpr unsigned SCAN_THREADS = 256, SCAN_WARPS = SCAN_THREADS / 32;

__device__ __forceinline__ unsigned block_scan(unsigned value) {
    __shared__ unsigned warp_totals[SCAN_WARPS];
    for (int step = 1; step < 32; step *= 2) {
        const unsigned other = __shfl_up_sync(FULL_WARP, value, step);
        if (lane_index() >= step) value += other;
    }
    if (lane_index() == 31) warp_totals[warp_index()] = value;
    __syncthreads();
    unsigned before = 0;
    for (unsigned w = 0; w < warp_index(); w++) before += warp_totals[w];
    __syncthreads();  // the caller may scan again
    return before + value;
}

struct ScanArgs {
    const unsigned* __restrict__ values;  // [threads of the grid]
    unsigned* scanned;                    // [threads of the grid] inclusive
    unsigned* ticket;                     // [1] 0 before the launch; these three for look_back_scan only
    unsigned* flags;                      // [blocks] 0 before the launch
    unsigned* totals;                     // [blocks][2] of the block alone, and with all before it
};

__global__ void __launch_bounds__(SCAN_THREADS) scan_block(ScanArgs args) {
    const unsigned i = blockIdx.x * SCAN_THREADS + threadIdx.x;
    args.scanned[i] = block_scan(args.values[i]);
}

// ---- Decoupled look-back: a scan over all blocks in one launch ----------------------------------------------------

struct LookBackPolicy {
    bool ticket = true;       // off: parts are handed out by blockIdx, and wait for blocks that have not started
    bool value_first = true;  // off: a part says that its total is ready before it is
};

template <LookBackPolicy P>
__global__ void __launch_bounds__(SCAN_THREADS) look_back_scan(ScanArgs args) {
    enum : unsigned { TOTAL_READY = 1, PREFIX_READY = 2 };
    __shared__ unsigned shared_part, shared_before;
    if (threadIdx.x == 0) shared_part = P.ticket ? atomicAdd(args.ticket, 1u) : blockIdx.x;
    __syncthreads();
    const unsigned part = shared_part, i = part * SCAN_THREADS + threadIdx.x;
    const unsigned scanned = block_scan(args.values[i]);
    if (threadIdx.x == SCAN_THREADS - 1) {
        const auto publish = [&](unsigned which, unsigned value, unsigned flag) {
            if (P.value_first) args.totals[2 * part + which] = value;
            store_release(&args.flags[part], flag);
            if (!P.value_first) args.totals[2 * part + which] = value;
        };
        publish(0, scanned, TOTAL_READY);
        unsigned before = 0;
        for (unsigned k = part; k-- > 0;) {
            unsigned flag;
            while ((flag = load_acquire(&args.flags[k])) == 0) {}
            before += args.totals[2 * k + (flag == PREFIX_READY)];
            if (flag == PREFIX_READY) break;
        }
        publish(1, before + scanned, PREFIX_READY);
        shared_before = before;
    }
    __syncthreads();
    args.scanned[i] = shared_before + scanned;
}

// ---- The block that arrives last adds up what the others left -----------------------------------------------------

struct LastArriverPolicy {
    bool count_after = true;  // off: a block counts itself as arrived before its part is there
};
struct LastArriverArgs {
    const float* __restrict__ values;  // [threads of the grid]
    float* parts;                      // [blocks]
    unsigned* arrived;                 // [1] 0 before the launch
    float* total;                      // [1]
};

template <LastArriverPolicy P>
__global__ void __launch_bounds__(32) last_arriver(LastArriverArgs args) {
    float sum = args.values[blockIdx.x * 32 + threadIdx.x];
    for (int bit = 16; bit; bit >>= 1) sum += __shfl_xor_sync(FULL_WARP, sum, bit);
    if (threadIdx.x != 0) return;
    if (P.count_after) {
        args.parts[blockIdx.x] = sum;
        __threadfence();
    }
    const unsigned before = atomicAdd(args.arrived, 1u);
    if (!P.count_after) args.parts[blockIdx.x] = sum;
    if (before + 1 < gridDim.x) return;
    __threadfence();
    float total = 0.0f;
    for (unsigned b = 0; b < gridDim.x; b++) total += args.parts[b];
    *args.total = total;
}

// ---- A queue of work items that resident blocks share: 64 threads -------------------------------------------------

struct QueuePolicy {
    bool wait_for_readers = true;  // off: the next ticket may overwrite one that a slower warp has not read
};
struct QueueArgs {
    unsigned* next;   // [1] 0 before the launch
    unsigned* done;   // [items][64] how often each thread has done the item
    unsigned items;
};

template <QueuePolicy P>
__global__ void __launch_bounds__(64) drain_queue(QueueArgs args) {
    __shared__ unsigned shared_item;
    while (true) {
        if (threadIdx.x == 0) shared_item = atomicAdd(args.next, 1u);
        __syncthreads();
        const unsigned item = shared_item;
        if (item >= args.items) return;
        atomicAdd(&args.done[item * 64 + threadIdx.x], 1u);
        if (P.wait_for_readers) __syncthreads();
    }
}

// ---- A blend-like kernel: 16×16 pixels a block, splats staged in batches of 256 in dynamic shared memory ----------

struct Blob {
    float4 place;  // x px, y px, falloff 1/px^2, log2 opacity
    float4 colour;  // r, g, b, unused
};
struct BlobArgs {
    const Blob* __restrict__ blobs;  // [blob_count] front to back
    float4* image;                   // [height][width] r, g, b, transmittance
    int blob_count, width, height;
};

__global__ void __launch_bounds__(256) blend_blobs(BlobArgs args) {
    Blob* staged = dynamic_shared<Blob>();  // [256]
    const int tiles_x = (args.width + 15) / 16;
    const int x = int(blockIdx.x) % tiles_x * 16 + int(threadIdx.x) % 16;
    const int y = int(blockIdx.x) / tiles_x * 16 + int(threadIdx.x) / 16;
    float3 colour = make_float3(0.0f, 0.0f, 0.0f);
    float transmittance = 1.0f;
    bool is_done = x >= args.width || y >= args.height;
    for (int first = 0; first < args.blob_count; first += 256) {
        if (__syncthreads_count(is_done) == 256) break;
        const int mine = first + int(threadIdx.x), count = min(256, args.blob_count - first);
        if (mine < args.blob_count) staged[threadIdx.x] = args.blobs[mine];
        __syncthreads();
        for (int k = 0; k < count && __any_sync(FULL_WARP, !is_done); k++) {
            const Blob blob = staged[k];
            const float dx = blob.place.x - (float(x) + 0.5f), dy = blob.place.y - (float(y) + 0.5f);
            const float squared = __fmaf_rn(dx, dx, __fmul_rn(dy, dy));
            const float alpha = fminf(0.99f, exp2_approx(__fmaf_rn(-blob.place.z, squared, blob.place.w)));
            if (is_done || alpha < 1.0f / 255.0f) continue;
            const float rest = transmittance * (1.0f - alpha);
            is_done = rest < 1e-4f;
            if (is_done) continue;
            const float weight = transmittance * alpha;
            colour.x += weight * blob.colour.x, colour.y += weight * blob.colour.y, colour.z += weight * blob.colour.z;
            transmittance = rest;
        }
    }
    if (x < args.width && y < args.height)
        args.image[y * args.width + x] = make_float4(colour.x, colour.y, colour.z, transmittance);
}
