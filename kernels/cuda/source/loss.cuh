// Computes a step's loss, (1 − w) L1 + w (1 − SSIM), and its gradient with respect to the image, in two launches.
//
// SSIM is that of Wang et al. 2004: an 11×11 Gaussian window of sigma 1.5 that sees zeros outside the image, on each
// channel.
// - `loss_sums` writes the derivatives of each pixel's SSIM by the local means of x, x² and x y (x the image, y the
//   target).
// - `loss_gradient` filters those derivatives with the same window. Its first block also adds up the loss and decides
//   whether the step commits (step.cuh).
//
// Flags:
// - coverage: the target is over black, and its alpha tells where the frame's background shows.
// - weights: a mask tells how much each pixel counts. Image and target are black where it does not count, so that
//   nothing hidden there affects the windows of its neighbours.
//
// A block of 224 threads has a tile of 64×13 pixels. Shared memory: 46 KB in `loss_sums`, 35 KB in `loss_gradient`.
// - First down the columns: a thread reads one number of each row that the tile sees, straight from memory, into
//   running sums. The ten rows beyond the tile cost only their loads.
// - Then along the rows, from shared memory: a thread takes a run of neighbouring pixels of one channel, whose windows
//   overlap. It reads four words for each filtered number, not eleven. Each channel has its own lines, so that one load
//   gets four pixels.
#pragma once
#include "lazy.cuh"

constexpr int LOSS_THREADS = 224;  // threads a block; cuda/step/loss.py reads this and the next two
constexpr int LOSS_WIDTH = 64;     // px, width of a tile
constexpr int LOSS_HEIGHT = 13;
constexpr int LOSS_WARPS = LOSS_THREADS / 32;
constexpr int TAPS = 11, RADIUS = 5, LOSS_CHANNELS = 3;
constexpr int LOSS_SEEN = LOSS_WIDTH + 2 * RADIUS;  // px of a row that a tile sees
constexpr int LOSS_RUN = 4;                         // neighbouring px that a thread filters along a row
constexpr int RUN_QUADS = LOSS_RUN / 4, SEEN_QUADS = RUN_QUADS + 3;  // quads of px that a thread writes and reads
constexpr int LINE = LOSS_WIDTH - LOSS_RUN + 4 * SEEN_QUADS;         // numbers of a line: one channel of a row
constexpr int LINES = LOSS_CHANNELS * LOSS_HEIGHT;                   // of a quantity: by row, then by channel
constexpr int LINE_THREADS = LOSS_WIDTH / LOSS_RUN, LINES_A_WARP = 32 / LINE_THREADS;
static_assert(LOSS_THREADS >= LOSS_CHANNELS * LOSS_SEEN && LINE >= LOSS_SEEN);
constexpr float SSIM_C1 = 0.0001f, SSIM_C2 = 0.0009f;
constexpr float INVERSE_255 = 1.0f / 255.0f;

// Returns the tap of the normalised window at `i` px from its centre.
__device__ constexpr float window_tap(int distance) {
    constexpr float OUTWARDS[RADIUS + 1] = {0.26601172f, 0.21300553f, 0.10936069f,
                                            0.03600077f, 0.00759876f, 0.00102838f};
    return OUTWARDS[distance < 0 ? -distance : distance];
}

struct LossPolicy {
    bool coverage = false;
    bool weights = false;
};

// Layout of what `loss_sums` writes: the derivatives of a pixel's SSIM by the local means of x, x² (doubled) and x y.
// Tiles of a column follow each other, so that the distance between rows is known at compile time. A tile's row has the
// first two derivatives next to each other, then the third, channel by channel.
constexpr int MEANS = 3;
constexpr int DERIVATIVE_PAIRS = 2 * LOSS_CHANNELS * LOSS_WIDTH;
constexpr int DERIVATIVE_ROW = DERIVATIVE_PAIRS + LOSS_CHANNELS * LOSS_WIDTH;
struct DerivativePlace {
    int pair, third;  // places in a tile's row
};
__device__ __forceinline__ DerivativePlace derivative_place(int channel, int pixel) {
    const int at = channel * LOSS_WIDTH + pixel;
    return {2 * at, DERIVATIVE_PAIRS + at};
}

