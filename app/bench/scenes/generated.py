"""Makes the benchmark scenes: synthetic, drawn from fixed seeds, the same bits on every run.

S1 is like a room, S2 like a garden, S3 a street with six tiles that hold far too much, S4 a small object;
S1m and S2m are S1 and S2 in Morton order; `small` is the head of S4 on a small picture. World z is up.
Nothing is timed here; `app/bench/cpu.py` and `bench/ladder.py` do that. The order of the random draws is part of the
definition: moving one line moves every number after it, and `make_scene` then raises.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from splatscope.app.bench.scenes import draw
from splatscope.app.bench.scenes.draw import TURN, F, SplatLaw, Splats, Surface
from splatscope.app.bench.scenes.expected import FINGERPRINTS, Fingerprint
from splatscope.kernels.constants import TILE
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Float32, Gaussians

UP = (0.0, 0.0, 1.0)
GRADIENT_SEED = 7
SMALL_COUNT, SMALL_WIDTH, SMALL_HEIGHT = 20_000, 320, 240
ROUNDING = 0.01  # trends this close differ by rounding; other draws move at least one by tenths
NEAR_PLANE = 0.2  # world units; that of the 2023 rasteriser, so that counts compare with published ones
MORTON_SUFFIX = "m"


@dataclass(frozen=True, eq=False)
class BenchmarkScene:
    """Holds splats and the one camera they are measured from."""

    name: str
    gaussians: Gaussians
    camera: Camera
    bits_match: bool  # False: this processor's exp, log or product rounds some values the other way


@dataclass(frozen=True)
class SceneRecipe:
    """Holds the facts about a scene that are not drawn at random."""

    seed: int
    count: int
    eye: tuple[float, float, float]
    target: tuple[float, float, float]
    width: int
    height: int
    focal: float  # px
    build: Callable[[Generator, int, Camera], Splats]


def make_scene(name: str) -> BenchmarkScene:
    """Makes the scene of that name, one of SCENE_NAMES.

    S2 takes about 14 s and 3 GB, S1 4 s, S4 0.2 s. Raises InputError for an unknown name and where NumPy
    draws other numbers than those the scene is defined by.
    """
    camera = scene_camera(name)
    if name == "small":
        whole = make_scene("S4")
        return BenchmarkScene(name, _head(whole.gaussians, SMALL_COUNT), camera, whole.bits_match)
    recipe = RECIPES[name.removesuffix(MORTON_SUFFIX)]
    rng = np.random.Generator(np.random.PCG64(recipe.seed))
    splats = recipe.build(rng, recipe.count, camera)
    # Memory order is random, as after many rounds of densification.
    splats = _reordered(splats, rng.permutation(recipe.count))
    if name.endswith(MORTON_SUFFIX):
        splats = _reordered(splats, _morton_order(splats.means))
    sh0 = F(0.6) * draw.normal(rng, recipe.count, 1, 3)
    sh_rest = F(0.08) * draw.normal(rng, recipe.count, 15, 3)
    bits_match = _check(name, {**splats._asdict(), "sh0": sh0, "sh_rest": sh_rest})
    return BenchmarkScene(name, Gaussians(*splats, sh=np.concatenate([sh0, sh_rest], axis=1)), camera, bits_match)


def scene_camera(name: str) -> Camera:
    """Returns the camera of a scene without making the scene. Raises InputError for an unknown name."""
    if name not in SCENE_NAMES:
        raise InputError(f"There is no benchmark scene {name!r}; choose from {', '.join(SCENE_NAMES)}.")
    if name == "small":
        return scene_camera("S4").resized(SMALL_WIDTH, SMALL_HEIGHT)
    recipe = RECIPES[name.removesuffix(MORTON_SUFFIX)]
    matrix = _look_at(recipe.eye, recipe.target)
    width, height = recipe.width, recipe.height
    return Camera.from_matrix(matrix, width, height, recipe.focal, recipe.focal, width / 2, height / 2, NEAR_PLANE)


def upstream_gradient(camera: Camera | str) -> Float32:
    """Returns a fixed dL/dimage [H, W, 3] as of an L1 loss: ±1 / (3HW), signs drawn from seed 7."""
    camera = scene_camera(camera) if isinstance(camera, str) else camera
    rng = np.random.Generator(np.random.PCG64(GRADIENT_SEED))
    signs = rng.integers(0, 2, (3, camera.height, camera.width), dtype=np.int8) * 2 - 1
    return np.ascontiguousarray(signs.transpose(1, 2, 0).astype(F) / F(signs.size))


def fingerprint(array: Float32) -> Fingerprint:
    """Returns the checksum of the bits, and the trend along memory order, which rounding cannot move."""
    flat = array.reshape(-1)
    trend = np.dot(flat, np.linspace(-1, 1, flat.size)) / np.sqrt(flat.size)
    return Fingerprint(f"{zlib.crc32(array.tobytes()):08x}", float(trend))


def _check(name: str, arrays: dict[str, Float32]) -> bool:
    """Returns True if every bit is right, False if only rounding differs; raises InputError otherwise."""
    bits_match = True
    for key, array in arrays.items():
        expected, got = FINGERPRINTS[name][key], fingerprint(array)
        if got.crc == expected.crc:
            continue
        bits_match = False
        if not abs(got.trend - expected.trend) < ROUNDING:
            raise InputError(
                f"Benchmark scene {name}: {key} has checksum {got.crc}, expected {expected.crc}. NumPy "
                f"{np.__version__} draws other random numbers than those the scene is defined by, so figures could "
                "not be compared; install the NumPy named in constraints.txt."
            )
    return bits_match


def _head(gaussians: Gaussians, count: int) -> Gaussians:
    g = gaussians
    return Gaussians(
        g.means[:count], g.log_scales[:count], g.quats[:count], g.logit_opacities[:count], sh=g.sh[:count].copy()
    )


def _reordered(splats: Splats, order: NDArray[np.integer]) -> Splats:
    return Splats(*(np.ascontiguousarray(array[order]) for array in splats))


def _look_at(eye: tuple[float, float, float], target: tuple[float, float, float]) -> Float32:
    """Returns view_from_world [4, 4], OpenCV axes, image up along world z; rounded to float32 by definition."""
    forward = np.subtract(target, eye)
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, UP)
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    matrix = np.eye(4)
    matrix[:3, :3] = rotation
    matrix[:3, 3] = -rotation @ np.asarray(eye)
    return matrix.astype(F)


def _morton_order(points: Float32) -> NDArray[np.integer]:
    """Returns the order along a Z curve of 1024 cells a side over the middle 99% of positions."""
    low, high = np.percentile(points, 0.5, axis=0), np.percentile(points, 99.5, axis=0)
    cell = np.clip((points - low) / (high - low) * 1023, 0, 1023).astype(np.uint64)
    code = np.zeros(len(points), np.uint64)
    for bit in range(10):
        for axis in range(3):
            code |= ((cell[:, axis] >> np.uint64(bit)) & np.uint64(1)) << np.uint64(3 * bit + axis)
    return np.argsort(code, kind="stable")


# --- S1: a room ------------------------------------------------------------------------------------

ROOM = SplatLaw(0.0053, 1.37, 1.43, 1.38, faint_share=0.83, faint=(0.004, 0.085), solid=0.25, jitter=0.02)


def _room(rng: Generator, count: int, camera: Camera) -> Splats:
    """Builds the walls of an 8 x 6 x 2.8 box (60%), 48 boxes and ellipsoids in it, and 4% floating in the air."""
    floating, on_walls = int(0.04 * count), int(0.60 * count)
    surfaces = [draw.box(rng, on_walls, (-4, -3, 0), (4, 3, 2.8), inward=True)]
    surfaces += _furniture(rng, count - floating - on_walls, camera)
    air = draw.uniform(rng, floating, 3) * np.array([7.8, 5.8, 2.7], F) + np.array([-3.9, -2.9, 0.05], F)
    surfaces.append(Surface(air, draw.random_normals(rng, floating)))
    surface = draw.join(surfaces)
    distance = np.linalg.norm(surface.points - np.array([0, 0, 1.4], F), axis=1)
    return draw.splats_on(rng, surface, ROOM, 0.55 + 0.15 * distance, largest=0.35)


def _furniture(rng: Generator, count: int, camera: Camera) -> list[Surface]:
    pieces = 48
    centers = draw.uniform(rng, pieces, 3) * np.array([7.0, 5.2, 1.1], F) + np.array([-3.5, -2.6, 0.15], F)
    sizes = 0.25 + draw.uniform(rng, pieces, 3) * np.array([0.9, 0.9, 0.7], F)
    kinds = draw.uniform(rng, pieces)
    eye = np.asarray(RECIPES["S1"].eye, F)
    sizes[np.linalg.norm(centers - eye, axis=1) < 1.5] *= F(0.3)  # nothing big right before the lens
    area = sizes[:, 0] * sizes[:, 1] + sizes[:, 1] * sizes[:, 2] + sizes[:, 0] * sizes[:, 2]
    shares = np.floor(area / area.sum() * count).astype(int)
    shares[0] += count - shares.sum()
    surfaces = []
    for center, size, kind, share in zip(centers, sizes, kinds, shares, strict=True):
        if kind < 0.5:
            surfaces.append(draw.box(rng, share, center - size / 2, center + size / 2))
        else:
            surfaces.append(draw.ellipsoid(rng, share, center, size / 2))
    return surfaces


# --- S2: a garden ----------------------------------------------------------------------------------

GARDEN = SplatLaw(0.0015, 1.55, 1.7, 1.4, faint_share=0.87, faint=(0.004, 0.07), solid=0.2, jitter=0.01)
GARDEN_SHARES = {"table": 0.05, "plant": 0.05, "ground": 0.34, "hedge": 0.30, "far": 0.20, "air": 0.06}


def _garden(rng: Generator, count: int, camera: Camera) -> Splats:
    """Builds a plant on a table, ground, a hedge around it and a far shell."""
    n = {part: int(share * count) for part, share in GARDEN_SHARES.items()}
    n["far"] += count - sum(n.values())
    angle = draw.uniform(rng, n["table"]) * TURN
    radius = np.sqrt(draw.uniform(rng, n["table"])) * F(0.85)
    table = Surface(draw.cylindrical(radius, angle, np.full_like(radius, 0.72)), draw.constant_normals(n["table"], UP))
    leaves = draw.ellipsoid(rng, n["plant"], (0, 0, 1.1), (0.45, 0.45, 0.4)).points
    plant = Surface(leaves, draw.random_normals(rng, n["plant"]))
    angle = draw.uniform(rng, n["ground"]) * TURN
    radius = F(9) * draw.uniform(rng, n["ground"]) ** 0.8
    height = F(0.03) * draw.normal(rng, n["ground"])
    ground = Surface(draw.cylindrical(radius, angle, height), draw.constant_normals(n["ground"], UP))
    angle = draw.uniform(rng, n["hedge"]) * TURN
    radius = F(6) + F(1.6) * np.abs(draw.normal(rng, n["hedge"]))
    height = F(2.6) * draw.uniform(rng, n["hedge"])
    hedge = Surface(draw.cylindrical(radius, angle, height), draw.random_normals(rng, n["hedge"]))
    angle = draw.uniform(rng, n["far"]) * TURN
    radius = F(10) + F(30) * draw.uniform(rng, n["far"]) ** 2
    height = (radius * (F(0.75) * draw.uniform(rng, n["far"]) ** 1.3)).astype(F, copy=False)
    far = Surface(draw.cylindrical(radius, angle, height), draw.random_normals(rng, n["far"]))
    points = (draw.uniform(rng, n["air"], 3) - F(0.5)) * np.array([10, 10, 3], F) + np.array([0, 0, 1.6], F)
    air = Surface(points, draw.random_normals(rng, n["air"]))
    surface = draw.join([table, plant, ground, hedge, far, air])
    distance = np.linalg.norm(surface.points - np.array([0, 0, 0.7], F), axis=1)
    factor = np.maximum(0.7, distance / 2.2) ** 0.9
    return draw.splats_on(rng, surface, GARDEN, factor, largest=0.1 + 0.25 * distance)


# --- S3: a street ----------------------------------------------------------------------------------

STREET = SplatLaw(0.010, 0.9, 0.9, 1.3, faint_share=0.55, faint=(0.004, 0.25), solid=0.35, jitter=0.02)
CLUSTERS = (  # (splats, tile column, tile row) of the crowded tiles
    (130_000, 51, 24),
    (90_000, 54, 26),
    (60_000, 47, 25),
    (45_000, 57, 23),
    (30_000, 43, 26),
    (26_000, 60, 25),
)
CLUSTER_OPACITY = (0.0042, 0.012)
HIDDEN_LOGIT = F(-4.6)  # opacity 0.01: nothing before a cluster hides it


def _street(rng: Generator, count: int, camera: Camera) -> Splats:
    """Builds a street canyon of light tiles, and six far, faint clusters that each fall into about one tile."""
    in_street = count - sum(cluster[0] for cluster in CLUSTERS)
    on_ground, on_fronts = int(0.35 * in_street), int(0.55 * in_street)
    floating = in_street - on_ground - on_fronts
    x = F(2) + F(110) * draw.uniform(rng, on_ground) ** 1.6
    y = (draw.uniform(rng, on_ground) - F(0.5)) * F(18)
    z = F(0.02) * draw.normal(rng, on_ground)
    ground = Surface(np.stack([x, y, z], 1), draw.constant_normals(on_ground, UP))
    x = F(2) + F(110) * draw.uniform(rng, on_fronts) ** 1.6
    side = np.where(draw.uniform(rng, on_fronts) < 0.5, -1, 1).astype(F)
    z = F(14) * draw.uniform(rng, on_fronts)
    fronts = Surface(np.stack([x, side * 9, z], 1), np.stack([0 * x, -side, 0 * x], 1))
    points = draw.uniform(rng, floating, 3) * np.array([80, 18, 14], F) + np.array([4, -9, 0], F)
    surface = draw.join([ground, fronts, Surface(points, draw.random_normals(rng, floating))])
    distance = surface.points[:, 0]
    splats = draw.splats_on(rng, surface, STREET, 0.35 + distance / 12, largest=0.05 + 0.02 * distance)
    _clear_the_sight(splats, camera)
    parts = [splats, *(_cluster(rng, camera, *cluster) for cluster in CLUSTERS)]
    return Splats(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _tile_center(column: int, row: int) -> tuple[float, float]:
    return column * TILE + TILE / 2, row * TILE + TILE / 2


def _clear_the_sight(splats: Splats, camera: Camera) -> None:
    """Makes what lies before a cluster nearly transparent, in place."""
    matrix = camera.matrix.astype(F)
    in_view = splats.means @ matrix[:3, :3].T + matrix[:3, 3]
    depth = np.maximum(in_view[:, 2], 0.1)
    u = camera.fx * in_view[:, 0] / depth + camera.cx
    v = camera.fy * in_view[:, 1] / depth + camera.cy
    for _, column, row in CLUSTERS:
        x, y = _tile_center(column, row)
        splats.logit_opacities[(np.abs(u - x) < 24) & (np.abs(v - y) < 24)] = HIDDEN_LOGIT


def _cluster(rng: Generator, camera: Camera, count: int, column: int, row: int) -> Splats:
    """Builds faint splats of 0.25 to 1.2 px, 60 to 120 units away, within 5.5 px of a tile's centre."""
    offset = np.clip(2.6 * draw.normal(rng, count, 2), -5.5, 5.5)
    depth = F(60) + F(60) * draw.uniform(rng, count)
    x, y = _tile_center(column, row)
    x_in_view = (x + offset[:, 0] - camera.cx) / camera.fx * depth
    y_in_view = (y + offset[:, 1] - camera.cy) / camera.fy * depth
    in_view = np.stack([x_in_view, y_in_view, depth], 1)
    matrix = camera.matrix.astype(F)
    means = ((in_view - matrix[:3, 3]) @ matrix[:3, :3]).astype(F, copy=False)
    scales_px = draw.log_uniform(draw.uniform(rng, count, 3), 0.25, 1.2)
    log_scales = np.log(scales_px * (depth / camera.fx)[:, None]).astype(F)
    quats = draw.quats_from_normals(draw.random_normals(rng, count), draw.uniform(rng, count) * TURN)
    logits = draw.logit(draw.log_uniform(draw.uniform(rng, count), *CLUSTER_OPACITY))
    return Splats(means, log_scales, quats, logits)


