// The filter that keeps splats from slipping between pixels, forward and backward.
//
// It widens the covariance on the image by some px² along both axes. A splat much smaller than a pixel then covers far
// more than it should. Compensation makes up for that: it multiplies the opacity by √(determinant before / after), but
// by no less than COMPENSATION_MIN (Yu et al. 2024, "Mip-Splatting"). The factor is differentiated like everything
// else.
//
// A scene looks right under the filter that it was trained with. Policy values of `filter`:
// - plain: widened by DILATION, no compensation (2023);
// - compensated: widened by DILATION, with compensation;
// - mip: widened by MIP_DILATION, with compensation.
#pragma once
#include "math.cuh"

enum class Filter : int { plain, compensated, mip };

constexpr float MIP_DILATION = 0.1f;       // px²
constexpr float COMPENSATION_MIN = 0.005f;

template <Filter F>
constexpr float DILATION_OF = F == Filter::mip ? MIP_DILATION : DILATION;

// Returns the determinant after widening. `thin` and `trace` are determinant and trace before it.
template <Filter F>
__device__ __forceinline__ float widened(float thin, float trace) {
    constexpr float D = DILATION_OF<F>;
    return thin + (D * trace + D * D);
}

// Adds the compensation to log2 of the opacity. `inverse` is 1 / determinant after widening.
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