struct LossSumsArgs {
    const Frame* frame;
    const StepInputs* inputs;
    const float* image;  // [H, W, 3]
    float* derivatives;  // [ceil(W / LOSS_WIDTH), H, DERIVATIVE_ROW] out
    float2* sums;        // [blocks] out: sums of |x − y| and of SSIM
};

struct LossGradientArgs {
    Frame* frame;
    const StepInputs* inputs;
    StepState* state;
    StepResult* results;       // [RESULT_SLOTS] out
    float* reach;              // table of lazy.cuh, renewed if harmonics may miss steps; else null
    const float* image;        // [H, W, 3]
    const float* derivatives;  // as above
    const float2* sums;        // [sum_count]
    float* gradient;           // [H, W, 3] out: dL/d(image)
    int sum_count;
};

// How many blocks should fit a multiprocessor: as many as its shared memory has room for.
__device__ constexpr int resident_blocks(int most) { return HAS_MUCH_SHARED ? most : 2; }

// ---- A block's part of the image ------------------------------------------------------------------------------------

struct LossTile {
    int column;      // column of tiles
    int x, y;        // px, its corner
    bool is_inside;  // all pixels that the tile sees are in the image
};
__device__ __forceinline__ LossTile loss_tile(const Frame& frame, int block) {
    const int across = (frame.width + LOSS_WIDTH - 1) / LOSS_WIDTH, down = block / across;
    const int column = block - down * across;
    const int x = column * LOSS_WIDTH, y = down * LOSS_HEIGHT;
    const bool is_inside = x >= RADIUS && x + LOSS_WIDTH + RADIUS <= frame.width && y >= RADIUS &&
                           y + LOSS_HEIGHT + RADIUS <= frame.height;
    return {column, x, y, is_inside};
}

// A number of image and target, each times the pixel's weight, and that weight.
struct Compared {
    float x, y, weight;
};
// Reads one channel of a column of pixels, zeros outside the image.
template <LossPolicy P>
struct ComparedColumn {
    const float* image;
    const unsigned char* target;
    int numbers, pixels;         // how many in a row
    int number, pixel;           // place in a row
    int rows;                    // rows of the image; 0 if the column is outside
    unsigned coverage, weights;  // where these begin in the target
    float background;

    __device__ __forceinline__ ComparedColumn(const Frame& frame, const StepInputs& inputs, const float* image, int at)
        : image(image), target(inputs.target), numbers(LOSS_CHANNELS * frame.width), pixels(frame.width), number(at),
          pixel(at / LOSS_CHANNELS), rows(at >= 0 && at < numbers ? frame.height : 0) {
        const unsigned plane = unsigned(frame.height * pixels);
        coverage = LOSS_CHANNELS * plane, weights = P.coverage ? coverage + plane : coverage;
        if constexpr (P.coverage) background = rows ? frame.background[at - LOSS_CHANNELS * pixel] : 0.0f;
    }
    __device__ __forceinline__ bool has(int row) const { return unsigned(row) < unsigned(rows); }
    // Reads a row; zeros if there is no such row.
    __device__ __forceinline__ Compared operator[](int row) const {
        if (!has(row)) return {0.0f, 0.0f, 1.0f};
        return at(row);
    }
    __device__ __forceinline__ Compared at(int row) const {
        Compared found = {0.0f, 0.0f, 1.0f};
        const unsigned offset = unsigned(row * numbers + number);
        found.x = image[offset], found.y = INVERSE_255 * float(__ldg(target + offset));
        if constexpr (P.coverage || P.weights) {
            const unsigned of_pixel = unsigned(row * pixels + pixel);
            if constexpr (P.coverage)
                found.y = fmaf(INVERSE_255 * float(255 - int(__ldg(target + (coverage + of_pixel)))), background,
                               found.y);
            if constexpr (P.weights) {
                found.weight = INVERSE_255 * float(__ldg(target + (weights + of_pixel)));
                found.x *= found.weight, found.y *= found.weight;
            }
        }
        return found;
    }
};

