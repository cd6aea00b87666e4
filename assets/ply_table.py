"""The vertex table of any PLY file, read safely and fast: header, byte order, columns by name.

plyfile parses the header; the body is mapped here, because a header's counts are promises that must be
checked before memory is allocated. What the columns mean is not known here: read `ply.py` next.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from plyfile import PlyData, PlyElement, PlyListProperty, PlyParseError

from splatscope.assets.lfs import LFS_SENTENCE, lfs_pointer
from splatscope.kernels.errors import InputError

BLOCK_ROWS = 16384  # rows handled at once: 4 MB of splats, which stays in the cache between passes
_TEXT_SAMPLE = 256  # bytes; by chance not one in 10^60 files consists of digits that far
_HEADER_LIMIT = 1 << 20  # bytes; a header of 62 properties is 1.5 kB, so this is no limit for real files


@dataclass(frozen=True, eq=False)
class VertexTable:
    """The element `vertex` of one file; nothing is read before `blocks` is iterated."""

    path: Path
    names: tuple[str, ...]  # properties, in file order
    count: int  # rows, checked against the size of the file
    _element: PlyElement
    _byte_order: str  # "<", ">" or "=" for text
    _offset: int  # bytes before the first row (binary) or before the body (text)
    _lines_before: int  # lines of other elements before the first row (text only)
    comments: tuple[str, ...] = ()  # of the header

    def is_float(self, name: str) -> bool:
        """True if the file has that property with a floating-point type."""
        return name in self.names and np.dtype(self._element.ply_property(name).dtype()).kind == "f"

    def blocks(self, names: Sequence[str], dtype: DTypeLike = np.float32) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yields (rows, values [rows, len(names)]) from first to last; values are the caller's."""
        return self._text(names, dtype) if self._byte_order == "=" else self._binary(names, dtype)

    def _binary(self, names: Sequence[str], dtype: DTypeLike) -> Iterator[tuple[slice, NDArray[Any]]]:
        columns = [self.names.index(name) for name in names]
        record = self._element.dtype(self._byte_order)
        types = {record[name] for name in self.names}
        records = np.memmap(self.path, record, "r", self._offset, (self.count,)) if self.count else np.empty(0, record)
        # One type throughout, which is every splat file: the records are a matrix, and a block is one gather.
        matrix = records.view(types.pop()).reshape(self.count, len(self.names)) if len(types) == 1 else None
        for start in range(0, self.count, BLOCK_ROWS):
            rows = slice(start, min(start + BLOCK_ROWS, self.count))
            with np.errstate(over="ignore", invalid="ignore"):  # doubles beyond float32 become infinite
                if matrix is not None:
                    yield rows, matrix[rows].take(columns, axis=1).astype(dtype, copy=False)
                else:
                    values = np.empty((rows.stop - rows.start, len(names)), dtype)
                    for column, name in enumerate(names):
                        values[:, column] = records[name][rows]
                    yield rows, values

    def _text(self, names: Sequence[str], dtype: DTypeLike) -> Iterator[tuple[slice, NDArray[Any]]]:
        columns = [self.names.index(name) for name in names]
        with open(self.path, encoding="latin-1") as file:
            file.seek(self._offset)
            lines = (line for line in file if not line.isspace())
            for _ in itertools.islice(lines, self._lines_before):
                pass
            for start in range(0, self.count, BLOCK_ROWS):
                rows = slice(start, min(start + BLOCK_ROWS, self.count))
                block = list(itertools.islice(lines, rows.stop - start))
                if len(block) < rows.stop - start:
                    raise _cut_short(self.path, self.count, start + len(block), "lines")
                try:
                    if len(block[0].split()) != len(self.names):
                        raise ValueError
                    with np.errstate(over="ignore"):
                        values = np.loadtxt(block, np.float64, comments=None, usecols=columns, ndmin=2).astype(dtype)
                except ValueError as error:
                    raise InputError(
                        f"{self.path} is damaged: among rows {start:,} to {rows.stop - 1:,} there is one that is "
                        f"not {len(self.names)} numbers. Export or download it again."
                    ) from error
                yield rows, values


