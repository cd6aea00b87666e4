"""Reads the machine code of a compiled kernel, to count the shuffles, atomics and branches of a loop.

Needs nvdisasm: the PyPI package nvidia-cuda-nvdisasm, the copy that Triton carries, or one on the path.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from splatscope.kernels.cuda.launch.compiler import Compiled

_LABEL = re.compile(r"^(\.L_\w+):")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_TARGET = re.compile(r"`\((\.L_\w+)\)")


@dataclass(frozen=True)
class Instruction:
    """Describes one machine instruction."""

    address: int
    opcode: str  # with its modifiers: SHFL.BFLY
    operands: str

    @property
    def name(self) -> str:
        """Returns the opcode without modifiers: SHFL."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class Code:
    """Holds the instructions of one kernel in order, and the address of each branch target."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    def count(self, *names: str) -> int:
        """Counts the instructions that have one of these names (without modifiers)."""
        return sum(i.name in names for i in self.instructions)

    def names(self) -> Counter[str]:
        """Returns the number of instructions by name."""
        return Counter(i.name for i in self.instructions)

    def loops(self) -> list[Code]:
        """Returns the instructions between each backward branch and its target, shortest first; outer loops contain
        inner ones.
        """
        spans = set()
        for instruction in self.instructions:
            target = _TARGET.search(instruction.operands) if instruction.name == "BRA" else None
            if target and self.labels.get(target[1], instruction.address) < instruction.address:
                spans.add((self.labels[target[1]], instruction.address))
        bodies = (tuple(i for i in self.instructions if first <= i.address <= last) for first, last in spans)
        return sorted((Code(body, self.labels) for body in bodies), key=lambda code: len(code.instructions))


def disassemble(compiled: Compiled, instantiation: str) -> Code:
    """Returns the machine code of one kernel."""
    program = nvdisasm_path()
    if program is None:
        raise FileNotFoundError("nvdisasm is not installed; pip install nvidia-cuda-nvdisasm.")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.image)
        file.flush()
        text = subprocess.run([program, "-c", file.name], capture_output=True, text=True, check=True).stdout
    section = text.split(f".text.{compiled.symbols[instantiation]}:\n", 1)[1].split("\n\t.section", 1)[0]
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in section.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = instructions[-1].address + 16 if instructions else 0
        elif found := _INSTRUCTION.search(line):
            instructions.append(Instruction(int(found[1], 16), found[2], found[3]))
    return Code(tuple(instructions), labels)


@cache
def nvdisasm_path() -> str | None:
    """Returns the path of nvdisasm, or None."""
    for package, pattern in (("nvidia", "cu*/bin/nvdisasm*"), ("triton", "backends/nvidia/bin/nvdisasm*")):
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or []) if spec else []:
            for path in Path(root).glob(pattern):
                return str(path)
    return shutil.which("nvdisasm")
