"""Makes a capture of known splats: 24 small pictures of 120 splats, taken from a ring around them.

Run as a program it trains that capture, for tests that kill it: `python -m tests.support.small_capture PICTURES OUT`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from splatscope.assets.capture import Capture, PointCloud, View
from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import make_backend
from splatscope.kernels.constants import SH_C0
from splatscope.kernels.types import Camera, Gaussians, Gradients, RenderSettings
from splatscope.training.config import CheckpointConfig, DataConfig, DensifyConfig, TrainConfig
from splatscope.training.events import Stepped
from splatscope.training.files.checkpoint import checkpoints, newest_checkpoint
from splatscope.training.trainer import Beginning, Trainer

SHORT = TrainConfig(
    iterations=40,
    sh_interval=15,
    test_interval=20,
    data=DataConfig(eval=True),
    densify=DensifyConfig(start=5, interval=10, reset_interval=25),
    checkpoint=CheckpointConfig(seconds=0),  # no clock: what is on disk does not depend on the machine
)
KILLED = replace(
    SHORT,
    iterations=100,
    test_interval=0,
    densify=replace(SHORT.densify, stop=60),
    checkpoint=CheckpointConfig(seconds=0, interval=2),
)


class Poisoned:
    """Stands for a backend whose gradients hold a number that is not finite on one call."""

    def __init__(self, backend: Backend, call: int, name: str, index: tuple[int, ...], value: float) -> None:
        self._backend, self._call = backend, call
        self._name, self._index, self._value = name, index, value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def backward(self, saved: Any, image_gradient: Any, absolute: bool = False) -> Gradients:
        gradients = self._backend.backward(saved, image_gradient, absolute)
        self._call -= 1
        if self._call == 0:
            getattr(gradients, self._name)[self._index] = self._value
        return gradients


def looking_at_origin(centre: np.ndarray, scale: float = 1.0) -> Camera:
    forward = -centre / np.linalg.norm(centre)
    right = np.cross(forward, (0, 0, 1.0))
    right /= np.linalg.norm(right)
    matrix = np.eye(4)
    matrix[:3, :3] = np.stack((right, np.cross(forward, right), forward))
    matrix[:3, 3] = -matrix[:3, :3] @ centre
    return Camera.from_matrix(matrix, round(72 * scale), round(56 * scale), *(scale * np.array([80.0, 80, 36, 28])))


def true_splats(rng: np.random.Generator) -> Gaussians:
    count = 120
    return Gaussians(
        means=rng.uniform(-0.7, 0.7, (count, 3)).astype(np.float32),
        log_scales=np.log(rng.uniform(0.03, 0.2, (count, 3))).astype(np.float32),
        quats=rng.standard_normal((count, 4)).astype(np.float32),
        logit_opacities=rng.uniform(0, 4, count).astype(np.float32),
        sh=((rng.random((count, 1, 3)) - 0.5) / SH_C0).astype(np.float32),
    )


def make_capture(folder: Path, cut_out: bool = False, scale: float = 1.0) -> Capture:
    """Renders pictures of known splats into `folder`; the points lie near the splats but are grey. With `cut_out`,
    pictures are RGBA, transparent where no splat is. Pictures have `scale` times 72 x 56 pixels."""
    backend = make_backend("cpu")
    rng = np.random.default_rng(5)
    truth = true_splats(rng)
    views = []
    for i, angle in enumerate(np.linspace(0, 2 * np.pi, 24, endpoint=False)):
        camera = looking_at_origin(np.array([3 * np.cos(angle), 3 * np.sin(angle), np.sin(3 * angle)]), scale)
        frame = backend.render(truth, camera, RenderSettings((0, 0, 0)))
        image = frame.image
        if cut_out:
            alpha = 1 - frame.transmittance[..., None]
            image = np.concatenate((image / np.maximum(alpha, 1e-3), alpha), axis=2)
        path = folder / f"{i:02}.png"
        if not path.exists():
            Image.fromarray(np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)).save(path)
        views.append(View(path.name, path, camera, has_alpha=cut_out))
    positions = truth.means + rng.normal(0, 0.03, truth.means.shape)
    points = PointCloud(positions, np.full(positions.shape, 128, np.uint8))
    return Capture(folder, "colmap", tuple(views), (), points, cut_out, ("3 photographs are missing.",))


def write_blender_set(folder: Path) -> None:
    """Writes the cut-out pictures as a set of the NeRF-synthetic kind; every fourth is a test view."""
    folder.mkdir(parents=True, exist_ok=True)
    flip = np.diag([1, -1, -1, 1])  # OpenGL axes
    frames = {"train": [], "test": []}
    for i, view in enumerate(make_capture(folder, cut_out=True).views):
        world_from_view = np.linalg.inv(view.camera.matrix) @ flip
        frame = {"file_path": f"./{i:02}", "transform_matrix": world_from_view.tolist()}
        frames["train" if i % 4 else "test"].append(frame)
    for split, some in frames.items():
        content = {"camera_angle_x": 2 * float(np.arctan(36 / 80)), "frames": some}
        (folder / f"transforms_{split}.json").write_text(json.dumps(content))


def main() -> None:
    """Trains, from the newest checkpoint if there is one, prints each iteration, and waits before the last ones.

    So it is not over when the signal comes, however late that is.
    """
    pictures, out = map(Path, sys.argv[1:])
    begin = Beginning(*newest_checkpoint(out)) if checkpoints(out) else None
    for event in Trainer(make_capture(pictures), KILLED, make_backend("cpu"), out, begin).run():
        if isinstance(event, Stepped):
            print(event.iteration, flush=True)
            if event.iteration == KILLED.iterations - 10:
                sys.stdin.read()


if __name__ == "__main__":
    main()
