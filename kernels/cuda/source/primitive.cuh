// Names the primitives, and what the kernels must know of each.
//
// All three have one form. With d the distance of a pixel from the projected mean, N = dᵀ Σ⁻¹ d and Q = 1 + tilt · d,
// the squared distance from the mean, in sigmas, is
//     N / (Q² + closeness N).
// gs3d: Q is 1 and closeness is 0, and Σ is widened by the filter (Kerbl and Kopanas et al. 2023). gs2d: closeness is
// 0, and a circle of fixed size on the image takes over where the disk is thinner than it (Huang et al. 2024). gut3d:
// neither is 0, and Σ is not widened (Wu et al. 2025). Derivation: tilted.cuh. Everything that bins, sorts, schedules
// and walks lists serves all three without knowing which.
#pragma once
#include "math.cuh"

enum class Primitive : int {
    gs3d,   // a Gaussian, flattened onto the image plane
    gs2d,   // a disk in space
    gut3d,  // a Gaussian, evaluated along each pixel's ray
};
// True where the form has a tilt: a pixel's depth differs from the mean's.
__device__ constexpr bool is_tilted(Primitive p) { return p != Primitive::gs3d; }