# --- S4: a small object ----------------------------------------------------------------------------

OBJECT = SplatLaw(0.010, 0.7, 0.8, 1.2, faint_share=0.45, faint=(0.004, 0.25), solid=0.35, jitter=0.01)


def _object(rng: Generator, count: int, camera: Camera) -> Splats:
    """Builds an ellipsoid over a slab, and 5% of the splats floating around them."""
    on_ellipsoid, floating = count // 2, count // 20
    ellipsoid = draw.ellipsoid(rng, on_ellipsoid, (0, 0, 0), (0.75, 0.6, 0.9))
    slab = draw.box(rng, count - on_ellipsoid - floating, (-1.2, -1.2, -0.95), (1.2, 1.2, -0.8))
    points = (draw.uniform(rng, floating, 3) - F(0.5)) * F(2.6)
    surface = draw.join([ellipsoid, slab, Surface(points, draw.random_normals(rng, floating))])
    return draw.splats_on(rng, surface, OBJECT, 1.0, largest=0.2)


RECIPES = {
    "S1": SceneRecipe(101, 1_593_000, (-1.5, -1.0, 1.5), (2.2, 1.1, 1.05), 1557, 1038, 1130.0, _room),
    "S2": SceneRecipe(202, 5_834_000, (-2.7, -1.6, 1.75), (0.15, 0.1, 0.55), 1297, 840, 960.0, _garden),
    "S3": SceneRecipe(303, 1_900_000, (0, 0, 1.7), (100, 0, 2.2), 1600, 896, 1150.0, _street),
    "S4": SceneRecipe(404, 100_000, (2.6, -2.4, 1.6), (0, 0, 0), 800, 600, 700.0, _object),
}
SCENE_NAMES = ("S1", "S2", "S3", "S4", "S1m", "S2m", "small")
