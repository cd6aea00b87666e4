// Keeps one pixel of the forward pass and blends a splat into it.
//
// Variants: four ways to mark a pixel as done, two rules for when it is done, three caps on alpha. Not here: how alpha
// is computed (staged.cuh), and the walk over a list (blend_range.cuh).
#pragma once
#include "staged_tilted.cuh"

enum class Stop : int {
    exclusive,  // the splat that would take T below 1e-4 is not blended
    inclusive,  // that splat is blended, as the last one
};
enum class SubtileList : int {
    ballot,     // a warp visits the set bits of 32 staged splats at a time
    compacted,  // a warp first lists the splats it will visit, a batch at a time
};

struct BlendPolicy {
    Primitive primitive = Primitive::gs3d;
    Layout layout = Layout::packed48;
    Map map = Map::mixed;
    Subtile subtile = Subtile::ellipse;
    Fetch splat_fetch = Fetch::shared;
    SubtileList subtile_list = SubtileList::compacted;
    Exponential exp = Exponential::ex2;
    AlphaCap alpha_cap = AlphaCap::cap99;
    Stop stop = Stop::exclusive;
    bool log2_opacity = true;  // opacity enters the exponent instead of being multiplied
    bool branchless = true;    // pixels that a splat misses blend it with alpha 0, without a branch
    bool sign_T = false;       // a negative T marks a pixel as done
    bool running_T = true;     // T goes on below the stop; a splat's weight is the decrease of `left`
    bool training = false;     // writes last and entry_counts
    bool compaction = false;   // training: the list keeps only splats that were blended somewhere in the tile
    bool cmask = false;        // the top bits of each list entry name the warps that blended it
    bool wants_depth = false;
};

struct Pixel {
    float T;     // transmittance; with sign_T negative once the pixel is done
    float left;  // running_T: T, which stays as it was once the pixel is done
    float red, green, blue;
    float depth;       // weighted sum of depths, if depth is wanted
    bool is_done;      // used with neither sign_T nor running_T
    unsigned blended;  // training: a bit for each of up to 32 splats, see `note`
    unsigned last;     // training: entries up to and with the last splat blended
};

// Returns a pixel with nothing blended. A pixel outside the image is done from the start.
template <BlendPolicy P>
__device__ __forceinline__ Pixel new_pixel(bool is_outside) {
    const float T = !is_outside ? 1.0f : P.running_T ? 0.0f : P.sign_T ? -1.0f : 1.0f;
    return {T, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f, is_outside, 0u, 0u};
}
template <BlendPolicy P>
__device__ __forceinline__ bool is_going_on(const Pixel& pixel) {
    if constexpr (P.running_T) return pixel.T >= TRANSMITTANCE_STOP;
    return P.sign_T ? pixel.T > 0.0f : !pixel.is_done;
}
// Returns the transmittance, negative once the pixel is done.
template <BlendPolicy P>
__device__ __forceinline__ float signed_T(const Pixel& pixel) {
    const float left = P.running_T ? pixel.left : fabsf(pixel.T);
    return is_going_on<P>(pixel) ? left : -left;
}

template <BlendPolicy P>
__device__ __forceinline__ void add_to_pixel(Pixel& pixel, const Staged& s, float depth, float weight) {
    pixel.red = fmaf(weight, s.red, pixel.red);
    pixel.green = fmaf(weight, s.green, pixel.green);
    pixel.blue = fmaf(weight, s.blue, pixel.blue);
    if constexpr (P.wants_depth) pixel.depth = fmaf(weight, depth, pixel.depth);
}

// Training: notes whether a splat was blended; the argument's sign bit tells. With `ballot`, `bit` is the splat's bit.
// With `compacted`, the word moves up by one for each splat, so that the newest is bit 0.
template <BlendPolicy P>
__device__ __forceinline__ void note(Pixel& pixel, unsigned blended, unsigned bit) {
    if constexpr (!P.training) return;
    if constexpr (P.subtile_list == SubtileList::compacted)
        pixel.blended = __funnelshift_l(blended, pixel.blended, 1);
    else if (blended >> 31) pixel.blended |= bit;
}
constexpr unsigned SIGN_BIT = 1u << 31;

