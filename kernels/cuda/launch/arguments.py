"""Reads kernels' argument structs and constants from the C++ sources, so that Python keeps no second definition.

`argument_struct(text, kernel)` finds `kernel(SomeArgs args)` and returns the layout of `SomeArgs`, which fills records.
A GPU launch takes the packed record by value, the CPU harness by address. `layout_checks` is C++ that fails to compile
if Python has the layout wrong. Read `compiler.py` next.

Members may be numbers, CUDA's vector types, pointers, arrays with a literal or constexpr size, and structs declared
in the same text. Methods, base classes, bit fields and braces are not supported.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

SCALARS = {
    "bool": "?",
    "char": "i1",
    "unsigned char": "u1",
    "short": "i2",
    "unsigned short": "u2",
    "int": "i4",
    "unsigned": "u4",
    "unsigned int": "u4",
    "float": "f4",
    "long long": "i8",
    "unsigned long long": "u8",
    "size_t": "u8",
    "double": "f8",
}
VECTOR_BASES = {"uchar": "u1", "ushort": "u2", "int": "i4", "uint": "u4", "float": "f4", "ulonglong": "u8"}

_STRUCT = r"\bstruct\s+(?:alignas\s*\(\s*(\d+)\s*\)\s*)?{name}\s*\{{(.*?)\}}\s*;"
_DECLARATOR = r"(\*?)\s*\b(\w+)\s*(?:\[(\w+)\])?\s*(?:=[^,;]*)?"
_MEMBER = re.compile(rf"(?P<type>\w[\w\s]*?)\s*(?P<names>{_DECLARATOR}(?:,\s*{_DECLARATOR})*)")
_QUALIFIER = re.compile(r"\b(?:const|volatile|__restrict__|struct)\b")


@dataclass(frozen=True)
class Member:
    """Describes one member of a C++ struct: its place and its NumPy type."""

    name: str
    offset: int  # bytes
    alignment: int
    format: Any  # NumPy dtype, or (dtype, (count,))
    target: str | None  # C++ type that a pointer points at; None if the member is not a pointer
    struct: ArgumentStruct | None = None  # the layout of a member that is itself a struct


@dataclass(frozen=True)
class ArgumentStruct:
    """Describes the layout of one C++ struct, and fills records of it."""

    name: str
    members: tuple[Member, ...]
    size: int
    alignment: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the layout as a NumPy record, padding included."""
        return np.dtype(
            {
                "names": [m.name for m in self.members],
                "formats": [m.format for m in self.members],
                "offsets": [m.offset for m in self.members],
                "itemsize": self.size,
            }
        )

    def pack(self, **values: Any) -> np.ndarray:
        """Returns a record [1] with every member set. Pointers take arrays (NumPy, CuPy, torch), addresses or None.

        Raises TypeError for a missing or unknown member, and for an array whose elements do not fit the pointer's
        type.
        """
        record = np.zeros(1, self.dtype)
        self._fill(record[0], values)
        return record

    def _fill(self, record: Any, values: Mapping[str, Any]) -> None:
        expected = {m.name for m in self.members}
        if expected != set(values):
            missing, unknown = sorted(expected - set(values)), sorted(set(values) - expected)
            raise TypeError(f"{self.name}: missing {missing}, unknown {unknown}; its members are {sorted(expected)}.")
        for member in self.members:
            value = values[member.name]
            if member.target is not None:
                record[member.name] = _address(value, member.target, f"{self.name}.{member.name}")
            elif member.struct is not None:
                member.struct._fill(record[member.name], value)
            else:
                record[member.name] = value

    def layout_checks(self) -> str:
        """Returns C++ assertions that all members have the size and alignment, and so the offset, of `dtype`."""
        lines = [f"static_assert(sizeof({self.name}) == {self.size});"]
        for m in self.members:
            member, size = f"{self.name}::{m.name}", self.dtype[m.name].itemsize
            lines.append(f"static_assert(sizeof({member}) == {size} && alignof(decltype({member})) == {m.alignment});")
        return "\n".join(lines)


def argument_struct(text: str, kernel: str) -> ArgumentStruct:
    """Returns the struct that `__global__ void kernel(Struct args)` takes. Raises ValueError if the text has none."""
    text = _without_comments(text)
    declaration = rf"__global__[^;{{]*?\b{kernel}\s*\(\s*(?:(?:const|__grid_constant__)\s+)*(\w+)\s+\w+\s*\)"
    match = re.search(declaration, text)
    if match is None:
        raise ValueError(
            f"There is no `__global__ void {kernel}(SomeStruct args)`: a kernel takes one struct by value."
        )
    return struct_layout(text, match.group(1))


