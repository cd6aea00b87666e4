"""Tests that CUDA kernels compile without a GPU for every architecture, and counts their cost in the machine code."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from splatscope.kernels.cuda.launch import compiler
from splatscope.kernels.cuda.launch.arguments import read_constant, struct_layout
from splatscope.kernels.cuda.launch.compiler import (
    ARCHITECTURES,
    CUDA_FOLDER,
    CompileError,
    KernelReport,
    Source,
    compile_kernels,
    compile_report,
    nvrtc_path,
    read_source,
)
from splatscope.kernels.cuda.launch.launcher import StageTimer
from tests.kernels.test_cuda_on_cpu import MISTAKES, SOUND
from tests.support.cuda_on_cpu.run import FOLDER, build, is_supported
from tests.support.cuda_on_cpu.sass import disassemble, nvdisasm_path

needs_nvrtc = pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
needs_nvdisasm = pytest.mark.skipif(nvdisasm_path() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")

FOLDERS = (FOLDER, CUDA_FOLDER)
BUTTERFLY = """
struct Args { float* out; int rounds; };
template <int values>
__global__ void __launch_bounds__(256) butterfly(Args args) {
    float v[values];
    for (int k = 0; k < values; k++) v[k] = args.out[k * 256 + threadIdx.x];
    #pragma unroll 1
    for (int round = 0; round < args.rounds; round++) {
        #pragma unroll
        for (int k = 0; k < values; k++)
            for (int bit = 16; bit; bit >>= 1) v[k] += __shfl_xor_sync(0xffffffffu, v[k], bit);
        if (threadIdx.x % 32 == 0)
            for (int k = 0; k < values; k++) atomicAdd(&args.out[k], v[k]);
    }
}
"""


def in_memory(text: str) -> Source:
    return Source("in_memory.cuh", (("in_memory.cuh", text),))


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_test_kernel_compiles_for_every_architecture_without_spills(architecture: int) -> None:
    reports = compile_report(read_source("sound.cuh", FOLDERS), SOUND, architecture)
    assert set(reports) == set(SOUND)
    for name, report in reports.items():
        assert 8 <= report.registers <= 64, name
        assert report.spill_bytes == report.stack_bytes == 0, name
        assert report.code_bytes >= 256, name
        assert 0 < report.occupancy(256, architecture) <= 1, name
    assert reports["scan_block"].shared_bytes == 32
    assert reports["warp_sums"].shared_bytes == 0


@needs_nvrtc
@pytest.mark.parametrize("architecture", [75, 90])
def test_everything_that_differs_between_gpu_and_cpu_compiles_for_both(architecture: int) -> None:
    """Compiles broken.cuh, whose mistakes show only at run time, and uses all of warp.cuh."""
    names = [f"broken<Mistake::{name}>" for name in MISTAKES]
    assert len(compile_report(read_source("broken.cuh", FOLDERS), names, architecture)) == len(MISTAKES)
    text = """#include "warp.cuh"
