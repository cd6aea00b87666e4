"""Tests the registers of the presets' kernels on every architecture, and their counts of some instructions."""

from __future__ import annotations

from collections import Counter

import pytest

from splatscope.app.bench import kernels
from splatscope.app.bench.kernels import costs_of, kernel_rows
from splatscope.app.options.bench import KernelsOptions
from splatscope.kernels.cuda.launch.compiler import ARCHITECTURES, compile_kernels, nvrtc_path
from splatscope.kernels.cuda.plan.passes import source
from splatscope.kernels.ladder import STEPS
from tests.support.cuda_on_cpu.sass import disassemble, nvdisasm_path

needs_nvrtc = pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
ROWS = kernel_rows()
TWIN = 89  # gets the machine code of 86, kernel for kernel; the default preset is checked there all the same


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_kernel_of_any_preset_spills_and_all_keep_their_registers(architecture: int) -> None:
    assert {row.step for row in ROWS} == {*STEPS} - {"s01"}, "s01 is s01e"
    rows = kernel_rows(["best"]) if architecture == TWIN else ROWS
    costs = costs_of(rows, [architecture])
    for row in rows:
        cost = costs[row.kernel, architecture]
        # Projection: harmonics in registers; Turing's shared memory has room for fewer blocks anyway.
        is_wide = row.role in ("project", "project_backward", "offsets")
        assert cost.registers <= (64 if not is_wide else 128 if architecture < 80 else 80), row
        assert cost.spill_bytes == 0, row
        assert cost.occupancy >= 0.25, row


@needs_nvrtc
def test_the_table_has_a_row_a_kernel_and_a_column_an_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    kernels.run(KernelsOptions(("s02",)))
    lines = capsys.readouterr().out.splitlines()
    assert [word for word in lines[2].replace("┃", " ").split() if word.startswith("sm_")] == [
        f"sm_{architecture}" for architecture in ARCHITECTURES
    ]
    row = next(line for line in lines if "blend_backward" in line)
    assert row.count("%") == len(ARCHITECTURES)


# Whole backward blends on sm_80: as the seed counts its own, which it unrolls further, and ours.
@needs_nvrtc
@pytest.mark.skipif(nvdisasm_path() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize(
    ("name", "steps", "seed", "ours"),
    [
        ("SHFL", ("s01", "s02"), (366, 230), (50, 25)),
        ("RED", ("s01", "s02"), (72, 16), (9, 1)),
        ("BSSY", ("s04", "s05"), (66, 42), (5, 3)),  # each with its BSYNC
    ],
)
def test_instructions_of_whole_kernels_fall_by_as_much_as_the_seeds(
    name: str, steps: tuple[str, str], seed: tuple[int, int], ours: tuple[int, int]
) -> None:
    before, after = (instructions(step)[name] for step in steps)
    assert after / before <= seed[1] / seed[0]
    assert before <= ours[0]
    assert after <= ours[1]


def instructions(step: str) -> Counter[str]:
    """Counts the instructions of the derivative of blending on sm_80, by name."""
    row = next(row for row in kernel_rows([step]) if row.role == "blend_backward")
    counts = disassemble(compile_kernels(source(row.file), [row.kernel], 80), row.kernel).names()
    assert counts["BSSY"] == counts["BSYNC"]
    return counts
