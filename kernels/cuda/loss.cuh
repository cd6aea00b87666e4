// The loss of a step, (1 − w) L1 + w (1 − SSIM), and its gradient with respect to the image, in two launches.
//
// SSIM is that of Wang et al. 2004: an 11×11 Gaussian window of sigma 1.5 that sees zeros outside the image, on each
// channel. `loss_sums` leaves the derivatives of each pixel's SSIM by the local means of x, x² and x y (x the image, y
// the target); `loss_gradient` filters those with the same window, and its first block adds up the value and decides
// whether the step commits (step.cuh).
//
// coverage: the target is over black and its alpha says where the frame's background shows. weights: a mask says how
// much each pixel counts; both are black where it does not, so that nothing hidden there shows in a window beside it.
//
// 128 threads a block, a thread a column of single numbers: channels lie side by side, so that the taps of a number are
// the third, sixth, … before and after it, and no thread asks which channel it has. A block walks down `rows` rows. Of
// each it keeps the numbers of its columns and 15 on either side in shared memory, twice, so that one barrier a row is
// enough; it filters along the row from there, and down the columns in registers: eleven running sums of each quantity,
// one of which is complete after each row. 2.5 KB of shared memory for `loss_sums`, 3.7 for `loss_gradient`.
#pragma once
#include "lazy.cuh"

constexpr int LOSS_THREADS = 128, LOSS_WARPS = LOSS_THREADS / 32;
constexpr int TAPS = 11, RADIUS = 5, LOSS_CHANNELS = 3;
constexpr int LOSS_MARGIN = RADIUS * LOSS_CHANNELS, LOSS_ROW = LOSS_THREADS + 2 * LOSS_MARGIN;
constexpr float SSIM_C1 = 0.0001f, SSIM_C2 = 0.0009f;
constexpr float INVERSE_255 = 1.0f / 255.0f;

// The window, normalised: the tap at a distance of `i` px from the centre.
__device__ constexpr float window_tap(int distance) {
    constexpr float OUTWARDS[RADIUS + 1] = {0.26601172f, 0.21300553f, 0.10936069f,
                                            0.03600077f, 0.00759876f, 0.00102838f};
    return OUTWARDS[distance < 0 ? -distance : distance];
}

struct LossPolicy {
    bool coverage = false;
    bool weights = false;
};

struct LossSumsArgs {
    const Frame* frame;
    const StepInputs* inputs;
    const float* image;  // [H, W, 3]
    float* derivatives;  // [3, H, W, 3] out: of a pixel's SSIM by the means of x, x² and x y around it
    float2* sums;        // [blocks] out: of |x − y| and of SSIM
    int rows;            // a block
};

struct LossGradientArgs {
    Frame* frame;
    const StepInputs* inputs;
    StepState* state;
    StepResult* results;       // [RESULT_SLOTS] out
    float* reach;              // [2, LAZY_TABLE] of lazy.cuh, renewed if harmonics may stand still; else null
    const float* image;        // [H, W, 3]
    const float* derivatives;  // [3, H, W, 3]
    const float2* sums;        // [sum_count]
    float* gradient;           // [H, W, 3] out: dL/d(image)
    int sum_count;
    int rows;  // a block
};

// ---- A block's part of the image ------------------------------------------------------------------------------------

struct Strip {
    int width;         // numbers a row: 3 W
    int height;
    int column;        // the thread's number in a row; may lie outside
    int first, end;    // rows it answers for
};
__device__ __forceinline__ Strip strip_of(const Frame& frame, int block, int rows) {
    const int width = LOSS_CHANNELS * frame.width, across = (width + LOSS_THREADS - 1) / LOSS_THREADS;
    const int down = block / across, first = down * rows;
    return {width, frame.height, (block - down * across) * LOSS_THREADS + int(threadIdx.x), first,
            min(first + rows, frame.height)};
}

