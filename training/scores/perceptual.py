"""Computes LPIPS (Zhang et al. 2018) where its weights are installed. Nothing is ever downloaded.

The field's protocol: the VGG network, fed colours in [0, 1] as they are. The package `lpips` brings the learned
weights, torchvision the network, and torch's cache the network's weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from splatscope.kernels.types import Float32

VGG_WEIGHTS = "vgg16-397923af.pth"  # torchvision's, as its download names it
VGG_WEIGHTS_URL = f"https://download.pytorch.org/models/{VGG_WEIGHTS}"


def find_lpips() -> tuple[Callable[[Float32, Float32], float] | None, str]:
    """Returns (a function for LPIPS of two images [H, W, 3] in [0, 1], ""), or (None, one sentence about what is
    missing)."""
    weights = Path(torch.hub.get_dir()) / "checkpoints" / VGG_WEIGHTS
    try:
        import lpips  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None, "LPIPS is left out: it needs pip install lpips torchvision."
    if not weights.is_file():
        return None, f"LPIPS is left out: the weights of its network are not at {weights}. {VGG_WEIGHTS_URL} has them."
    network: Any = lpips.LPIPS(net="vgg", verbose=False).eval()

    def distance(image: Float32, target: Float32) -> float:
        pair = (torch.from_numpy(np.ascontiguousarray(a.transpose(2, 0, 1)))[None] for a in (image, target))
        with torch.inference_mode():
            return float(network(*pair))

    return distance, ""
