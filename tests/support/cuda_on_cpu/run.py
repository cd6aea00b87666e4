"""Builds kernels for the CPU with g++ and launches them from Python, on memory that traps when they stray.

    kernels = build(read_source("blend.cuh"), ["blend<BlendPolicy{}>"])
    device = Device(seed=3)
    image = device.empty("image", (48, 64, 3), "f4")
    device.launch(kernels["blend<BlendPolicy{}>"], (12,), (256,), kernel.arguments.pack(image=image, ...))

`Device` has the `launch` and `stage` of `kernels/cuda/launch/launcher.py`, so that a pipeline can run on either. A
kernel that does something wrong raises KernelFailure with the kernel, block, thread, file, line and the seed that
repeats it. The machine is cuda_on_cpu.h, CUDA's names are in intrinsics.h, what makes a library of them in library.h.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from splatscope.kernels.cuda.launch.compiler import CompileError, Kernel, Source

FOLDER = Path(__file__).parent
HARNESS = ("cuda_on_cpu.h", "intrinsics.h", "library.h")
# Contraction is off: where two kernels must agree they call __fmaf_rn, and the rest is tested with a tolerance.
# Hidden: inline variables would otherwise be one for all libraries of the process. Stack clash: a large frame touches
# each page on its way, so it cannot step over the page that traps.
COMPILE = shlex.split(
    "-std=c++20 -O1 -g1 -fPIC -fvisibility=hidden -ffp-contract=off -fno-exceptions -fstack-clash-protection "
    "-fsanitize=bounds-strict,alignment,null,shift,integer-divide-by-zero,float-cast-overflow,signed-integer-overflow "
    "-fno-sanitize-recover=all -ftls-model=global-dynamic"
)
# `__shared__` needs the calls of the older thread-local dialect (see cuda_on_cpu.h); shadow stacks know no fibers.
MACHINE = {"x86_64": ["-mtls-dialect=gnu", "-fcf-protection=none"], "aarch64": ["-mtls-dialect=trad"]}
COMPILE += MACHINE.get(platform.machine(), [])
LINK = ["-shared", "-Wl,--wrap=__tls_get_addr", "-Wl,-z,defs"]
GUARD = 1 << 20  # bytes of address space on either side of a buffer that trap
KEPT_LIBRARIES = 200

_one_at_a_time = threading.Lock()  # signal handlers, and the machine within a library, are one for all threads


MOST_BLOCKS = 16  # in flight at once
BLOCK_STACKS = 1024 * ((64 << 10) + 4096)  # bytes: MAX_THREADS stacks with a guard page each (cuda_on_cpu.h)
NO_RESERVE = 0x4000  # Linux's MAP_NORESERVE, which Python names only from 3.13 on
_kept: list[mmap.mmap] = []


class KernelFailure(AssertionError):
    """Tells of an error that a GPU would not forgive; the text names the thread, the place and the error."""


class _Launch(ctypes.Structure):
    _fields_ = [
        ("arguments", ctypes.c_void_p),
        ("stacks", ctypes.c_void_p),
        ("seed", ctypes.c_uint64),
        ("kernel", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared", ctypes.c_uint32),
        ("blocks_in_flight", ctypes.c_uint32),
        ("patience", ctypes.c_uint32),
        ("seconds", ctypes.c_uint32),
    ]


class _Outcome(ctypes.Structure):
    _fields_ = [
        ("switches", ctypes.c_uint64),
        ("address", ctypes.c_size_t),
        ("instruction", ctypes.c_size_t),
        ("failed", ctypes.c_int),
        ("is_write", ctypes.c_int),
        ("message", ctypes.c_char * 2000),
    ]


@dataclass(frozen=True)
class _Entry:
    """Stands for the function that a `Kernel` of the CPU holds."""

    library: ctypes.CDLL
    path: Path
    number: int


def is_supported() -> bool:
    """Returns True where kernels can be built and run: Linux with g++."""
    return sys.platform == "linux" and shutil.which("g++") is not None


def build(source: Source, instantiations: Sequence[str]) -> dict[str, Kernel]:
    """Compiles the instantiations into one library, or takes it from disk. Raises CompileError with g++'s words."""
    path = _library(source, tuple(instantiations))
    library = ctypes.CDLL(str(path))
    kernels = {}
    for number, name in enumerate(instantiations):
        kernels[name] = Kernel(name, _Entry(library, path, number), source.arguments(name))
    return kernels


