"""`splatscope bench kernels`: lists registers and occupancy of the presets' kernels on every architecture.

The compiler reports them, so no GPU is needed. A kernel that an earlier preset has is not listed again. The
instructions of single kernels: tests/kernels/test_kernel_costs.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rich.table import Table

from splatscope.app.options.bench import KernelsOptions
from splatscope.app.terminal import Terminal
from splatscope.kernels.cuda.launch.compiler import ARCHITECTURES, compile_kernels, most_threads
from splatscope.kernels.cuda.plan.passes import Pass, source
from splatscope.kernels.ladder import STEPS, step

TILES = 5_000  # tiles of a picture of about 1600 × 800 px, whose sort keys have 16 bits


def run(options: KernelsOptions) -> None:
    """Prints the table. Raises InputError for a preset that does not exist, and where there is no compiler."""
    rows = kernel_rows(options.steps)
    costs = costs_of(rows)
    table = Table("step", "kernel", title="Registers a thread and occupancy, by NVRTC's report", title_justify="left")
    for architecture in ARCHITECTURES:
        table.add_column(f"sm_{architecture}", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.step, row.role, *(str(costs[row.kernel, architecture]) for architecture in ARCHITECTURES))
    Terminal(width=200).print(table)


@dataclass(frozen=True)
class Cost:
    """Holds the registers and the occupancy of a kernel on one architecture."""

    registers: int  # registers of a thread
    spill_bytes: int  # spilled bytes of a thread
    occupancy: float  # resident warps over the most there can be, 0 … 1

    def __str__(self) -> str:
        spilled = f", spills {self.spill_bytes} B" if self.spill_bytes else ""
        return f"{self.registers} {self.occupancy:.0%}{spilled}"


@dataclass(frozen=True)
class Row:
    """Names a kernel of a preset."""

    step: str
    role: str  # blend, training; sort keys last
    file: str
    kernel: str  # as C++ spells it


def kernel_rows(steps: Sequence[str] = ()) -> list[Row]:
    """Lists the kernels of the presets, all unless some are named, for viewing and training. Raises InputError."""
    found: dict[str, Row] = {}
    for name in steps or STEPS:
        for training in (False, True):
            for role, (file, kernel) in Pass(step(name), training, False, TILES).kernels().items():
                words = f"{role}, training" if training and "blend" in role and "backward" not in role else role
                found.setdefault(kernel, Row(name, words, file, kernel))
    return list(found.values())


def costs_of(rows: Sequence[Row], architectures: Sequence[int] = ARCHITECTURES) -> dict[tuple[str, int], Cost]:
    """Returns (kernel, architecture) -> cost; compiles what no cache has, on all processors."""

    def cost(row: Row, architecture: int) -> Cost:
        compiled = compile_kernels(source(row.file), [row.kernel], architecture)
        report, threads = compiled.reports[row.kernel], most_threads(compiled, row.kernel)
        return Cost(report.registers, report.spill_bytes, report.occupancy(threads, architecture))

    jobs = [(row, architecture) for row in rows for architecture in architectures]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        costs = threads.map(lambda job: cost(*job), jobs)
        return {(row.kernel, architecture): found for (row, architecture), found in zip(jobs, costs, strict=True)}
