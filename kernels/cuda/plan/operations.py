"""Defines the operations of a plan: one kernel launch, one call between kernels, or two launches that may run at once.

`builder.py` collects them, `run_operations` runs them, and `Launch.run` is the only call of `launch` in the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np

from splatscope.kernels.cuda.launch.compiler import Kernel


class Launches(Protocol):
    """Lists the methods that `launcher.Launcher` and the CPU harness share."""

    def launch(self, kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], arguments: np.ndarray) -> None: ...
    def stage(self, name: str) -> AbstractContextManager[None]: ...
    def together(self, first: Callable[[], None], second: Callable[[], None]) -> None: ...


@dataclass(frozen=True, eq=False)
class Launch:
    """Holds one kernel with its stage, grid, block and arguments."""

    stage: str
    kernel: Kernel
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: np.ndarray

    def run(self, launches: Launches) -> None:
        launches.launch(self.kernel, self.grid, self.block, self.arguments)


@dataclass(frozen=True, eq=False)
class Call:
    """Holds work between kernels that is no kernel of ours: clearing memory, torch's sort."""

    stage: str
    work: Callable[[], None]

    def run(self, launches: Launches) -> None:
        self.work()


@dataclass(frozen=True, eq=False)
class Together:
    """Holds two launches that may run at once; the GPU prefers blocks of the first."""

    stage: str
    first: Launch
    second: Launch

    def run(self, launches: Launches) -> None:
        launches.together(lambda: self.first.run(launches), lambda: self.second.run(launches))


Operation = Launch | Call | Together


def run_operations(operations: Sequence[Operation], launches: Launches) -> None:
    """Runs operations in order, each stage under its name."""
    for stage, group in groupby(operations, lambda operation: operation.stage):
        with launches.stage(stage):
            for operation in group:
                operation.run(launches)
