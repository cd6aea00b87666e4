"""Keeps the compiled and loaded kernels of one GPU. Compiles on other threads, loads on the caller's.

Read `launch/compiler.py` next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from splatscope.kernels.cuda.launch.compiler import Kernel, compile_kernels, load, prune_cache
from splatscope.kernels.cuda.plan.passes import source


class HasKernels(Protocol):
    """Lists the kernels that it runs: a `Pass`, or a training step with its optimiser."""

    def kernels(self) -> dict[str, tuple[str, str]]:
        """Returns role -> (file, instantiation)."""
        ...


class Starter(Protocol):
    """Provides kernels: `KernelStore`, or in tests the builder of kernels for the CPU."""

    is_awaited: bool

    def __call__(self, file: str, names: Sequence[str]) -> Mapping[str, Kernel]: ...
    def start(self, made_for: HasKernels) -> bool: ...
    def compiling(self, made_for: HasKernels) -> tuple[str, ...]: ...


class KernelStore:
    """Compiles kernels on other threads, and keeps the loaded ones.

    `architecture` is the current GPU's unless given. Tests replace `compiler`.
    """

    def __init__(self, architecture: int | None = None, compiler: Callable[..., object] = compile_kernels) -> None:
        self._architecture = architecture or _current_architecture()
        self._compiler = compiler
        self._loaded: dict[tuple[str, str], Kernel] = {}
        self._compiling: dict[tuple[str, str], Future[None]] = {}
        self.is_awaited = False  # true while a call waits for the compiler; any thread may read it
        self._threads = ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="nvrtc")
        self._threads.submit(prune_cache)

    def __call__(self, file: str, names: Sequence[str]) -> Mapping[str, Kernel]:
        """Returns loaded kernels by instantiation. Waits for the compiler. Raises CompileError."""
        for name in names:
            self._start(file, name)
        for name in names:
            if (file, name) not in self._loaded:
                self._wait_for(file, name)
                self._loaded |= {(file, n): kernel for n, kernel in load(source(file), [name]).items()}
        return {name: self._loaded[file, name] for name in names}

    def start(self, made_for: HasKernels) -> bool:
        """Begins to compile all missing kernels at once. Returns True if none is left to compile."""
        wanted = list(made_for.kernels().values())
        for file, name in wanted:
            self._start(file, name)
        return all(self._compiling[key].done() for key in wanted)

    def compiling(self, made_for: HasKernels) -> tuple[str, ...]:
        """Returns the stages that wait for the compiler. Call `start` first."""
        waiting = (kernel for kernel in made_for.kernels().values() if not self._compiling[kernel].done())
        return tuple(dict.fromkeys(_stage_of(file, name) for file, name in waiting))

    def _wait_for(self, file: str, name: str) -> None:
        compiling = self._compiling[file, name]
        self.is_awaited = not compiling.done()
        try:
            compiling.result()
        finally:
            self.is_awaited = False

    def _start(self, file: str, name: str) -> None:
        if (file, name) not in self._compiling:
            self._compiling[file, name] = self._threads.submit(self._compile, file, name)

    def _compile(self, file: str, name: str) -> None:
        self._compiler(source(file), [name], self._architecture)


def _stage_of(file: str, kernel: str) -> str:
    """Returns the stage of the policy whose toggles the kernel takes."""
    if kernel.startswith("ranges"):  # `ranges_plan` also plans the order of tiles
        return "schedule" if kernel.startswith("ranges_plan") else "bin"
    return Path(file).stem.removesuffix("_queue")


def _current_architecture() -> int:
    import cupy  # pyright: ignore[reportMissingImports]

    return int(cupy.cuda.Device().compute_capability)