// A number of the target, times how much its pixel counts, and that.
struct Wanted {
    float value, weight;
};
template <LossPolicy P>
__device__ __forceinline__ Wanted wanted_at(const Frame& frame, const unsigned char* target, const Strip& strip,
                                            int row, int column) {
    const size_t plane = size_t(strip.height) * frame.width;
    const int pixel_column = column / LOSS_CHANNELS;
    const size_t pixel = size_t(row) * frame.width + pixel_column;
    Wanted wanted = {INVERSE_255 * float(target[size_t(row) * strip.width + column]), 1.0f};
    const unsigned char* more = target + LOSS_CHANNELS * plane;
    if constexpr (P.coverage) {
        const float behind = fmaf(-INVERSE_255, float(more[pixel]), 1.0f);
        wanted.value = fmaf(behind, frame.background[column - LOSS_CHANNELS * pixel_column], wanted.value);
        more += plane;
    }
    if constexpr (P.weights) {
        wanted.weight = INVERSE_255 * float(more[pixel]);
        wanted.value *= wanted.weight;
    }
    return wanted;
}

// The sum of a value over the block, in thread 0. Always in the same order.
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

// A window along the row: 6 multiplications of what lies equally far on both sides.
__device__ __forceinline__ float filtered(const float* centre) {
    float sum = window_tap(0) * centre[0];
#pragma unroll
    for (int i = 1; i <= RADIUS; i++)
        sum = fmaf(window_tap(i), centre[-LOSS_CHANNELS * i] + centre[LOSS_CHANNELS * i], sum);
    return sum;
}

// Adds a row's value to the running sums of the eleven rows it is seen from. STEP is the row's number modulo 11,
// counted from the first that the block reads; a sum begins with the row five above its own.
template <int STEP>
__device__ __forceinline__ void add_to_columns(float (&sums)[TAPS], float value) {
#pragma unroll
    for (int slot = 0; slot < TAPS; slot++) {
        const int tap = (STEP - slot + TAPS) % TAPS;
        sums[slot] = tap == 0 ? window_tap(RADIUS) * value : fmaf(window_tap(tap - RADIUS), value, sums[slot]);
    }
}
// Which of them is complete after row STEP: that of the row five above it.
template <int STEP>
constexpr int COMPLETE = (STEP + 1) % TAPS;

// Calls f<STEP>(row) for the rows from `first` to before `end`, STEP counting 0 … 10 over and over.
template <int STEP, class F>
__device__ __forceinline__ void round_of_rows(int row, int end, F& f) {
    if (row >= end) return;
    f.template row<STEP>(row);
    if constexpr (STEP + 1 < TAPS) round_of_rows<STEP + 1>(row + 1, end, f);
}
template <class F>
__device__ __forceinline__ void for_each_row(int first, int end, F& f) {
#pragma unroll 1
    for (int row = first; row < end; row += TAPS) round_of_rows<0>(row, end, f);
}

// ---- Value ----------------------------------------------------------------------------------------------------------

struct LocalMeans {
    float x, y, squares, product;  // of x, y, x² + y², x y
};
__device__ __forceinline__ LocalMeans means_along_row(const float* x, const float* y) {
    LocalMeans m = {window_tap(0) * x[0], window_tap(0) * y[0], window_tap(0) * fmaf(x[0], x[0], y[0] * y[0]),
                    window_tap(0) * (x[0] * y[0])};
#pragma unroll
    for (int i = 1; i <= RADIUS; i++) {
        const float a = x[-LOSS_CHANNELS * i], b = x[LOSS_CHANNELS * i];
        const float c = y[-LOSS_CHANNELS * i], d = y[LOSS_CHANNELS * i];
        m.x = fmaf(window_tap(i), a + b, m.x);
        m.y = fmaf(window_tap(i), c + d, m.y);
        m.squares = fmaf(window_tap(i), fmaf(a, a, fmaf(b, b, fmaf(c, c, d * d))), m.squares);
        m.product = fmaf(window_tap(i), fmaf(a, c, b * d), m.product);
    }
    return m;
}