def open_vertices(path: Path | str) -> VertexTable:
    """Reads the header and checks that the rows it promises are there.

    Raises InputError if the file is missing, no PLY, cut short, or has no usable element `vertex`.
    """
    path = Path(path)
    header, size = _read_header(path)
    elements, counts, byte_order = _parse_header(path, header)
    position = next((i for i, element in enumerate(elements) if element.name == "vertex"), None)
    if position is None:
        raise InputError(
            f"{path} has no element 'vertex', only {_listed(e.name for e in elements)}; it holds no splats or points."
        )
    vertex, count = elements[position], counts[position]
    lists = [p.name for p in vertex.properties if isinstance(p, PlyListProperty)]
    if lists:
        raise InputError(f"{path} keeps lists ({_listed(lists)}) in its vertices; splats and points have numbers only.")
    names = tuple(p.name for p in vertex.properties)
    lines = (line.strip() for line in header.decode("latin-1").splitlines())
    comments = tuple(line.removeprefix("comment").strip() for line in lines if line.startswith("comment"))
    if byte_order == "=":
        lines_before = sum(counts[:position])
        # Each number takes a digit and a separator, so the file's size bounds the rows.
        if (count * len(names) + lines_before) * 2 > size - len(header) + 1:
            raise _cut_short(path, count, (size - len(header)) // max(2 * len(names), 1), "lines at most")
        return VertexTable(path, names, count, vertex, byte_order, len(header), lines_before, comments)
    offset = _binary_offset(path, elements[:position], counts, byte_order, len(header), size)
    row_bytes = vertex.dtype(byte_order).itemsize
    if offset + count * row_bytes > size:
        left = max(size - offset, 0)
        raise _cut_short(path, count, left // row_bytes, f"whole rows ({left:,} of {count * row_bytes:,} bytes)")
    _refuse_text(path, offset, min(count * row_bytes, _TEXT_SAMPLE))
    return VertexTable(path, names, count, vertex, byte_order, offset, 0, comments)


def read_comments(path: Path | str) -> list[str]:
    """The comments in the header of a PLY file, without the word itself. Raises InputError if it has no header."""
    header, _ = _read_header(Path(path))
    lines = (line.strip() for line in header.decode("utf-8", "replace").splitlines())
    return [line.removeprefix("comment").strip() for line in lines if line.split(" ")[0] == "comment"]


def _refuse_text(path: Path, offset: int, length: int) -> None:
    """Raises InputError if rows said to be binary are digits and blanks: any bytes at all would pass for numbers."""
    with open(path, "rb") as file:
        file.seek(offset)
        start = file.read(length)
    if len(start) >= _TEXT_SAMPLE // 4 and not start.strip(b"0123456789+-.eEnaif \t\r\n"):
        raise InputError(f"{path} is damaged: its header says binary, but its rows are text. Export it again.")


def _read_header(path: Path) -> tuple[bytes, int]:
    """The header with its last newline, and the size of the file in bytes."""
    try:
        with open(path, "rb") as file:
            start = file.read(_HEADER_LIMIT)
            size = file.seek(0, io.SEEK_END)
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist.") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder, not a PLY file.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or 'the system refused it'}.") from error
    if not start:
        raise InputError(f"{path} is empty (0 bytes). Export or download it again.")
    match = re.match(rb"ply[ \t]*(\r\n|\n|\r)", start)
    if match is None:
        raise InputError(f"{path} is not a PLY file: {_what_it_is(start)}")
    newline = match[1]
    end = re.search(newline + rb"[ \t]*end_header[ \t]*" + newline, start)
    if end is None:
        if len(start) < _HEADER_LIMIT:
            raise InputError(f"{path} is cut short: its header has no end_header. Export or download it again.")
        raise InputError(f"{path} is damaged: there is no end_header in its first {_HEADER_LIMIT:,} bytes.")
    return start[: end.end()], size


def _what_it_is(start: bytes) -> str:
    text = start[:200].decode("latin-1").lstrip()
    if text[:1] == "<":
        return "it is a web page or XML, often a failed download. Download it again."
    if start[:2] == b"\x1f\x8b" or start[:4] == b"PK\x03\x04":
        return "it is a gzip or ZIP archive. Unpack it first."
    if lfs_pointer(start):
        return LFS_SENTENCE
    return f"it should begin with the line 'ply', but begins with {start[:12]!r}."


def _parse_header(path: Path, header: bytes) -> tuple[list[PlyElement], list[int], str]:
    """Elements, their row counts, and the byte order ("=" for text).

    plyfile sees the header without comments (theirs may be in any encoding) and with every count at zero,
    so that it has no body to read: Python loops over a million faces would only delay a refusal.
    """
    newline = re.match(rb"ply[ \t]*(\r\n|\n|\r)", header)
    assert newline is not None
    lines, counts = [], []
    for raw in header.decode("latin-1").split(newline[1].decode()):
        line = raw.strip()
        words = line.split()
        if not words or words[0] in ("comment", "obj_info"):
            continue
        if words[0] == "element" and len(words) == 3:
            if not re.fullmatch(r"\d{1,18}", words[2]):
                raise InputError(f"{path} is damaged: its header gives {words[2]!r} as the number of {words[1]!r}.")
            counts.append(int(words[2]))
            line = f"element {words[1]} 0"
        lines.append(line)
    try:
        data = PlyData.read(io.BytesIO("\n".join([*lines, ""]).encode("latin-1")))
    except (PlyParseError, ValueError, UnicodeError) as error:
        number = getattr(error, "line", None) or 0  # of the line, from 1; 0 where plyfile does not say
        wrong = f", at {lines[number - 1][:60]!r}" if 0 < number <= len(lines) else ""
        raise InputError(f"{path} is damaged: its PLY header cannot be understood{wrong}.") from error
    return list(data.elements), counts, "=" if data.text else data.byte_order


def _binary_offset(
    path: Path, before: Sequence[PlyElement], counts: Sequence[int], byte_order: str, offset: int, size: int
) -> int:
    """Where the vertices begin: the header plus all elements written before them."""
    for element, count in zip(before, counts, strict=False):
        if any(isinstance(p, PlyListProperty) for p in element.properties):
            offset = _skip_lists(path, element, count, byte_order, offset)
        else:
            offset += count * element.dtype(byte_order).itemsize
        if offset > size:
            raise InputError(f"{path} is cut short: it ends inside its element {element.name!r}, before the vertices.")
    return offset


def _skip_lists(path: Path, element: PlyElement, count: int, byte_order: str, offset: int) -> int:
    """Rows with lists have no fixed size, so they are walked; each takes a byte at least, which bounds the loop."""
    content = np.memmap(path, np.uint8, "r")
    steps = []  # per property: type of the length (None for a plain number), bytes of one value
    for p in element.properties:
        if isinstance(p, PlyListProperty):
            length, value = (np.dtype(t) for t in p.list_dtype(byte_order))
            if length.kind == "f":
                raise InputError(f"{path} is damaged: the list {p.name!r} of {element.name!r} has fractional lengths.")
            steps.append((length, value.itemsize))
        else:
            steps.append((None, np.dtype(p.dtype(byte_order)).itemsize))
    for _ in range(count):
        for length, value_bytes in steps:
            if length is not None:
                field = content[offset : offset + length.itemsize]
                if field.size < length.itemsize:
                    return content.size + 1  # past the end; the caller says so
                offset += length.itemsize + value_bytes * max(int(field.view(length)[0]), 0)
            else:
                offset += value_bytes
    return offset


def _cut_short(path: Path, expected: int, found: int, unit: str) -> InputError:
    return InputError(
        f"{path} is cut short: its header promises {expected:,} rows, but the file holds {found:,} {unit}. "
        "Export or download it again."
    )


def _listed(names: Iterator[str] | Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
