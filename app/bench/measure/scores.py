"""Makes the row of a whole run from the table of its scorings."""

from __future__ import annotations

from typing import Any

from splatscope.kernels.errors import InputError


def row_of_scores(table: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the last scoring, and the curve of all scorings. Raises InputError if there is none."""
    if not table:
        raise InputError("The run was never scored; leave test_interval above 0.")
    last = table[-1]
    return {
        "iterations": last["iteration"],
        "splats": last["splats"],
        "psnr": round(last["psnr"], 3),
        "ssim": round(last["ssim"], 4),
        "training_seconds": last["training_seconds"],
        "curve": [
            [row["iteration"], row["training_seconds"], round(row["psnr"], 3), round(row["ssim"], 4), row["splats"]]
            for row in table
        ],
    }
