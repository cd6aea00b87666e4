"""Launches CUDA kernels, times them and captures them in graphs. Read `cuda/plan/planner.py` next.

No other file uses launch syntax, timing events, graphs or NVTX. Events that only order copies and launches are made
where those copies are (`buffers.py`, `readback.py`, `cuda/pictures.py`, `cuda/step/photographs.py`). Kernels run on
torch's current stream; arguments are passed by value as one record (`arguments.py`). This file does not wait for the
GPU: times are read frames later, from events that have passed. The CPU harness in tests/support/cuda_on_cpu has the
same `launch` and `stage`, so that a pipeline can run there too.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from splatscope.kernels.cuda.launch.compiler import Kernel

DEFAULT_SHARED_LIMIT = 48 << 10  # bytes of dynamic shared memory that a block gets without asking


class Event(Protocol):
    """Lists the methods of torch.cuda.Event that we use."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end_event: Any) -> float: ...


def _event(external: bool = False) -> Event:
    import torch

    return torch.cuda.Event(enable_timing=True, external=external)


@dataclass
class Marks:
    """Holds a pair of events around each stage of one frame, in the order in which the stages began."""

    pairs: list[tuple[str, Event, Event]]

    def read(self) -> dict[str, float] | None:
        """Returns milliseconds by stage, summed if a name occurs twice; None until the GPU has finished."""
        if not all(end.query() for _, _, end in self.pairs):
            return None
        times: dict[str, float] = {}
        for name, start, end in self.pairs:
            times[name] = times.get(name, 0.0) + start.elapsed_time(end)
        return times

    def spans(self, base: Event) -> list[tuple[str, float, float]]:
        """Returns (stage, beginning, end) in milliseconds since an earlier event. The GPU must have finished."""
        return [(name, base.elapsed_time(start), base.elapsed_time(end)) for name, start, end in self.pairs]


class StageTimer:
    """Times the stages of the newest frames. Reuses events; drops older frames that nobody has read."""

    def __init__(self, frames: int = 8, make_event: Callable[[], Event] = _event) -> None:
        self._make_event = make_event
        self._spare: list[Event] = []
        self._current = Marks([])
        self._pending: deque[Marks] = deque()
        self._frames = frames
        self.newest = Marks([])  # marks of the frame that ended last; valid until the next frame begins

    def mark(self) -> Event:
        """Returns a new event, recorded now."""
        event = self._make_event()
        event.record()
        return event

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times the launches in the body."""
        start, end = self._take(), self._take()
        self._current.pairs.append((name, start, end))
        start.record()
        try:
            yield
        finally:
            end.record()

    def take_frame(self) -> Marks:
        """Returns the stages so far, which the caller keeps. Later stages belong to the next frame."""
        marks, self._current = self._current, Marks([])
        return marks

    def end_frame(self) -> None:
        """Ends the frame: later stages belong to the next one."""
        self.newest = self.take_frame()
        self._pending.append(self.newest)
        while len(self._pending) > self._frames:
            self._give_back(self._pending.popleft())

    def read_finished(self) -> list[dict[str, float]]:
        """Returns milliseconds by stage for each frame that the GPU has finished since the last call, oldest first."""
        finished = []
        while self._pending and (times := self._pending[0].read()) is not None:
            finished.append(times)
            self._give_back(self._pending.popleft())
        return finished

    def _take(self) -> Event:
        return self._spare.pop() if self._spare else self._make_event()

    def _give_back(self, marks: Marks) -> None:
        for _, start, end in marks.pairs:
            self._spare += [start, end]


class Graph:
    """Replays captured launches as one.

    Its pointers and capacities are fixed; values that change from frame to frame are in device memory. Drop the graph
    before the buffers that it points into.
    """

    def __init__(self, graph: Any, marks: Marks) -> None:
        self._graph = graph
        self.marks = marks  # stages of the newest replay
        self._replayed = False

    def replay(self) -> dict[str, float] | None:
        """Starts the launches once more. Returns the previous replay's stage times, if the GPU had finished it."""
        times = self.marks.read() if self._replayed else None
        self._graph.replay()
        self._replayed = True
        return times


class Launcher:
    """Launches kernels on torch's current stream.

    With a timeline `stage` measures times; with `nvtx` it names stages for profilers.
    """

    def __init__(self, timeline: StageTimer | None = None, nvtx: bool = False) -> None:
        self.timeline = timeline
        self.nvtx = nvtx
        self._streams: dict[int, Any] = {}  # CuPy's objects for torch's streams, by address
        self._side_stream: Any = None  # a second stream, made when first needed
        self._large_shared: dict[str, int] = {}  # dynamic shared bytes granted so far, by kernel

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: np.ndarray,
        shared: int = 0,
        stream: Any = None,
    ) -> None:
        """Launches a kernel. Does nothing for an empty grid.

        `arguments` comes from `kernel.arguments.pack`, `shared` is dynamic shared memory in bytes a block, `stream` a
        torch stream other than the current one.
        """
        if 0 in grid:
            return
        if shared > self._large_shared.get(kernel.name, DEFAULT_SHARED_LIMIT):
            _allow_dynamic_shared(kernel, shared)
            self._large_shared[kernel.name] = shared
        kernel.function(grid, block, (arguments,), shared_mem=shared, stream=self._stream(stream))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Names the launches in the body and, with a timeline, times them."""
        times = self.timeline.stage(name) if self.timeline else nullcontext()
        with self.range(name), times:
            yield

    def range(self, name: str) -> AbstractContextManager[None]:
        """Names the body for profilers if `nvtx` is set.

        Profilers see no stages in a graph: with `nvtx`, launch kernels one by one.
        """
        return _nvtx_range(name) if self.nvtx else nullcontext()

    def together(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """Runs both, so that their launches may overlap. The GPU prefers blocks of `first`, on a stream of high
        priority."""
        import torch

        if self._side_stream is None:
            self._side_stream = torch.cuda.Stream(priority=-1)
        current, side = torch.cuda.current_stream(), self._side_stream
        side.wait_stream(current)
        with torch.cuda.stream(side):
            first()
        second()
        current.wait_stream(side)

    def capture(self, work: Callable[[], None]) -> Graph:
        """Returns a graph of the launches in `work`, with its stages. All its kernels must have run before."""
        import torch

        graph = torch.cuda.CUDAGraph()
        own, marks = self.timeline, StageTimer(make_event=lambda: _event(external=True))
        self.timeline = marks if own else None
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        try:
            with _without_collection(), torch.cuda.stream(side):
                graph.capture_begin(capture_error_mode="thread_local")  # other threads may compile meanwhile
                try:
                    work()
                finally:
                    graph.capture_end()
        finally:
            self.timeline = own
        torch.cuda.current_stream().wait_stream(side)
        return Graph(graph, marks.take_frame())

    def _stream(self, stream: Any) -> Any:
        import cupy  # pyright: ignore[reportMissingImports]
        import torch

        address = (stream or torch.cuda.current_stream()).cuda_stream
        if address not in self._streams:
            self._streams[address] = cupy.cuda.ExternalStream(address)
        return self._streams[address]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Stops garbage collection in the body: collecting an old graph would make the capture fail."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _nvtx_range(name: str) -> Iterator[None]:
    import torch

    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


def _allow_dynamic_shared(kernel: Kernel, size: int) -> None:
    import cupy.cuda  # pyright: ignore[reportMissingImports]

    driver: Any = cupy.cuda.driver  # typed as if it might be absent

    driver.funcSetAttribute(kernel.function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, size)