// Returns the depth of a splat at a pixel of the thread, for a disk in units of near.
template <BlendPolicy P, class E>
__device__ __forceinline__ float depth_at(const Staged& s, const E& e, int row) {
    if constexpr (P.primitive == Primitive::gs2d) return e.q[row] * e.inverse[row];
    else if constexpr (P.primitive == Primitive::gut3d) return s.depth * (e.q[row] * e.inverse[row]);
    else return s.depth;
}

// Blends one splat into one pixel; if branchless, a splat that misses the pixel is blended with alpha 0.
template <BlendPolicy P>
__device__ __forceinline__ void blend_pixel(Pixel& pixel, const Staged& s, float depth, float uncapped, unsigned bit) {
    constexpr bool IS_INCLUSIVE = P.stop == Stop::inclusive;
    constexpr float CAP = cap_of(P.alpha_cap);
    if constexpr (P.running_T) {
        // T never rises, so once below the stop it stays there. Until then, T and left are the same.
        const float before = pixel.T;
        if (uncapped >= ALPHA_MIN) pixel.T = __fmaf_rn(-before, fminf(uncapped, CAP), before);
        const bool goes_on = (IS_INCLUSIVE ? before : pixel.T) >= TRANSMITTANCE_STOP;
        const float left = goes_on ? pixel.T : pixel.left;
        const float change = left - pixel.left;  // below 0 if it was blended, else +0
        add_to_pixel<P>(pixel, s, depth, -change);
        note<P>(pixel, __float_as_uint(change), bit);
        pixel.left = left;
        return;
    }
    if constexpr (P.sign_T) {
        // Alpha 0 leaves T unchanged, and a negative T stays below the stop, so a pixel that is done never blends
        // again.
        const bool is_hit = uncapped >= ALPHA_MIN;
        const float alpha = is_hit ? fminf(uncapped, CAP) : 0.0f;
        const float after = __fmaf_rn(-pixel.T, alpha, pixel.T);
        const bool is_above = after >= TRANSMITTANCE_STOP, goes_on = IS_INCLUSIVE ? pixel.T > 0.0f : is_above;
        add_to_pixel<P>(pixel, s, depth, goes_on ? pixel.T * alpha : 0.0f);
        note<P>(pixel, is_hit && goes_on ? SIGN_BIT : 0u, bit);
        if constexpr (IS_INCLUSIVE) pixel.T = !goes_on ? pixel.T : is_above ? after : -after;
        else pixel.T = goes_on ? after : -fabsf(pixel.T);
        return;
    }
    const float alpha = fminf(uncapped, CAP);
    const float after = __fmaf_rn(-pixel.T, alpha, pixel.T);
    const bool is_above = after >= TRANSMITTANCE_STOP;
    if constexpr (P.branchless) {
        const bool is_hit = !pixel.is_done && alpha >= ALPHA_MIN;
        const bool is_blended = is_hit && (IS_INCLUSIVE || is_above);
        add_to_pixel<P>(pixel, s, depth, is_blended ? pixel.T * alpha : 0.0f);
        note<P>(pixel, is_blended ? SIGN_BIT : 0u, bit);
        pixel.is_done |= is_hit && !is_above;
        pixel.T = is_blended ? after : pixel.T;
    } else {
        const bool is_hit = !pixel.is_done && alpha >= ALPHA_MIN, is_blended = is_hit && (IS_INCLUSIVE || is_above);
        note<P>(pixel, is_blended ? SIGN_BIT : 0u, bit);
        if (!is_hit) return;
        pixel.is_done = !is_above;
        if (!is_blended) return;
        add_to_pixel<P>(pixel, s, depth, pixel.T * alpha);
        pixel.T = after;
    }
}
