"""Draws photographs of a cube on a turntable, with masks: the cube turns, camera and background stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIZE = (400, 300)  # px
FOCAL = 430.0  # px
STEP = 12.0  # degrees between two photographs
DISTANCE, HEIGHT = 5.0, 1.6  # of the camera; the cube reaches from -1 to 1
TEXELS = 320  # along a face
GRAIN = (4, 10, 24, 60, 120)  # how many grains there are along a face, one layer over the other


def photograph_cube(count: int) -> tuple[list[Image.Image], list[Image.Image], NDArray[np.float64]]:
    """Returns photographs, masks (white: the cube), and view_from_world [count, 4, 4] as if the camera moved."""
    rng = np.random.default_rng(3)
    faces = [_texture(rng) for _ in range(6)]
    behind = _texture(rng).resize(SIZE)
    cameras = np.stack([_camera(np.radians(STEP * k)) for k in range(count)])
    pictures, masks = zip(*(_photograph(camera, faces, behind) for camera in cameras), strict=True)
    return list(pictures), list(masks), cameras


def _texture(rng: np.random.Generator) -> Image.Image:
    layers = [Image.fromarray(rng.integers(0, 255, (grains, grains, 3), np.uint8)) for grains in GRAIN]
    total = sum(np.asarray(layer.resize((TEXELS, TEXELS), Image.Resampling.BICUBIC), np.float64) for layer in layers)
    return Image.fromarray(((total - np.min(total)) * 255 / np.ptp(total)).astype(np.uint8))


def _camera(angle: float) -> NDArray[np.float64]:
    """Returns view_from_world of a camera that looks at the origin; y points down."""
    position = np.array([DISTANCE * np.sin(angle), -HEIGHT, -DISTANCE * np.cos(angle)])
    ahead = -position / np.linalg.norm(position)
    right = np.cross([0.0, 1.0, 0.0], ahead)
    right /= np.linalg.norm(right)
    view_from_world = np.eye(4)
    view_from_world[:3, :3] = np.stack((right, np.cross(ahead, right), ahead))
    view_from_world[:3, 3] = -view_from_world[:3, :3] @ position
    return view_from_world


def _photograph(
    camera: NDArray[np.float64], faces: list[Image.Image], behind: Image.Image
) -> tuple[Image.Image, Image.Image]:
    picture, mask = behind.copy(), Image.new("L", SIZE)
    position = np.linalg.inv(camera)[:3, 3]
    for number, face in enumerate(faces):
        normal = np.eye(3)[number % 3] * (1 if number < 3 else -1)
        across = np.roll(normal, 1)
        down = np.cross(normal, across)
        if (position - normal) @ normal <= 0:
            continue
        corners = [normal + a * across + b * down for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
        in_view = np.array(corners) @ camera[:3, :3].T + camera[:3, 3]
        px = in_view[:, :2] / in_view[:, 2:] * FOCAL + np.array(SIZE) / 2
        texel_from_px = _homography(px, np.array([(0, 0), (TEXELS, 0), (TEXELS, TEXELS), (0, TEXELS)]))
        turned = face.transform(SIZE, Image.Transform.PERSPECTIVE, texel_from_px, Image.Resampling.BICUBIC)
        inside = Image.new("L", face.size, 255).transform(SIZE, Image.Transform.PERSPECTIVE, texel_from_px)
        picture.paste(turned, (0, 0), inside)
        mask.paste(255, (0, 0), inside)
    return picture, mask


def _homography(source: NDArray[np.float64], target: NDArray[np.float64]) -> list[float]:
    """Returns the eight numbers of the map that takes four points to four others, in Pillow's order."""
    rows, values = [], []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    return np.linalg.solve(np.array(rows), np.array(values)).tolist()


def write_turntable(folder: Path, count: int) -> NDArray[np.float64]:
    """Writes photographs below `images` and masks below `masks`; returns their view_from_world."""
    pictures, masks, cameras = photograph_cube(count)
    for name, images in (("images", pictures), ("masks", masks)):
        (folder / name).mkdir(parents=True)
        for k, image in enumerate(images):
            image.save(folder / name / f"{k}.png")
    return cameras