// Returns to thread 0 the sum of a value over the block, always added in the same order.
__device__ __forceinline__ float block_sum(float value) {
    __shared__ float of_warp[LOSS_WARPS];
#pragma unroll
    for (int bit = 16; bit; bit >>= 1) value += __shfl_xor_sync(FULL_WARP, value, bit);
    __syncthreads();  // sums of an earlier call have been read
    if (lane_index() == 0) of_warp[warp_index()] = value;
    __syncthreads();
    float sum = 0.0f;
    for (int warp = 0; warp < LOSS_WARPS; warp++) sum += of_warp[warp];
    return sum;
}

// ---- The window -----------------------------------------------------------------------------------------------------

// Filters N quantities down a column. `read` returns the quantities of a row, counted from RADIUS above the tile.
// `write` gets each filtered row of the tile. Both are called with row numbers that are known at compile time.
template <int N, class Read, class Write>
__device__ __forceinline__ void filter_down(Read read, Write write) {
    float sums[N][TAPS];  // sums of the rows whose window includes the newest row
#pragma unroll
    for (int seen = 0; seen < LOSS_HEIGHT + 2 * RADIUS; seen++) {
        float values[N], complete[N];
        read(seen, values);
#pragma unroll
        for (int i = 0; i < N; i++) {
#pragma unroll
            for (int tap = 0; tap < TAPS; tap++) {
                const int row = seen - tap;  // of the tile
                if (row < 0 || row >= LOSS_HEIGHT) continue;
                float& sum = sums[i][row % TAPS];
                sum = tap == 0 ? window_tap(RADIUS) * values[i] : fmaf(window_tap(tap - RADIUS), values[i], sum);
            }
        }
        const int row = seen - 2 * RADIUS;
        if (row < 0) continue;
#pragma unroll
        for (int i = 0; i < N; i++) complete[i] = sums[i][row % TAPS];
        write(row, complete);
    }
}

__device__ __forceinline__ float4 quad_of(const float* at) { return make_float4(at[0], at[1], at[2], at[3]); }

// Returns the place of a quad in its line. Eight threads that are RUN_QUADS apart use all banks.
__device__ __forceinline__ constexpr int quad_place(int quad) { return LOSS_RUN == 4 ? quad : quad ^ (quad >> 3 & 1); }
__device__ __forceinline__ constexpr int line_place(int pixel) { return 4 * quad_place(pixel >> 2) + (pixel & 3); }

// The quads of a line that a thread reads. It filters the pixels from RADIUS on.
struct LossRun {
    int quads[SEEN_QUADS];

    __device__ __forceinline__ explicit LossRun(int run) {
#pragma unroll
        for (int i = 0; i < SEEN_QUADS; i++) quads[i] = 4 * quad_place(RUN_QUADS * run + i);
    }
    __device__ __forceinline__ void filter(const float* line, float (&filtered)[LOSS_RUN]) const {
        float seen[4 * SEEN_QUADS];
#pragma unroll
        for (int i = 0; i < SEEN_QUADS; i++) {
            const float4 quad = *reinterpret_cast<const float4*>(line + quads[i]);
            seen[4 * i] = quad.x, seen[4 * i + 1] = quad.y, seen[4 * i + 2] = quad.z, seen[4 * i + 3] = quad.w;
        }
#pragma unroll
        for (int pixel = 0; pixel < LOSS_RUN; pixel++) {
            const float* centre = seen + pixel + RADIUS;
            float sum = window_tap(0) * centre[0];
#pragma unroll
            for (int i = 1; i <= RADIUS; i++) sum = fmaf(window_tap(i), centre[-i] + centre[i], sum);
            filtered[pixel] = sum;
        }
    }
    __device__ __forceinline__ void write(float* line, const float (&values)[LOSS_RUN]) const {
#pragma unroll
        for (int i = 0; i < RUN_QUADS; i++) *reinterpret_cast<float4*>(line + quads[i]) = quad_of(values + 4 * i);
    }
};