struct Args { unsigned long long* words; float* floats; };
__global__ void use_all(Args args) {
    unsigned* word = reinterpret_cast<unsigned*>(args.words);
    store_release(args.words + 1, load_acquire(args.words) + load_relaxed(args.words + 2) + global_timer());
    store_relaxed(word, warp_or(lane_index()) + warp_add(warp_index()) + sm_index() + load_acquire(word + 9));
    args.floats[0] = exp2_approx(args.floats[1]) + log2_approx(args.floats[2]) + dynamic_shared<float>()[3];
}
"""
    warp = (CUDA_FOLDER / "warp.cuh").read_text()
    source = Source("use_all.cuh", (("use_all.cuh", text), ("warp.cuh", warp)))
    assert compile_report(source, ["use_all"], architecture)["use_all"].registers > 0
    if is_supported():
        assert build(source, ["use_all"])


@needs_nvrtc
@pytest.mark.parametrize("name", sorted(path.name for path in CUDA_FOLDER.glob("*.cuh")))
def test_every_header_stands_alone(name: str) -> None:
    text = f'#include "{name}"\nstruct NothingArgs {{ int n; }};\n__global__ void nothing(NothingArgs args) {{}}\n'
    source = Source("alone.cuh", (*read_source(name).files, ("alone.cuh", text)))
    assert compile_report(source, ["nothing"], min(ARCHITECTURES))["nothing"].spill_bytes == 0


@needs_nvrtc
@needs_nvdisasm
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_shuffles_and_atomics_of_a_loop_body_are_counted(architecture: int) -> None:
    compiled = compile_kernels(in_memory(BUTTERFLY), ["butterfly<9>", "butterfly<2>"], architecture)
    for values in (9, 2):
        body = disassemble(compiled, f"butterfly<{values}>").loops()[-1]
        assert body.count("SHFL") == 5 * values
        assert body.count("RED", "REDG") == values


@needs_nvrtc
def test_a_spill_is_reported() -> None:
    crowded = BUTTERFLY.replace("__launch_bounds__(256)", "__launch_bounds__(1024, 2)")
    report = compile_report(in_memory(crowded), ["butterfly<60>"], 90)["butterfly<60>"]
    assert report.registers == 32
    assert report.spill_bytes > 0


@needs_nvrtc
def test_a_compile_error_shows_our_line() -> None:
    with pytest.raises(CompileError, match=r"in_memory\.cuh\(3\): error: .*\n\s+flaot x"):
        compile_kernels(in_memory("struct Args { int n; };\n__global__ void k(Args args) {\n flaot x; }\n"), ["k"], 90)


@needs_nvrtc
def test_a_wrong_policy_field_is_a_clear_error() -> None:
    names = ["drain_queue<QueuePolicy{.wait_for_raeders = false}>"]
    with pytest.raises(CompileError, match="wait_for_raeders"):
        compile_kernels(read_source("sound.cuh", FOLDERS), names, 90)


@needs_nvrtc
def test_an_edited_header_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_cache_folder", lambda: tmp_path)
    (tmp_path / "inner.cuh").write_text("constexpr int SIZE = 100;\n")
    (tmp_path / "outer.cuh").write_text(
        '#include "inner.cuh"\nstruct Args { float* out; };\n'
        "__global__ void k(Args args) { __shared__ float s[SIZE]; s[threadIdx.x] = 1; __syncthreads();\n"
        "args.out[threadIdx.x] = s[threadIdx.x ^ 1]; }\n"
    )
    assert compile_report(read_source("outer.cuh", [tmp_path]), ["k"], 90)["k"].shared_bytes == 400
    (tmp_path / "inner.cuh").write_text("constexpr int SIZE = 200;\n")
    assert compile_report(read_source("outer.cuh", [tmp_path]), ["k"], 90)["k"].shared_bytes == 800
    assert compile_report(read_source("outer.cuh", [tmp_path]), ["k"], 90)["k"].shared_bytes == 800
    assert len(list(tmp_path.glob("*.json"))) == 2


@needs_nvrtc
def test_an_architecture_newer_than_the_compiler_gets_portable_code() -> None:
    compiled = compile_kernels(in_memory(BUTTERFLY), ["butterfly<2>"], 990)
    assert b".target sm_" in compiled.image
    assert compiled.reports == {}


def test_struct_layouts_are_those_of_cpp() -> None:
    text = """
    constexpr int BANDS = 3;
    struct Pose { float4 rows[3]; };  // a comment; with a semicolon
    struct Args {
        const float4* __restrict__ splats; unsigned char flag;
        float background[BANDS];
        double weight; float2 size, centre; bool is_final = true;
        unsigned long long* offsets; Pose pose; float3 colour; uchar4 mask;
    };
    """
    layout = struct_layout(text, "Args")
    offsets = {m.name: m.offset for m in layout.members}
    assert offsets == {
        "splats": 0, "flag": 8, "background": 12, "weight": 24, "size": 32, "centre": 40, "is_final": 48,
        "offsets": 56, "pose": 64, "colour": 112, "mask": 124,
    }  # fmt: skip
    assert (layout.size, layout.alignment) == (128, 16)
    assert [m.target for m in layout.members if m.target] == ["float4", "unsigned long long"]


def test_constants_are_read_with_what_they_are_made_of() -> None:
    text = """
    constexpr unsigned THREADS = 256, WARPS = THREADS / 32;  // of a block; not more
    constexpr unsigned long long MOST = (1ull << 40) - 1;
    constexpr unsigned SIGN = 0x80000000u, EITHER = 1 | 2 * 2 + 8;
    constexpr float STOP = 1e-4f;
    """
    found = {name: read_constant(text, name) for name in ("THREADS", "WARPS", "MOST", "SIGN", "EITHER")}
    assert found == {"THREADS": 256, "WARPS": 8, "MOST": 2**40 - 1, "SIGN": 1 << 31, "EITHER": 13}
    for name, message in (("BLOCKS", "neither a number nor declared"), ("STOP", "cannot read `1e-4f`")):
        with pytest.raises(ValueError, match=message):
            read_constant(text, name)


@needs_nvrtc
def test_a_layout_that_python_got_wrong_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compiler.argument_struct.__globals__["SCALARS"], "int", "i8")
    with pytest.raises(CompileError, match="static assertion failed"):
        compile_kernels(in_memory(BUTTERFLY), ["butterfly<1>"], 90)


def test_arguments_are_packed_by_name() -> None:
    layout = in_memory(BUTTERFLY).arguments("butterfly<9>")
    out = np.zeros(4, np.float32)
    record = layout.pack(out=out, rounds=7)
    assert record.nbytes == 16
    assert (int(record["out"][0]), int(record["rounds"][0])) == (out.ctypes.data, 7)
    assert int(layout.pack(out=None, rounds=0)["out"][0]) == 0


def test_occupancy_follows_the_scarcest_resource() -> None:
    def blocks(registers: int, shared: int, threads: int, architecture: int = 90) -> int:
        report = KernelReport(registers, 0, 0, shared, 0)
        return report.blocks_per_multiprocessor(threads, architecture)

    assert blocks(32, 0, 256) == 8  # 64 warps
    assert blocks(64, 0, 256) == 4  # 65536 registers
    assert blocks(65, 0, 256) == 3  # registers come in units of 8
    assert blocks(32, 100 << 10, 256) == 2  # 228 KB
    assert blocks(16, 0, 32) == 32  # blocks
    assert blocks(40, 0, 128, architecture=75) == 8  # 32 warps


@dataclass
class FakeEvent:
    """Marks a time on a clock that the test moves by hand."""

    clock: list[float]
    time: float | None = None
    is_done: bool = False

    def record(self) -> None:
        self.time, self.is_done = self.clock[0], False

    def query(self) -> bool:
        return self.is_done

    def elapsed_time(self, end_event: FakeEvent) -> float:
        assert self.time is not None
        assert end_event.time is not None
        return end_event.time - self.time


def test_stage_times_are_read_when_the_gpu_is_done_and_not_before() -> None:
    clock, events = [0.0], []

    def make() -> FakeEvent:
        events.append(FakeEvent(clock))
        return events[-1]

    timeline = StageTimer(frames=2, make_event=make)
    for frame in range(4):
        for name, duration in (("sort", 1.0), ("blend", 2.0 + frame), ("sort", 0.5)):
            with timeline.stage(name):
                clock[0] += duration
        timeline.end_frame()
        assert timeline.read_finished() == []
    assert len(events) == 18  # two frames wait and one is recorded; older ones gave their events back
    for event in events:
        event.is_done = True
    assert timeline.read_finished() == [{"sort": 1.5, "blend": 4.0}, {"sort": 1.5, "blend": 5.0}]
    assert timeline.read_finished() == []


def test_no_kernel_source_asks_which_world_it_is_in() -> None:
    """Allows one switch between GPU and CPU, in warp.cuh."""
    for path in CUDA_FOLDER.glob("*.cuh"):
        switches = re.findall(r"__CUDACC__|__CUDA_ARCH__|\basm\b", re.sub(r"//.*", "", path.read_text()))
        assert not switches or path.name == "warp.cuh", path.name


@pytest.mark.skipif("CI" not in os.environ, reason="only continuous integration promises all tools")
def test_continuous_integration_skips_no_kernel_test_for_want_of_a_tool() -> None:
    assert is_supported(), "g++ is missing"
    assert nvrtc_path() is not None, "NVRTC is missing"
    assert nvdisasm_path() is not None, "nvdisasm is missing"
