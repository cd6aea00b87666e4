"""Measures on a GPU: describes the card, its copy rate, and times work by the card's own clock.

Kernel times are between CUDA events while the host is kept ahead of the GPU by `hold`, so that its own time does not
count. Wall-clock times are of many frames, and include the host's time. `bench/ladder.py` measures with them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

SLEEP_CYCLES = 2_000_000  # about 1 ms in which the host gets ahead of the GPU
COPY_BYTES = 1 << 30
WALL_BATCHES, BATCH_MS, MOST_FRAMES = 3, 150.0, 60


class EventPair:
    """Records the GPU's clock before and after the work launched in between."""

    def __init__(self) -> None:
        import torch

        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._start.record()

    def end(self) -> None:
        """Ends the timed work."""
        self._end.record()

    @property
    def ms(self) -> float:
        """Returns the milliseconds, once the GPU is done."""
        return self._start.elapsed_time(self._end)


def hold() -> None:
    """Keeps the GPU busy for about a millisecond; what the host launches meanwhile then runs without gaps."""
    import torch

    torch.cuda._sleep(SLEEP_CYCLES)


def timed(work: Callable[[], Any]) -> EventPair:
    """Launches `work` between two events."""
    pair = EventPair()
    work()
    pair.end()
    return pair


def wall_ms(work: Callable[[], Any]) -> float:
    """Returns the milliseconds of a call by the host's clock: the median of some batches of calls."""
    import torch

    def batch(calls: int) -> float:
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
        return 1e3 * (perf_counter() - start) / calls

    calls = max(3, min(MOST_FRAMES, int(BATCH_MS / batch(2))))
    return float(np.median([batch(calls) for _ in range(WALL_BATCHES)]))


def describe_gpu() -> dict[str, Any]:
    """Returns the card, its copy rate, and the versions that decide how fast the kernels are."""
    import cupy  # pyright: ignore[reportMissingImports]
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": _driver_version(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "cupy": cupy.__version__,
        "copy_gb_per_second": round(_copy_rate() / 1e9, 1),
    }


def _driver_version() -> str:
    """Returns "580.159.04", or the driver's CUDA version where nvidia-ml-py is missing."""
    if importlib.util.find_spec("pynvml") is not None:
        import pynvml

        try:
            pynvml.nvmlInit()
            return str(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError:
            pass
    import cupy  # pyright: ignore[reportMissingImports]

    return f"for CUDA {cupy.cuda.runtime.driverGetVersion() / 1000:.1f}"


def _copy_rate() -> float:
    """Returns the bytes read and written a second by a copy on the device, the fastest of ten."""
    import torch

    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = [timed(lambda: target.copy_(source)) for _ in range(10)]
    torch.cuda.synchronize()
    return 2 * COPY_BYTES / (min(pair.ms for pair in times) / 1e3)
