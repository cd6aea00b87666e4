"""Writes small captures, plain and odd: text and binary COLMAP models, transforms files, rigs, real lenses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from splatscope.assets.lens import Lens, as_colmap, colmap_library

POSE = [[1, 0, 0, 3], [0, 0, -1, -5], [0, 1, 0, 2], [0, 0, 0, 1]]  # OpenGL: looks along world +y, world z is up
Offset = tuple[float, float, float]


def make_colmap(
    folder: Path,
    names: tuple[str, ...] = ("a.jpg", "b.jpg", "c.jpg"),
    camera: str = "PINHOLE 40 30 50 51 19 16",
    model: str = "sparse/0",
    points: int = 12,
    images: str = "images",
    at: Offset = (0, 0, 0),
) -> Path:
    """Writes a text model; camera i stands at (i, 0, 0), turned by i quarter turns about y; images are 40 x 30."""
    target = folder / model
    target.mkdir(parents=True)
    (target / "cameras.txt").write_text(f"# a comment\n1 {camera}\n")
    rows = []
    for i, name in enumerate(names):
        half = i * np.pi / 4
        rotation = np.array(
            [[np.cos(2 * half), 0, np.sin(2 * half)], [0, 1, 0], [-np.sin(2 * half), 0, np.cos(2 * half)]]
        )
        shift = " ".join(repr(float(v)) for v in -rotation @ (np.array([i, 0, 0]) + at))
        rows.append(f"{i + 1} {np.cos(half)} 0 {np.sin(half)} 0 {shift} 1 {name}\n\n")
        if images:
            (folder / images / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 30)).save(folder / images / name)
    (target / "images.txt").write_text("".join(rows), encoding="utf-8")
    x, y, z = at
    rows = [f"{99 - i} {x + i} {y + 0.5} {z + 2} {i} 20 30 0.1\n" for i in range(points)]
    (target / "points3D.txt").write_text("".join(rows))
    return folder


def as_binary(folder: Path) -> Path:
    """Replaces the text model by the binary one that COLMAP's own writer makes of it."""
    model = folder / "sparse/0"
    reconstruction = colmap_library().Reconstruction(model)
    for file in model.iterdir():
        file.unlink()
    reconstruction.write_binary(model)
    return folder


def make_rig(folder: Path, text: bool = False) -> Any:
    """Writes three frames of a rig of two cameras, as COLMAP writes them since 3.12; returns its reconstruction."""
    pycolmap = colmap_library()
    pycolmap.set_random_seed(0)
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 1, 2, 3
    options.num_points3D = 40
    options.camera_width, options.camera_height = 40, 30
    options.camera_model_id = pycolmap.CameraModelId.PINHOLE
    options.camera_params = [50.0, 50.0, 20.0, 15.0]
    reconstruction = pycolmap.synthesize_dataset(options)
    (folder / "sparse/0").mkdir(parents=True)
    (reconstruction.write_text if text else reconstruction.write_binary)(folder / "sparse/0")
    for image in reconstruction.images.values():
        path = folder / "images" / image.name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30)).save(path)
    return reconstruction


def make_blender(folder: Path, names: tuple[str, ...] = ("r_0", "r_1"), mode: str = "RGBA", **changes: Any) -> Path:
    """Writes `transforms_train.json` and `transforms_test.json` with 40 x 30 pictures; `changes` go into both files."""
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        frames = [{"file_path": f"./{split}/{name}", "transform_matrix": POSE} for name in names]
        content = {"camera_angle_x": 0.8, "frames": frames} | changes
        (folder / f"transforms_{split}.json").write_text(json.dumps(content))
        for name in names:
            Image.new(mode, (40, 30)).save(folder / split / f"{name}.png")
    return folder


def make_transforms(folder: Path, frames: list[dict[str, Any]] | None = None, **content: Any) -> Path:
    """Writes a single `transforms.json` for 40 x 30 photographs; each frame gets `POSE` unless it brings its own."""
    frames = [{"file_path": f"images/{i}.png"} for i in range(3)] if frames is None else frames
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for i in range(3):
        Image.new("RGB", (40, 30)).save(folder / f"images/{i}.png")
    content = {"fl_x": 50, "fl_y": 51, "cx": 19, "cy": 16, "w": 40, "h": 30} | content
    content["frames"] = [{"transform_matrix": POSE} | frame for frame in frames]
    (folder / "transforms.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    return folder


def seen_through(lens: Lens, world: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> NDArray[np.uint8]:
    """Returns what `lens` sees of `world`, a function from rays (x / z, y / z) [P, 2] to colours [P, 3] in 0..255."""
    xs, ys = np.meshgrid(np.arange(0.5, lens.width), np.arange(0.5, lens.height))
    pixels = np.stack((xs, ys), axis=-1).reshape(-1, 2)
    rays = np.asarray(as_colmap(lens).cam_from_img(pixels))
    return np.round(world(rays)).astype(np.uint8).reshape(lens.height, lens.width, 3)


def waves(rays: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns a smooth pattern, different in every channel, that tells a shift of a tenth of a pixel."""
    x, y = rays.T
    return 127.5 + 100 * np.column_stack((np.sin(9 * x), np.sin(8 * y), np.sin(6 * (x + y))))