// ---- Value ----------------------------------------------------------------------------------------------------------

struct Ssim {
    float twice;                                 // 2 SSIM
    float by_mean, twice_by_square, by_product;  // derivatives by the local means of x, x² (doubled) and x y
};
__device__ __forceinline__ Ssim ssim_of(float x, float y, float squares, float product) {
    const float means = fmaf(x, x, y * y), of_means = x * y;
    const float a = fmaf(2.0f, of_means, SSIM_C1), b = fmaf(2.0f, product - of_means, SSIM_C2);
    const float inverse_c = reciprocal(means + SSIM_C1), inverse_d = reciprocal(squares - means + SSIM_C2);
    const float scale = (inverse_c + inverse_c) * inverse_d, by_product = a * scale, twice = b * by_product;
    return {twice, fmaf(y, (b - a) * scale, x * twice * (inverse_d - inverse_c)), -twice * inverse_d, by_product};
}

constexpr int LOSS_QUANTITIES = 4;  // x, y, x² + y², x y
using SumsLines = float[LOSS_QUANTITIES][LINES][LINE];

// Writes the derivatives of a run's pixels. The first `pixels` of them are in the image. Returns twice their SSIM.
__device__ __forceinline__ float ssim_of_run(const SumsLines& lines, int line, const LossRun& run, int pixels,
                                             float2* pairs, float* thirds) {
    float means[LOSS_QUANTITIES][LOSS_RUN], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < LOSS_QUANTITIES; i++) run.filter(lines[i][line], means[i]);
#pragma unroll
    for (int quad = 0; quad < LOSS_RUN; quad += 4) {
        float first[8], third[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = quad + i;
            const Ssim ssim = ssim_of(means[0][at], means[1][at], means[2][at], means[3][at]);
            first[2 * i] = ssim.by_mean, first[2 * i + 1] = ssim.twice_by_square, third[i] = ssim.by_product;
            if (at < pixels) sum += ssim.twice;
        }
        float4* pair = reinterpret_cast<float4*>(pairs + quad);
        pair[0] = quad_of(first), pair[1] = quad_of(first + 4);
        *reinterpret_cast<float4*>(thirds + quad) = quad_of(third);
    }
    return sum;
}

