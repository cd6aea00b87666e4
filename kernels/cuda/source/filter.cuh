// How splats are kept from slipping between pixels, forward and backward.
//
// The covariance on the image is widened by some px² along both axes. A splat much smaller than a pixel then covers
// far more than it should; where that is made good, its opacity is multiplied by √(determinant before / after), but by
// no less than COMPENSATION_MIN (Yu et al. 2024, "Mip-Splatting"). The factor is differentiated like everything else.
//
// Policy values of filter: plain, widened by DILATION (2023); compensated, likewise, and made good; mip, widened by
// MIP_DILATION and made good. A scene looks right under the filter that it was trained with.
#pragma once
#include "math.cuh"

enum class Filter : int { plain, compensated, mip };

constexpr float MIP_DILATION = 0.1f;       // px²
constexpr float COMPENSATION_MIN = 0.005f;

template <Filter F>
constexpr float DILATION_OF = F == Filter::mip ? MIP_DILATION : DILATION;

// The determinant after the widening; `thin` is the one before, `trace` that of the covariance before.
template <Filter F>
__device__ __forceinline__ float widened(float thin, float trace) {
    constexpr float D = DILATION_OF<F>;
    return thin + (D * trace + D * D);
}

// log2 of the opacity, given that without compensation. `inverse` = 1 / determinant.
template <Filter F>
__device__ __forceinline__ float filtered_opacity(float log2_opacity, float thin, float inverse) {
    if constexpr (F == Filter::plain) return log2_opacity;
    return log2_opacity + 0.5f * log2_approx(fmaxf(thin * inverse, COMPENSATION_MIN * COMPENSATION_MIN));
}

// The gradient of the compensation. With rows x and y [3] of the splat's axes on the image, px, and n = x × y, the
// determinant before the widening is |n|² and after it |n|² + D (|x|² + |y|²) + D², so
//     dL/dx = across (y × n) − along x,  dL/dy = across (n × x) − along y,
// a form in which nothing cancels for needles.
struct Compensation {
    float across, along;
};
template <Filter F>
__device__ __forceinline__ Compensation compensation_gradient(float by_log_opacity, float thin, float trace,
                                                              float determinant) {
    if constexpr (F == Filter::plain) return {0.0f, 0.0f};
    constexpr float D = DILATION_OF<F>;
    const float inverse = reciprocal(determinant);
    if (!(thin * inverse > COMPENSATION_MIN * COMPENSATION_MIN)) return {0.0f, 0.0f};
    const float each = by_log_opacity * inverse;
    return {each * (D * trace + D * D) * reciprocal(thin), each * D};
}
