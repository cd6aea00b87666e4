"""Tests the same small kernels on a real GPU, for what the CPU harness cannot show. Skipped where there is none."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from splatscope.kernels.backends import gpu_is_present
from splatscope.kernels.cuda.launch.compiler import CUDA_FOLDER, Kernel, load, read_source
from splatscope.kernels.cuda.launch.launcher import Launcher, StageTimer
from tests.support.cuda_on_cpu.run import FOLDER

pytestmark = pytest.mark.skipif(
    not gpu_is_present() or importlib.util.find_spec("cupy") is None, reason="needs an NVIDIA GPU and CuPy"
)

NAMES = (
    "warp_sums",
    "look_back_scan<LookBackPolicy{}>",
    "last_arriver<LastArriverPolicy{}>",
    "drain_queue<QueuePolicy{}>",
)


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    return load(read_source("sound.cuh", (FOLDER, CUDA_FOLDER)), NAMES)


def zeros(*shape: int) -> Any:
    import torch

    return torch.zeros(shape, dtype=torch.int32, device="cuda")


def test_a_look_back_scan_over_thousands_of_blocks_is_right_every_time(kernels: dict[str, Kernel]) -> None:
    import torch

    kernel, launcher, blocks = kernels["look_back_scan<LookBackPolicy{}>"], Launcher(), 20_000
    values = torch.randint(0, 100, (blocks * 256,), dtype=torch.int32, device="cuda")
    for _ in range(100):
        scanned, totals = zeros(blocks * 256), zeros(blocks, 2)
        arguments = kernel.arguments.pack(
            values=values, scanned=scanned, ticket=zeros(1), flags=zeros(blocks), totals=totals
        )
        launcher.launch(kernel, (blocks,), (256,), arguments)
        assert torch.equal(scanned, torch.cumsum(values, 0, dtype=torch.int32))


def test_the_last_block_sees_all_parts_every_time(kernels: dict[str, Kernel]) -> None:
    import torch

    kernel, launcher, blocks = kernels["last_arriver<LastArriverPolicy{}>"], Launcher(), 4_000
    values = torch.ones(blocks * 32, device="cuda")
    for _ in range(200):
        total, parts = torch.zeros(1, device="cuda"), torch.full((blocks,), float("nan"), device="cuda")
        arguments = kernel.arguments.pack(values=values, parts=parts, arrived=zeros(1), total=total)
        launcher.launch(kernel, (blocks,), (32,), arguments)
        assert total.item() == blocks * 32


def test_a_queue_hands_out_each_item_once(kernels: dict[str, Kernel]) -> None:
    kernel, items = kernels["drain_queue<QueuePolicy{}>"], 50_000
    done = zeros(items, 64)
    arguments = kernel.arguments.pack(next=zeros(1), done=done, items=items)
    Launcher().launch(kernel, (500,), (64,), arguments)
    assert bool((done == 1).all())


def test_a_captured_graph_replays_with_stage_times(kernels: dict[str, Kernel]) -> None:
    import torch

    kernel, launcher = kernels["warp_sums"], Launcher(StageTimer(), nvtx=True)
    values, sums = torch.arange(1 << 16, dtype=torch.float32, device="cuda"), torch.zeros(1 << 11, device="cuda")
    arguments = kernel.arguments.pack(values=values, sums=sums)

    def work() -> None:
        with launcher.stage("sums"):
            launcher.launch(kernel, (1 << 8,), (256,), arguments)

    work()
    graph = launcher.capture(work)
    for factor in (1.0, 3.0):
        values.mul_(factor)
        sums.zero_()
        graph.replay()
        np.testing.assert_allclose(sums.cpu(), values.view(-1, 32).sum(1).cpu())
    times = graph.replay()
    assert times is not None
    assert times["sums"] > 0


def test_the_report_says_what_the_driver_says(kernels: dict[str, Kernel]) -> None:
    import cupy.cuda  # pyright: ignore[reportMissingImports]

    driver: Any = cupy.cuda.driver  # typed as if it might be absent

    for kernel in kernels.values():
        assert kernel.report is not None
        registers = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_NUM_REGS, kernel.function.ptr)
        assert registers == kernel.report.registers
