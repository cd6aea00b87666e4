"""Defines the numbers that determine the picture. Every backend reads them from here.

The values are the 2023 rasteriser's (Kerbl and Kopanas et al.), with pixel centres at +0.5.
"""

TILE = 16  # pixels along each side of a tile
DILATION = 0.3  # px^2 added to both diagonals of the projected covariance (the low-pass filter)
MIP_DILATION = 0.1  # px^2, the dilation for scenes trained with Mip-Splatting's filter
COMPENSATION_MIN = 0.005  # least factor on the opacity that makes up for the dilation
# alpha = min(cap, opacity * falloff); the gradient ignores the cap. This is 0.99 rounded to float32. Two capped splats
# leave a transmittance of (1 - cap)^2: slightly below 1e-4 with this value. With 0.99 it would be exactly 1e-4, and
# rounding would decide whether the pixel stops.
ALPHA_CAP = 0.9900000095367432
# The caps by name (`BlendPolicy.alpha_cap`). "none" is 1 - 2^-20: the backward pass divides by 1 - alpha.
ALPHA_CAPS = {"cap99": ALPHA_CAP, "cap999": 0.9990000128746033, "none": 1.0 - 2.0**-20}
ALPHA_MIN = 1.0 / 255.0  # a splat weaker than this at a pixel is skipped there
TRANSMITTANCE_STOP = 1e-4  # a pixel stops before the splat that would bring its transmittance below this
JACOBIAN_MARGIN = 0.3  # x/z inside the Jacobian may leave the image by this share of half its size
SPHERE_SIGMAS = 3.36  # slightly more than sqrt(2 ln 255) standard deviations; no splat reaches ALPHA_MIN beyond
NEAR = 0.01  # camera z below which a splat is dropped (0.2 for parity with the 2023 rasteriser)

SH_C0 = 0.28209479177387814
SH_C1 = 0.4886025119029199
SH_C2 = (1.0925484305920792, -1.0925484305920792, 0.31539156525252005, -1.0925484305920792, 0.5462742152960396)
SH_C3 = (
    -0.5900435899266435,
    2.890611442640554,
    -0.4570457994644658,
    0.3731763325901154,
    -0.4570457994644658,
    1.445305721320277,
    -0.5900435899266435,
)
SH_COEFFICIENTS = {1: 0, 4: 1, 9: 2, 16: 3}  # rows of `sh` -> degree