def struct_layout(text: str, name: str) -> ArgumentStruct:
    """Returns the layout that C++ gives to struct `name`, declared in `text`. Raises ValueError for unknown syntax."""
    text = _without_comments(text)
    match = re.search(_STRUCT.format(name=name), text, re.DOTALL)
    if match is None:
        raise ValueError(f"struct {name} is not declared.")
    members: list[Member] = []
    end, alignment = 0, int(match.group(1) or 1)
    for base, is_pointer, member, count in _declarations(match.group(2), name):
        struct = None
        if is_pointer:
            form, size, align = np.dtype("u8"), 8, 8
        elif base in SCALARS or _vector(base):
            form, size, align = _plain(base)
        else:
            struct = struct_layout(text, base)
            form, size, align = struct.dtype, struct.size, struct.alignment
        if count:
            if struct is not None:
                raise ValueError(f"struct {name}: {member} is an array of structs.")
            length = int(count) if count.isdigit() else read_constant(text, count)
            form, size = (form, (length,)), size * length
        offset = -(-end // align) * align
        members.append(Member(member, offset, align, form, base if is_pointer else None, struct))
        end, alignment = offset + size, max(alignment, align)
    return ArgumentStruct(name, tuple(members), -(-end // alignment) * alignment, alignment)


def _declarations(body: str, struct: str) -> Iterator[tuple[str, bool, str, str | None]]:
    """Yields (type, True for a pointer, name, array size as written) for each member."""
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        found = _MEMBER.fullmatch(_QUALIFIER.sub(" ", declaration).strip())
        if found is None:
            raise ValueError(f"struct {struct}: cannot read `{declaration}`.")
        for star, name, count in re.findall(_DECLARATOR, found["names"]):
            yield " ".join(found["type"].split()), bool(star), name, count or None


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def _vector(name: str) -> tuple[str, int] | None:
    base, lanes = name[:-1], name[-1:]
    return (VECTOR_BASES[base], int(lanes)) if base in VECTOR_BASES and lanes in "234" else None


def _plain(name: str) -> tuple[Any, int, int]:
    """Returns NumPy format, bytes and alignment of a number or a CUDA vector type."""
    if name in SCALARS:
        dtype = np.dtype(SCALARS[name])
        return dtype, dtype.itemsize, dtype.itemsize
    code, lanes = _vector(name) or ("", 0)
    dtype = np.dtype(code)
    size = dtype.itemsize * lanes
    return (dtype, (lanes,)), size, dtype.itemsize if lanes == 3 else min(size, 16)


def read_constant(text: str, name: str) -> int:
    """Returns the value of `constexpr ... name = expression;`, also if the statement declares several names.

    The expression may hold whole numbers, other constexpr names, and + - * / << | with parentheses. Raises ValueError
    if the text has no such declaration.
    """
    match = re.search(rf"\bconstexpr\b[^;{{}}]*?\b{name}\s*=(?!=)\s*([^,;]+)[,;]", text)
    if match is None:
        raise ValueError(f"{name} is neither a number nor declared as `constexpr ... {name} = number;`.")
    expression = _without_comments(match.group(1))
    expression = re.sub(r"\b(0[xX][\da-fA-F]+|\d+)[uUlL]*\b", r"\1", expression)
    expression = re.sub(r"\b[A-Za-z_]\w*", lambda found: str(read_constant(text, found.group())), expression)
    try:
        return _evaluated(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, KeyError) as error:
        raise ValueError(f"{name}: cannot read `{match.group(1).strip()}`.") from error


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,  # equals C++ division for whole numbers that are not negative
    ast.LShift: operator.lshift,
    ast.BitOr: operator.or_,
}


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if not isinstance(node, ast.BinOp):
        raise KeyError(type(node))
    return _OPERATORS[type(node.op)](_evaluated(node.left), _evaluated(node.right))


def _address(value: Any, target: str, where: str) -> int:
    """Returns the address of an array's first element, after checking that its elements suit `target`."""
    if value is None or isinstance(value, int):
        return value or 0
    code = SCALARS.get(target) or (_vector(target) or (None,))[0]
    name = str(value.dtype).removeprefix("torch.")
    if code is not None:
        got, wanted = np.dtype("u2" if name == "bfloat16" else name), np.dtype(code)  # bf16 travels as bits
        if got.itemsize != wanted.itemsize or (got.kind == "f") != (wanted.kind == "f"):
            raise TypeError(f"{where} is a {target}*, got an array of {name}.")
    if isinstance(value, np.ndarray):
        contiguous, address = value.flags.c_contiguous, value.ctypes.data
    elif hasattr(value, "data_ptr"):
        contiguous, address = value.is_contiguous(), value.data_ptr()
    else:
        contiguous, address = value.flags.c_contiguous, value.data.ptr
    if not contiguous:
        raise TypeError(f"{where} needs a contiguous array.")
    return address