template <LossPolicy P>
__global__ void __launch_bounds__(LOSS_THREADS, resident_blocks(P.coverage || P.weights ? 3 : 4))
    loss_sums(LossSumsArgs args) {
    alignas(16) __shared__ SumsLines lines;
    const Frame& frame = *args.frame;
    if (frame.overflow) return;
    const LossTile tile = loss_tile(frame, int(blockIdx.x));
    const int thread = int(threadIdx.x);
    float difference = 0.0f, ssim = 0.0f;
    if (thread < LOSS_CHANNELS * LOSS_SEEN) {
        const int pixel = thread / LOSS_CHANNELS, channel = thread - LOSS_CHANNELS * pixel;
        const int place = line_place(pixel);
        const ComparedColumn<P> column(frame, *args.inputs, args.image, LOSS_CHANNELS * (tile.x - RADIUS) + thread);
        const auto filter = [&](auto read) {
            filter_down<LOSS_QUANTITIES>(
                [&](int seen, float (&values)[LOSS_QUANTITIES]) {
                    const Compared at = read(tile.y - RADIUS + seen);
                    values[0] = at.x, values[1] = at.y;
                    values[2] = fmaf(at.x, at.x, at.y * at.y), values[3] = at.x * at.y;
                    if (seen >= RADIUS && seen < RADIUS + LOSS_HEIGHT) difference += fabsf(at.x - at.y);
                },
                [&](int row, const float (&means)[LOSS_QUANTITIES]) {
#pragma unroll
                    for (int i = 0; i < LOSS_QUANTITIES; i++)
                        lines[i][LOSS_CHANNELS * row + channel][place] = means[i];
                });
        };
        if (P.coverage || P.weights || !tile.is_inside)  // coverage and weights leave no registers for both paths
            filter([&](int row) { return column[row]; });
        else
            filter([&](int row) { return column.at(row); });
        if (pixel < RADIUS || pixel >= RADIUS + LOSS_WIDTH) difference = 0.0f;  // belongs to another tile
    }
    __syncthreads();
    const LossRun run(thread % LINE_THREADS);
    const int at = thread % LINE_THREADS * LOSS_RUN, pixels = frame.width - (tile.x + at);
    float* derivatives = args.derivatives + (size_t(tile.column) * frame.height + tile.y) * DERIVATIVE_ROW;
#pragma unroll 1
    for (int line = thread / LINE_THREADS; line < LINES; line += LOSS_THREADS / LINE_THREADS) {
        const int row = line / LOSS_CHANNELS, channel = line - LOSS_CHANNELS * row;
        if (tile.y + row >= frame.height || pixels <= 0) continue;
        float* of_row = derivatives + row * DERIVATIVE_ROW;
        const auto [pair, third] = derivative_place(channel, at);
        ssim += ssim_of_run(lines, line, run, pixels, reinterpret_cast<float2*>(of_row + pair), of_row + third);
    }
    difference = block_sum(difference), ssim = block_sum(ssim);
    if (thread == 0) args.sums[blockIdx.x] = make_float2(difference, 0.5f * ssim);
}

// ---- Gradient -------------------------------------------------------------------------------------------------------

using GradientLines = float[MEANS][LINES][LINE];

// Adds up the loss with one block.
__device__ __forceinline__ void finish_loss(const LossGradientArgs& args) {
    Frame& frame = *args.frame;
    float difference = 0.0f, ssim = 0.0f;
    if (frame.overflow == 0) {
        for (int i = int(threadIdx.x); i < args.sum_count; i += LOSS_THREADS) {
            difference += args.sums[i].x;
            ssim += args.sums[i].y;
        }
    }
    difference = block_sum(difference);
    ssim = block_sum(ssim);
    if (threadIdx.x == 0) {
        const float numbers = float(LOSS_CHANNELS) * float(frame.width) * float(frame.height);
        decide_step(frame, *args.inputs, *args.state, args.results, difference / numbers, ssim / numbers);
    }
    __syncthreads();
    static_assert(LOSS_THREADS >= LAZY_TABLE);
    if (args.reach && frame.overflow == 0) renew_reach(args.reach, *args.inputs, *args.state);
}

