"""Reads the header of a PLY file: elements, their properties and counts, byte order, comments.

Lines are split in one place, so that every reader sees the same ones. A count is only what the header claims: callers
check it against the size of the file before they use it. Read `ply_table.py` next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from splatscope.kernels.errors import InputError

HEADER_LIMIT = 1 << 20  # bytes; a header of 62 properties is 1.5 kB, so this is no limit for real files
_NEWLINE = rb"\r\n|\n|\r"
_FIRST = re.compile(rb"ply[ \t]*(" + _NEWLINE + rb")")
_BYTE_ORDERS = {b"ascii": "=", b"binary_little_endian": "<", b"binary_big_endian": ">"}
_KINDS = {  # older and newer names of types in files -> NumPy's names
    "i1": (b"char", b"int8"),
    "u1": (b"uchar", b"uint8"),
    "i2": (b"short", b"int16"),
    "u2": (b"ushort", b"uint16"),
    "i4": (b"int", b"int32"),
    "u4": (b"uint", b"uint32"),
    "f4": (b"float", b"float32"),
    "f8": (b"double", b"float64"),
}
_TYPES = {name: kind for kind, names in _KINDS.items() for name in names}
_SHOWN = 60  # most characters of a line or name in a sentence


@dataclass(frozen=True)
class Property:
    """Describes a column of an element."""

    type: str  # NumPy's name of the type, without byte order
    length_type: str = ""  # type of the length before each list; empty for a plain value


@dataclass(frozen=True)
class Element:
    """Describes a table of the file."""

    name: str
    count: int  # rows, as the header says
    properties: dict[str, Property] = field(default_factory=dict)  # by name, in file order

    @property
    def lists(self) -> list[str]:
        """Returns the names of properties that are lists, whose rows have no fixed size."""
        return [name for name, p in self.properties.items() if p.length_type]

    def record(self, byte_order: str) -> np.dtype:
        """Returns the type of a row without lists."""
        return np.dtype([(name, byte_order + p.type) for name, p in self.properties.items()])


@dataclass(frozen=True)
class Header:
    """Holds all that a header says."""

    elements: tuple[Element, ...]  # in file order
    byte_order: str  # "<", ">" or "=" for text
    comments: tuple[str, ...]  # without the word "comment"
    size: int  # bytes of the header


def is_ply(start: bytes) -> bool:
    """Returns True if the bytes at a file's start are the first line of a PLY."""
    return _FIRST.match(start) is not None


def parse_header(path: Path, start: bytes) -> Header:
    """Reads the header of a file that begins with the line "ply". Raises InputError, which quotes the line."""
    first = _FIRST.match(start)
    assert first is not None
    # Looks for the file's own line ending first: the byte after a lone CR may belong to the body.
    last = rb"(?:" + _NEWLINE + rb")[ \t]*end_header[ \t]*(?:" + first[1] + rb"|" + _NEWLINE + rb")"
    end = re.search(last, start[:HEADER_LIMIT])
    if end is None:
        if len(start) < HEADER_LIMIT:
            raise InputError(f"{path} is cut short: its header has no end_header. Export or download it again.")
        raise InputError(f"{path} is damaged: there is no end_header in its first {HEADER_LIMIT:,} bytes.")
    lines = re.split(_NEWLINE, start[first.end() : max(first.end(), end.start())])
    elements: dict[str, Element] = {}
    byte_orders: list[str] = []
    for number, line in enumerate(lines, 2):
        words = line.split()
        problem = _read_line(words, elements, byte_orders) if words else ""
        if problem:
            shown = shortened(line.strip().decode("latin-1"))
            raise InputError(
                f"{path} is damaged: its PLY header cannot be understood at line {number}, {shown}: {problem}. "
                "Export or download it again."
            )
    if not byte_orders:
        raise InputError(f"{path} is damaged: its PLY header cannot be understood, it has no line 'format'.")
    return Header(tuple(elements.values()), byte_orders[0], tuple(_comments(lines)), end.end())


def shortened(text: str) -> str:
    """Returns text from a file for a sentence: quoted, without control characters, at most a line long."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def shown_name(name: str) -> str:
    """Returns a name from a file for a sentence: without quotes if it is short and printable."""
    return name if name.isprintable() and len(name) <= _SHOWN else shortened(name)


def _comments(lines: list[bytes]) -> Iterator[str]:
    for line in lines:
        match line.split(None, 1):
            case [b"comment", *text]:
                yield b"".join(text).decode("utf-8", "replace").strip()
            case _:
                pass


def _read_line(words: list[bytes], elements: dict[str, Element], byte_orders: list[str]) -> str:
    """Adds what a line of the header says to `elements` or `byte_orders`; returns what is wrong with it, or ""."""
    match words:
        case [b"comment" | b"obj_info", *_]:
            return ""
        case [b"format", name, b"1.0"] if name in _BYTE_ORDERS and not byte_orders:
            byte_orders.append(_BYTE_ORDERS[name])
            return ""
        case [b"format", *_]:
            return "a second format" if byte_orders else f"the format is one of {_listed(_BYTE_ORDERS)}, version 1.0"
        case [b"element", name, count]:
            if not re.fullmatch(rb"\d{1,18}", count):
                return "the number of rows is no whole number of at most 18 digits"
            text = name.decode("latin-1")
            if text in elements:
                return "a second element of that name"
            elements[text] = Element(text, int(count))
            return ""
        case [b"property", b"list", length_type, value_type, name]:
            return _add_property(elements, name, value_type, length_type)
        case [b"property", value_type, name]:
            return _add_property(elements, name, value_type)
        case _:
            return (
                "allowed are format NAME 1.0, element NAME COUNT, property TYPE NAME, property list TYPE TYPE NAME, "
                "comment and obj_info"
            )


def _add_property(elements: dict[str, Element], name: bytes, value_type: bytes, length_type: bytes = b"") -> str:
    if not elements:
        return "a property before any element"
    if value_type not in _TYPES or (length_type and length_type not in _TYPES):
        return f"types are {_listed(_TYPES)}"
    if length_type and _TYPES[length_type][0] == "f":
        return "the length of a list is a whole number"
    properties = elements[next(reversed(elements))].properties
    text = name.decode("latin-1")
    if text in properties:
        return "a second property of that name"
    properties[text] = Property(_TYPES[value_type], _TYPES.get(length_type, ""))
    return ""


def _listed(words: dict[bytes, str]) -> str:
    return ", ".join(word.decode() for word in words)