struct Ssim {
    float value;
    float by_mean, by_square, by_product;  // derivatives by the local means of x, x² and x y
};
__device__ __forceinline__ Ssim ssim_of(const LocalMeans& m) {
    const float means = fmaf(m.x, m.x, m.y * m.y), of_means = m.x * m.y;
    const float a = fmaf(2.0f, of_means, SSIM_C1), b = fmaf(2.0f, m.product - of_means, SSIM_C2);
    const float inverse_c = reciprocal(means + SSIM_C1), inverse_d = reciprocal(m.squares - means + SSIM_C2);
    const float inverse_cd = inverse_c * inverse_d, value = a * b * inverse_cd;
    return {value, 2.0f * (m.y * (b - a) * inverse_cd - m.x * value * (inverse_c - inverse_d)), -value * inverse_d,
            2.0f * a * inverse_cd};
}

template <LossPolicy P>
struct LossSumsRows {
    const LossSumsArgs& args;
    const unsigned char* target;
    float* rows;  // [2][x, y][LOSS_ROW] in shared memory
    Strip strip;
    float next_x, next_y, next_x_margin, next_y_margin;  // of the row that comes next
    float sums[4][TAPS];
    float difference, ssim;

    // A number of the image or the target; 0 outside.
    __device__ __forceinline__ void fetch(int row, int column, float& x, float& y) const {
        x = y = 0.0f;
        if (row < 0 || row >= strip.height || column < 0 || column >= strip.width) return;
        const Wanted wanted = wanted_at<P>(*args.frame, target, strip, row, column);
        x = args.image[size_t(row) * strip.width + column];
        y = wanted.value;
        if constexpr (P.weights) x *= wanted.weight;
    }
    // The thread's columns in shared memory are those that LOSS_MARGIN numbers before it, and the last ones of the row.
    __device__ __forceinline__ void fetch_row(int row) {
        fetch(row, strip.column - LOSS_MARGIN, next_x, next_y);
        if (threadIdx.x < 2 * LOSS_MARGIN)
            fetch(row, strip.column - LOSS_MARGIN + LOSS_THREADS, next_x_margin, next_y_margin);
    }
    template <int STEP>
    __device__ __forceinline__ void row(int row) {
        float *x = rows + (row & 1) * 2 * LOSS_ROW + threadIdx.x, *y = x + LOSS_ROW;
        x[0] = next_x, y[0] = next_y;
        if (threadIdx.x < 2 * LOSS_MARGIN) x[LOSS_THREADS] = next_x_margin, y[LOSS_THREADS] = next_y_margin;
        __syncthreads();
        fetch_row(row + 1);
        x += LOSS_MARGIN, y += LOSS_MARGIN;
        const LocalMeans along = means_along_row(x, y);
        add_to_columns<STEP>(sums[0], along.x);
        add_to_columns<STEP>(sums[1], along.y);
        add_to_columns<STEP>(sums[2], along.squares);
        add_to_columns<STEP>(sums[3], along.product);
        if (strip.column >= strip.width) return;
        if (row >= strip.first && row < strip.end) difference += fabsf(x[0] - y[0]);
        const int complete = row - RADIUS;
        if (complete < strip.first) return;
        constexpr int slot = COMPLETE<STEP>;
        const Ssim at = ssim_of({sums[0][slot], sums[1][slot], sums[2][slot], sums[3][slot]});
        ssim += at.value;
        const size_t plane = size_t(strip.height) * strip.width;
        float* out = args.derivatives + size_t(complete) * strip.width + strip.column;
        out[0] = at.by_mean, out[plane] = at.by_square, out[2 * plane] = at.by_product;
    }
};

template <LossPolicy P>
__global__ void __launch_bounds__(LOSS_THREADS, 6) loss_sums(LossSumsArgs args) {
    __shared__ float rows[2 * 2 * LOSS_ROW];
    const Frame& frame = *args.frame;
    if (frame.overflow) return;
    LossSumsRows<P> walk{args, args.inputs->target, rows, strip_of(frame, int(blockIdx.x), args.rows)};
    walk.fetch_row(walk.strip.first - RADIUS);
    for_each_row(walk.strip.first - RADIUS, walk.strip.end + RADIUS, walk);
    const float difference = block_sum(walk.difference), ssim = block_sum(walk.ssim);
    if (threadIdx.x == 0) args.sums[blockIdx.x] = make_float2(difference, ssim);
}

