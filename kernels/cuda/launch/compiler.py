"""Compiles CUDA kernels with NVRTC, with or without a GPU, and reports each kernel's registers and memory.

- `read_source` reads a .cuh file and all its includes into memory once, so that the text hashed is the text compiled.
- `compile_kernels` compiles the text to a cubin for one architecture, and keeps it on disk under that hash.
- `load` loads the cubin on the GPU.

NVRTC needs no GPU; it comes with torch or from the PyPI package nvidia-cuda-nvrtc. This file calls NVRTC directly, so
that kernels that run are compiled exactly as kernels that are tested. Read `launcher.py` next.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import importlib.util
import json
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from splatscope.kernels.caches import cache_folder, cache_path, code_folder
from splatscope.kernels.cuda.launch.arguments import ArgumentStruct, argument_struct
from splatscope.kernels.errors import InputError, Remark

CUDA_FOLDER = Path(__file__).parents[1] / "source"
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)  # compute capability × 10: Turing to Blackwell
# -lineinfo costs nothing at run time and shows our lines in the profiler. Contraction of a·b+c stays on: kernels that
# must agree to the bit call __fmul_rn and __fmaf_rn.
# -default-device makes generic lambdas in kernels device code, which NVRTC before 13.2 does not do by itself.
OPTIONS = ("-std=c++20", "-lineinfo", "-default-device")
KEPT_BYTES, KEPT_DAYS = 400 << 20, 30  # limits of the cache on disk: total size, days since a kernel was last used

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_REPORT = re.compile(
    r"Compiling entry function '(?P<symbol>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


class CompileError(RuntimeError):
    """Reports that a kernel does not compile. The text names the file and quotes the line."""


@dataclass(frozen=True)
class Source:
    """Holds the names and texts of a .cuh file and of all files that it includes, directly or not."""

    name: str
    files: tuple[tuple[str, str], ...]

    @cached_property
    def text(self) -> str:
        """Returns the joined texts of all files, for looking up declarations."""
        return "\n".join(text for _, text in self.files)

    def arguments(self, instantiation: str) -> ArgumentStruct:
        """Returns the layout of the struct that a kernel takes."""
        return argument_struct(self.text, instantiation.partition("<")[0].strip())

    def translation_unit(self, instantiations: Sequence[str]) -> str:
        """Returns the text to compile: the include, and checks that Python has the structs' layouts right."""
        structs = {s.name: s.layout_checks() for s in map(self.arguments, instantiations)}
        return f'#include "{self.name}"\n' + "\n".join(structs.values()) + "\n"


def read_source(name: str, folders: Sequence[Path] = (CUDA_FOLDER,)) -> Source:
    """Reads `name` and all its includes, each from the first folder that has the file. Raises ValueError if none
    has."""
    found: dict[str, str] = {}
    wanted = [name]
    while wanted:
        file = wanted.pop()
        if file in found:
            continue
        path = next((folder / file for folder in folders if (folder / file).is_file()), None)
        if path is None:
            raise ValueError(f"{file} is in none of {', '.join(map(str, folders))}.")
        found[file] = path.read_text()
        wanted += _INCLUDE.findall(found[file])
    return Source(name, tuple(sorted(found.items())))