template <LossPolicy P>
__global__ void __launch_bounds__(LOSS_THREADS, resident_blocks(P.weights ? 4 : 5))
    loss_gradient(LossGradientArgs args) {
    alignas(16) __shared__ GradientLines lines;
    if (blockIdx.x == 0) {
        finish_loss(args);
        return;
    }
    const Frame& frame = *args.frame;
    if (frame.overflow & (OVERFLOW_VISIBLE | OVERFLOW_INSTANCES)) return;  // the first block may set the other bit
    // Begins with the last tiles: what loss_sums wrote last is still in the cache.
    const LossTile tile = loss_tile(frame, args.sum_count - int(blockIdx.x));
    const int thread = int(threadIdx.x);
    if (thread < LOSS_CHANNELS * LOSS_SEEN) {
        const int channel = thread / LOSS_SEEN, pixel = thread - LOSS_SEEN * channel, x = tile.x - RADIUS + pixel;
        const int column = x / LOSS_WIDTH, rows = x >= 0 && x < frame.width ? frame.height : 0, top = tile.y - RADIUS;
        const float* derivatives = args.derivatives + ((long long)column * frame.height + top) * DERIVATIVE_ROW;
        const auto [pair, third] = derivative_place(channel, x - column * LOSS_WIDTH);
        const float *pairs = derivatives + pair, *thirds = derivatives + third;
        const int place = line_place(pixel);
        const auto filter = [&](auto has) {
            filter_down<MEANS>(
                [&](int seen, float (&values)[MEANS]) {
                    float2 two = make_float2(0.0f, 0.0f);
                    values[2] = 0.0f;
                    if (has(top + seen)) {
                        two = *reinterpret_cast<const float2*>(pairs + seen * DERIVATIVE_ROW);
                        values[2] = thirds[seen * DERIVATIVE_ROW];
                    }
                    values[0] = two.x, values[1] = two.y;
                },
                [&](int row, const float (&filtered)[MEANS]) {
#pragma unroll
                    for (int i = 0; i < MEANS; i++) lines[i][LOSS_CHANNELS * row + channel][place] = filtered[i];
                });
        };
        if (tile.is_inside)
            filter([](int) { return true; });
        else
            filter([&](int row) { return unsigned(row) < unsigned(rows); });
    }
    __syncthreads();
    // Filters along the rows, in place: each line belongs to one warp.
    const LossRun run(thread % LINE_THREADS);
#pragma unroll 1
    for (int first = int(warp_index()) * LINES_A_WARP; first < LINES; first += LOSS_WARPS * LINES_A_WARP) {
        const int line = first + int(lane_index()) / LINE_THREADS;
        float filtered[MEANS][LOSS_RUN];
        if (line < LINES) {
#pragma unroll
            for (int i = 0; i < MEANS; i++) run.filter(lines[i][line], filtered[i]);
        }
        __syncwarp();
        if (line < LINES) {
#pragma unroll
            for (int i = 0; i < MEANS; i++) run.write(lines[i][line], filtered[i]);
        }
    }
    // Reads before the barrier, so that the rows do not wait for their loads one by one.
    const bool owns = thread < LOSS_CHANNELS * LOSS_WIDTH;
    const ComparedColumn<P> column(frame, *args.inputs, args.image, owns ? LOSS_CHANNELS * tile.x + thread : -1);
    const int rows = frame.height - tile.y;
    Compared own[LOSS_HEIGHT];
#pragma unroll
    for (int row = 0; row < LOSS_HEIGHT; row++) own[row] = column[tile.y + row];
    __syncthreads();
    if (column.rows == 0) return;
    const int pixel = thread / LOSS_CHANNELS, channel = thread - LOSS_CHANNELS * pixel, place = line_place(pixel);
    const float inverse = reciprocal(float(LOSS_CHANNELS) * float(frame.width) * float(frame.height));
    const float ssim_weight = args.inputs->dssim_weight * inverse, l1_weight = inverse - ssim_weight;
    float* gradients = args.gradient + size_t(tile.y) * column.numbers + column.number;
#pragma unroll
    for (int row = 0; row < LOSS_HEIGHT; row++) {
        if (row >= rows) break;
        const auto [x, y, weight] = own[row];
        const int line = LOSS_CHANNELS * row + channel;
        const float sign = x > y ? l1_weight : x < y ? -l1_weight : 0.0f;
        const float by_ssim = fmaf(x, lines[1][line][place], fmaf(y, lines[2][line][place], lines[0][line][place]));
        float gradient = fmaf(-ssim_weight, by_ssim, sign);
        if constexpr (P.weights) gradient *= weight;
        *gradients = gradient;
        gradients += column.numbers;
    }
}
