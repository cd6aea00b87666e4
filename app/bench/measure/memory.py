"""Measures the most GPU memory that a run uses."""

from __future__ import annotations

import gc

GIB = 2**30


def reset_peak() -> None:
    """Begins to measure the most memory that is used."""
    import torch

    gc.collect()  # what an earlier run left
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float | None:
    """Returns the peak of torch's allocator, which all buffers come from; None without a GPU."""
    import torch

    return round(torch.cuda.max_memory_allocated() / GIB, 3) if torch.cuda.is_available() else None