// ---- Gradient -------------------------------------------------------------------------------------------------------

template <LossPolicy P>
struct LossGradientRows {
    const LossGradientArgs& args;
    const unsigned char* target;
    float* rows;  // [2][3][LOSS_ROW] in shared memory
    Strip strip;
    float l1_weight, ssim_weight;
    float next[3], next_margin[3];
    float x, y, weight;  // of the pixel that is complete next
    float sums[3][TAPS];

    __device__ __forceinline__ void fetch(int row, int column, float (&values)[3]) const {
        values[0] = values[1] = values[2] = 0.0f;
        if (row < 0 || row >= strip.height || column < 0 || column >= strip.width) return;
        const size_t plane = size_t(strip.height) * strip.width;
        const float* at = args.derivatives + size_t(row) * strip.width + column;
        values[0] = at[0], values[1] = at[plane], values[2] = at[2 * plane];
    }
    __device__ __forceinline__ void fetch_row(int row) {
        fetch(row, strip.column - LOSS_MARGIN, next);
        if (threadIdx.x < 2 * LOSS_MARGIN) fetch(row, strip.column - LOSS_MARGIN + LOSS_THREADS, next_margin);
        const int complete = row - RADIUS;
        if (complete < strip.first || complete >= strip.end || strip.column >= strip.width) return;
        const Wanted wanted = wanted_at<P>(*args.frame, target, strip, complete, strip.column);
        x = args.image[size_t(complete) * strip.width + strip.column];
        y = wanted.value, weight = wanted.weight;
        if constexpr (P.weights) x *= weight;
    }
    template <int STEP>
    __device__ __forceinline__ void row(int row) {
        float* shared = rows + (row & 1) * 3 * LOSS_ROW + threadIdx.x;
#pragma unroll
        for (int i = 0; i < 3; i++) {
            shared[i * LOSS_ROW] = next[i];
            if (threadIdx.x < 2 * LOSS_MARGIN) shared[i * LOSS_ROW + LOSS_THREADS] = next_margin[i];
        }
        const float own_x = x, own_y = y, own_weight = weight;
        __syncthreads();
        fetch_row(row + 1);
#pragma unroll
        for (int i = 0; i < 3; i++) add_to_columns<STEP>(sums[i], filtered(shared + i * LOSS_ROW + LOSS_MARGIN));
        const int complete = row - RADIUS;
        if (complete < strip.first || strip.column >= strip.width) return;
        constexpr int slot = COMPLETE<STEP>;
        const float sign = own_x > own_y ? l1_weight : own_x < own_y ? -l1_weight : 0.0f;
        const float by_ssim = fmaf(2.0f * own_x, sums[1][slot], fmaf(own_y, sums[2][slot], sums[0][slot]));
        float gradient = fmaf(-ssim_weight, by_ssim, sign);
        if constexpr (P.weights) gradient *= own_weight;
        args.gradient[size_t(complete) * strip.width + strip.column] = gradient;
    }
};

// The value of the loss, by one block.
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
__global__ void __launch_bounds__(LOSS_THREADS, P.coverage || P.weights ? 7 : 8) loss_gradient(LossGradientArgs args) {
    __shared__ float rows[2 * 3 * LOSS_ROW];
    if (blockIdx.x == 0) {
        finish_loss(args);
        return;
    }
    const Frame& frame = *args.frame;
    if (frame.overflow & (OVERFLOW_VISIBLE | OVERFLOW_INSTANCES)) return;  // the first block may set the other bit
    LossGradientRows<P> walk{args, args.inputs->target, rows, strip_of(frame, int(blockIdx.x) - 1, args.rows)};
    const float numbers = float(LOSS_CHANNELS) * float(frame.width) * float(frame.height);
    walk.l1_weight = (1.0f - args.inputs->dssim_weight) / numbers;
    walk.ssim_weight = args.inputs->dssim_weight / numbers;
    walk.fetch_row(walk.strip.first - RADIUS);
    for_each_row(walk.strip.first - RADIUS, walk.strip.end + RADIUS, walk);
}