@dataclass(frozen=True)
class KernelReport:
    """Holds the resources that one kernel takes, as the compiler reports them."""

    registers: int  # per thread
    spill_bytes: int  # stores and loads per thread
    stack_bytes: int  # per thread
    shared_bytes: int  # static shared memory per block
    code_bytes: int

    def blocks_per_multiprocessor(self, threads: int, architecture: int, dynamic_shared: int = 0) -> int:
        """Returns the number of blocks of `threads` that fit on one multiprocessor at once."""
        limits = MULTIPROCESSORS[architecture]
        warps = -(-threads // 32)
        # A warp gets registers in units of 256, and each warp belongs to one of four schedulers.
        warps_by_registers = 65536 // 4 // (-(-self.registers * 32 // 256) * 256) * 4
        shared = self.shared_bytes + dynamic_shared + (1024 if architecture >= 80 else 0)  # 1024: the system's share
        fits = [limits.warps // warps, limits.blocks, warps_by_registers // warps]
        return min([*fits, (limits.shared_kb << 10) // max(shared, 1)])

    def occupancy(self, threads: int, architecture: int, dynamic_shared: int = 0) -> float:
        """Returns the resident warps as a share of the most that a multiprocessor can hold, 0 … 1."""
        blocks = self.blocks_per_multiprocessor(threads, architecture, dynamic_shared)
        return blocks * -(-threads // 32) / MULTIPROCESSORS[architecture].warps


@dataclass(frozen=True)
class Multiprocessor:
    """Holds a multiprocessor's limits: warps and blocks resident at once, and the shared memory they divide."""

    warps: int
    blocks: int
    shared_kb: int


MULTIPROCESSORS = {  # CUDA programming guide, technical specifications per compute capability
    75: Multiprocessor(32, 16, 64),
    80: Multiprocessor(64, 32, 164),
    86: Multiprocessor(48, 16, 100),
    89: Multiprocessor(48, 24, 100),
    90: Multiprocessor(64, 32, 228),
    100: Multiprocessor(64, 32, 228),
    120: Multiprocessor(48, 24, 100),
}


@dataclass(frozen=True)
class Compiled:
    """Holds machine code of some kernels for one architecture. The keys of the dictionaries are instantiations."""

    image: bytes  # cubin, or PTX for an architecture that this NVRTC does not know
    symbols: dict[str, str]
    reports: dict[str, KernelReport]  # empty for PTX


@dataclass(frozen=True)
class Kernel:
    """Holds a kernel that is ready to launch."""

    name: str  # as instantiated: blend<BlendPolicy{}>
    function: Any  # CuPy's handle, or the CPU harness's function
    arguments: ArgumentStruct
    report: KernelReport | None = None


def compile_kernels(source: Source, instantiations: Sequence[str], architecture: int) -> Compiled:
    """Compiles instantiations like `blend<BlendPolicy{.branchless = true}>`, or reads them from the cache on disk.

    Any thread may call it. Raises CompileError with our file, line and text.
    """
    unit = source.translation_unit(instantiations)
    key = json.dumps([source.files, unit, list(instantiations), architecture, OPTIONS, _nvrtc().version])
    file = _cache_folder() / (hashlib.sha256(key.encode()).hexdigest()[:32] + ".json")
    if file.is_file():
        stored = json.loads(file.read_text())
        with suppress(OSError):  # another process may prune at this moment
            os.utime(file)  # marks it as used now, for `prune_cache`
        reports = {name: KernelReport(**report) for name, report in stored["reports"].items()}
        return Compiled(bytes.fromhex(stored["image"]), stored["symbols"], reports)
    compiled = _nvrtc().compile(source, unit, instantiations, architecture)
    stored = {"image": compiled.image.hex(), "symbols": compiled.symbols}
    stored["reports"] = {name: asdict(report) for name, report in compiled.reports.items()}
    with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".part", delete=False) as part:
        json.dump(stored, part)
    Path(part.name).replace(file)
    return compiled


def prune_cache() -> None:
    """Removes compiled kernels not used for KEPT_DAYS, and the least recently used ones beyond KEPT_BYTES."""
    kept, oldest = 0, time.time() - KEPT_DAYS * 86400
    files: list[tuple[float, int, Path]] = []
    for path in _cache_folder().iterdir():
        with suppress(OSError):  # another process may have removed it
            facts = path.stat()
            files.append((facts.st_mtime, facts.st_size, path))
    for used, size, path in sorted(files, reverse=True):
        kept += size
        if used < oldest or kept > KEPT_BYTES:
            path.unlink(missing_ok=True)


def compile_report(source: Source, instantiations: Sequence[str], architecture: int) -> dict[str, KernelReport]:
    """Returns registers, spills, shared memory and code size of each kernel."""
    return compile_kernels(source, instantiations, architecture).reports


def load(source: Source, instantiations: Sequence[str]) -> dict[str, Kernel]:
    """Compiles kernels for the current GPU and loads them. Call it on the engine's thread, never during a graph
    capture."""
    import cupy  # pyright: ignore[reportMissingImports]

    compiled = compile_kernels(source, instantiations, int(cupy.cuda.Device().compute_capability))
    module = cupy.cuda.Module()
    module.load(compiled.image)
    return {
        name: Kernel(name, module.get_function(symbol), source.arguments(name), compiled.reports.get(name))
        for name, symbol in compiled.symbols.items()
    }


def nvrtc_path() -> str | None:
    """Returns the path of NVRTC in site-packages, else a name that the system's loader knows, else None."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for pattern in ("cu*/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*", "**/nvrtc64_*_0.dll"):
            for path in sorted(Path(root).glob(pattern), reverse=True):
                return str(path)
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


@cache
def _nvrtc() -> _Nvrtc:
    path = nvrtc_path()
    if path is None:
        raise InputError("NVRTC, CUDA's run-time compiler, is not installed; pip install nvidia-cuda-nvrtc.")
    return _Nvrtc(path)


@cache
def _cache_folder() -> Path:
    """Returns a folder of the user's cache, or a temporary folder if the cache cannot be used or others can write to
    it."""
    try:
        return code_folder(cache_folder() / "cuda")
    except OSError as error:
        folder = Path(tempfile.mkdtemp(prefix="splatscope-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        reason = f"{error.filename or cache_path()} cannot be used: {error.strerror}"
        warnings.warn(Remark(f"Kernels are compiled again each time, because {reason}."), stacklevel=2)
        return folder


class _Nvrtc:
    """Calls the few NVRTC functions we need through ctypes. Several threads may call them at once."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status != 0:
            raise CompileError(f"{function}: {self._library.nvrtcGetErrorString(status).decode()}")

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def architectures(self) -> list[int]:
        """Returns the architectures for which this NVRTC makes machine code."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        values = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", values)
        return list(values)

    def compile(self, source: Source, unit: str, instantiations: Sequence[str], architecture: int) -> Compiled:
        known = self.architectures()
        is_known = architecture in known
        target = f"sm_{architecture}" if is_known else f"compute_{max(a for a in known if a < architecture)}"
        options = [*OPTIONS, f"-arch={target}", "--ptxas-options=-v"]
        names = [name for name, _ in source.files]
        texts = [text for _, text in source.files]
        program = ctypes.c_void_p()
        headers = (len(names), _strings(texts), _strings(names))
        self._call("nvrtcCreateProgram", ctypes.byref(program), unit.encode(), b"splatscope.cu", *headers)
        try:
            for name in instantiations:
                self._call("nvrtcAddNameExpression", program, name.encode())
            status = self._library.nvrtcCompileProgram(program, len(options), _strings(options))
            log = self._bytes("ProgramLog", program).rstrip(b"\0").decode()
            if status != 0:
                raise CompileError(f"{source.name} does not compile for {target}:\n{log.strip()}")
            symbols = {name: self._symbol(program, name) for name in instantiations}
            image = self._bytes("CUBIN" if is_known else "PTX", program)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))
        return Compiled(image, symbols, _reports(log, symbols, image) if is_known else {})

    def _symbol(self, program: ctypes.c_void_p, name: str) -> str:
        lowered = ctypes.c_char_p()
        self._call("nvrtcGetLoweredName", program, name.encode(), ctypes.byref(lowered))
        return (lowered.value or b"").decode()


def _strings(texts: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def _reports(log: str, symbols: dict[str, str], image: bytes) -> dict[str, KernelReport]:
    """Parses the log of `ptxas -v` and the sizes of the code sections into reports."""
    code = {name.removeprefix(".text."): size for name, _, size in _sections(image)}
    found = {}
    for match in _REPORT.finditer(log):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        spill = int(match["stores"]) + int(match["loads"])
        found[match["symbol"]] = KernelReport(
            int(match["registers"]), spill, int(match["stack"]), int(shared[1]) if shared else 0, code[match["symbol"]]
        )
    # The compiler does not report a kernel that it finds in its own cache.
    return {name: found[symbol] for name, symbol in symbols.items() if symbol in found}


def most_threads(compiled: Compiled, instantiation: str) -> int:
    """Returns the most threads of a block by a kernel's launch bounds; 0 for a kernel without bounds and for PTX."""
    name, image = f".nv.info.{compiled.symbols[instantiation]}", compiled.image
    for section, start, size in _sections(image) if image.startswith(b"\x7fELF") else ():
        at = start if section == name else start + size
        while at < start + size:  # an attribute has a form, a name, and 2 bytes: its value, or a longer value's length
            form, attribute, value = image[at], image[at + 1], int.from_bytes(image[at + 2 : at + 4], "little")
            if (form, attribute) == (4, 5):  # EIATTR_MAX_THREADS holds x, y and z; our blocks use x
                return int.from_bytes(image[at + 4 : at + 8], "little")
            at += 4 + (value if form == 4 else 0)
    return 0


def _sections(image: bytes) -> Iterator[tuple[str, int, int]]:
    """Yields (name, first byte, size) of each section of a 64-bit ELF file; `.text.<symbol>` holds a kernel's code."""

    def number(offset: int, size: int) -> int:
        return int.from_bytes(image[offset : offset + size], "little")

    table, entry, count, names = number(0x28, 8), number(0x3A, 2), number(0x3C, 2), number(0x3E, 2)
    strings = number(table + names * entry + 0x18, 8)
    for header in range(table, table + count * entry, entry):
        start = strings + number(header, 4)
        name = image[start : image.index(b"\0", start)].decode()
        yield name, number(header + 0x18, 8), number(header + 0x20, 8)