class Device:
    """Provides memory and launches. Every seed is another order of blocks, warps and lanes."""

    def __init__(self, seed: int = 0, blocks_in_flight: int = 4, patience: int = 1_000_000, seconds: int = 60) -> None:
        self.seed = seed
        self.blocks_in_flight = blocks_in_flight
        self.patience = patience  # polls in a row that find nothing new before a spin counts as endless
        self.seconds = seconds  # of processor time a launch may take
        self.switches = 0  # context switches of the last launch
        self._buffers: list[_Buffer] = []

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Returns an array full of 0xff bytes (NaN, -1) whose neighbourhood traps. `name` is for messages."""
        buffer = _Buffer(name, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        self._buffers.append(buffer)
        return buffer.bytes.view(dtype).reshape(shape)

    def upload(self, name: str, array: Any) -> np.ndarray:
        """Returns a guarded copy of `array`."""
        array = np.asarray(array)
        copy = self.empty(name, array.shape, array.dtype)
        copy[...] = array
        return copy

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: np.ndarray,
        shared: int = 0,
        stream: Any = None,
    ) -> None:
        """Runs the kernel to its end; `stream` is ignored. Raises KernelFailure."""
        if 0 in grid:
            return
        entry: _Entry = kernel.function
        threads, blocks = (int(np.prod(size)) for size in (block, grid))
        if not 1 <= threads <= 1024 or shared > 227 << 10 or arguments.dtype != kernel.arguments.dtype:
            raise ValueError(f"{kernel.name}: {threads} threads, {shared} bytes shared, {arguments.dtype} arguments.")
        if self.blocks_in_flight > MOST_BLOCKS:
            raise ValueError(f"blocks_in_flight must be at most {MOST_BLOCKS}, got {self.blocks_in_flight}.")
        request = _Launch(
            arguments.ctypes.data, _stacks(), self.seed, entry.number, _three(grid), _three(block), shared
        )
        request.blocks_in_flight = min(self.blocks_in_flight, blocks)
        request.patience, request.seconds = self.patience, self.seconds
        outcome = _Outcome()
        with _one_at_a_time:
            entry.library.cuda_on_cpu_launch(ctypes.byref(request), ctypes.byref(outcome))
        self.switches = outcome.switches
        if outcome.failed:
            raise KernelFailure(self._explain(outcome, entry))
        for buffer in self._buffers:
            if (stray := buffer.stray_byte()) is not None:
                raise KernelFailure(f"{kernel.name} wrote {_place(stray, buffer)}.")

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Does as `Launcher.stage`, but times nothing."""
        return nullcontext()

    def together(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """Runs one launch after the other, in place of `Launcher.together`."""
        first()
        second()

    def _explain(self, outcome: _Outcome, entry: _Entry) -> str:
        message = outcome.message.decode()
        if outcome.address:
            nearest = min(self._buffers, key=lambda b: b.distance(outcome.address), default=None)
            verb = "writes" if outcome.is_write else "reads"
            message += f"{verb} {_place(outcome.address - (nearest.start if nearest else 0), nearest)}"
        if outcome.instruction:
            message += f", at {_line_of(entry.path, outcome.instruction)}"
        return f"{message} (seed {self.seed})"


class _Buffer:
    """Holds memory between two zones that trap; its end is flush with the upper one, up to 16-byte alignment."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        inside = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        pages = mmap.mmap(-1, inside + 2 * GUARD)
        everything = np.frombuffer(pages, np.uint8)
        base = everything.ctypes.data
        for guard in (base, base + GUARD + inside):
            _libc().mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(GUARD), 0)
        self._page = everything[GUARD : GUARD + inside]
        self._page[:] = 0xFF
        self._first = inside - -(-size // 16) * 16
        self.bytes = self._page[self._first : self._first + size]
        self.start = base + GUARD + self._first

    def distance(self, address: int) -> int:
        """Returns the bytes between the buffer and an address outside it."""
        return max(self.start - address, address - (self.start + self.size) + 1, 0)

    def stray_byte(self) -> int | None:
        """Returns the offset of a byte outside the buffer, within its pages, that was written to."""
        for first, end in ((0, self._first), (self._first + self.size, self._page.size)):
            changed = np.flatnonzero(self._page[first:end] != 0xFF)
            if changed.size:
                return int(changed[0]) + first - self._first
        return None


def _place(offset: int, buffer: _Buffer | None) -> str:
    """Describes the place of a byte by its distance from the nearest buffer's start."""
    if buffer is None or not -GUARD <= offset < buffer.size + GUARD:
        return f"an address that is in no buffer ({offset + (buffer.start if buffer else 0):#x})"
    if offset < 0:
        return f"{-offset} bytes before `{buffer.name}`"
    return f"byte {offset} of `{buffer.name}`, which has {buffer.size}"


def _three(size: tuple[int, ...]) -> Any:
    return (ctypes.c_uint32 * 3)(*size, *(1,) * (3 - len(size)))


@functools.cache
def _stacks() -> int:
    """Returns address space for the stacks of all fibers, shared by all libraries; touched only where it is used."""
    pages = mmap.mmap(-1, MOST_BLOCKS * BLOCK_STACKS, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    _kept.append(pages)
    return np.frombuffer(pages, np.uint8).ctypes.data


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _line_of(library: Path, instruction: int) -> str:
    """Returns file:line of an instruction, the innermost first where calls were inlined into one another."""
    command = ["addr2line", "-i", "-e", str(library), hex(instruction)]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
    places = [Path(line).name.partition(" ")[0] for line in lines if line and "?" not in line]
    return " in ".join(dict.fromkeys(places)) or hex(instruction)


@functools.cache
def _library(source: Source, instantiations: tuple[str, ...]) -> Path:
    """Returns the shared library, compiled if need be. Named by a hash of everything that goes into it."""
    unit = _translation_unit(source, instantiations)
    harness = [(FOLDER / name).read_text() for name in HARNESS]
    key = repr((unit, source.files, harness, COMPILE, LINK))
    folder = Path(platformdirs.user_cache_dir("splatscope")) / "cuda_on_cpu"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (hashlib.sha256(key.encode()).hexdigest()[:32] + ".so")
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            work = Path(temporary)
            for name, text in source.files:
                (work / name).write_text(text)
            (work / "unit.cpp").write_text(unit)
            _run(["g++", *COMPILE, f"-I{FOLDER}", f"-I{work}", "-c", "unit.cpp", "-o", "unit.o"], work, source)
            _run(["g++", "unit.o", *LINK, "-o", "unit.so"], work, source)
            (work / "unit.so").replace(path)
        for old in sorted(folder.glob("*.so"), key=lambda p: p.stat().st_mtime)[:-KEPT_LIBRARIES]:
            old.unlink(missing_ok=True)
    return path


def _translation_unit(source: Source, instantiations: Sequence[str]) -> str:
    lines = ['#include "library.h"', '#include "intrinsics.h"', source.translation_unit(instantiations)]
    rows = []
    for number, name in enumerate(instantiations):
        lines.append(f"static void call_{number}(const void* a) {{ cuda_on_cpu::call({name}, a); }}")
        rows.append(f'{{"{name}", call_{number}}}')
    lines.append("const cuda_on_cpu::Kernel cuda_on_cpu_kernels[] = {" + ", ".join(rows) + "};")
    return "\n".join(lines) + "\n"


def _run(command: list[str], folder: Path, source: Source) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{source.name} does not compile for the CPU:\n{done.stderr.strip()}")
