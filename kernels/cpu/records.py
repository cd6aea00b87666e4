"""Names the numbers that stages pass to each other: the record of a projected splat, and the packed camera.

A record is sixteen float32, one cache line, addressed as `slot * RECORD + field`. Its falloff is whitened: with
d = pixel - mean, u = A dx + B dy and v = C dy, alpha = 2^(POWER - u^2 - v^2). This form does not cancel for needles and
gives the gradient of the covariance without an inverse. Each visible splat has a slot; slots follow scene order. Read
`project.py` next.
"""

from __future__ import annotations

import numpy as np

from splatscope.kernels.constants import DILATION, JACOBIAN_MARGIN, MIP_DILATION, TILE
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.types import Camera, Float32

RECORD = 16  # float32 per record
A, B, C = (0, 1, 2)  # whitening W = [[A, B], [0, C]], 1/px: W^T W is half the conic times log2(e)
POWER = 3  # log2(opacity)
RED, GREEN, BLUE = 4, 5, 6
DEPTH = 7  # camera z, world units
MEAN_X, MEAN_Y = 8, 9  # px
CUTOFF = 10  # largest u^2 + v^2 at which alpha reaches 1/255, plus the possible rounding error
HALF_WIDTH, HALF_HEIGHT = 11, 12  # px, half the size of the box that decides tiles
EXTREME = 13  # px, height above the mean of the ellipse's rightmost point
SLOPE = 14  # slope of the line through the centres of the ellipse's rows: d(x) / d(height)
REACH = 15  # px, 1 / A
OFFSET_U, OFFSET_V = 11, 12  # in a staged copy: u and v at the centre of the tile
# Disks and Gaussians along rays (tilted.py) replace fields by these once tiles are known:
TILT_X, TILT_Y, CLOSENESS = 13, 14, 15
CIRCLE_X, CIRCLE_Y = 8, 9  # in a staged copy: centre of a disk's circle from the centre of the tile, px
AT_CENTER = 10  # in a staged copy: Q at the centre of the tile
FLAT, DISK, RAY = 0, 1, 2  # values of PRIMITIVE
PRIMITIVES = {"3dgs": FLAT, "2dgs": DISK, "3dgut": RAY}

# The packed camera and filter: float32, so that no kernel computes in double precision by accident.
ROTATION = 0  # 9 values, rows of view_from_world
POSITION, POSITION_REST = (9, 12)  # 3 + 3 values: the camera centre as a sum of two float32
FOCAL_X, FOCAL_Y, CENTER_X, CENTER_Y, NEAR_Z = 15, 16, 17, 18, 19
HELD_LEFT, HELD_RIGHT, HELD_TOP, HELD_BOTTOM = (20, 21, 22, 23)  # limits of x/z and y/z inside the Jacobian
FAR_X, FAR_Y = 24, 25  # px, right and lower end of the tiles
WIDENING = 26  # px^2, the filter's dilation
COMPENSATES = 27  # not 0: opacity makes up for the widening
PRIMITIVE = 28
CAMERA_SIZE = 29


def pack_camera(camera: Camera, filter: str = "plain", primitive: Primitive = "3dgs") -> Float32:
    """Packs the camera, a filter of `ProjectPolicy` and the primitive as float32 [29].

    Subtracting POSITION and then POSITION_REST keeps scenes far from the origin sharp.
    """
    packed = np.zeros(CAMERA_SIZE, np.float32)
    packed[ROTATION : ROTATION + 9] = camera.matrix[:3, :3].ravel()
    packed[POSITION : POSITION + 3] = camera.position
    packed[POSITION_REST : POSITION_REST + 3] = camera.position - packed[POSITION : POSITION + 3]
    margin_x = JACOBIAN_MARGIN * 0.5 * camera.width / camera.fx
    margin_y = JACOBIAN_MARGIN * 0.5 * camera.height / camera.fy
    packed[FOCAL_X:] = (
        camera.fx,
        camera.fy,
        camera.cx,
        camera.cy,
        camera.near,
        -camera.cx / camera.fx - margin_x,
        (camera.width - camera.cx) / camera.fx + margin_x,
        -camera.cy / camera.fy - margin_y,
        (camera.height - camera.cy) / camera.fy + margin_y,
        TILE * camera.tiles[1],
        TILE * camera.tiles[0],
        MIP_DILATION if filter == "mip" else DILATION,
        filter != "plain",
        PRIMITIVES[primitive],
    )
    return packed
