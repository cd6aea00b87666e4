"""Reads the vertex table of any PLY file safely and fast: finds rows, and columns by name.

Each count in a header is checked against the size of the file before memory is allocated. Rows are read, not mapped,
because a mapped file that another program shortens ends the process. `ply.py` knows what the columns mean; read it
next.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from splatscope.assets.files.lfs import LFS_SENTENCE, lfs_pointer
from splatscope.assets.splats.ply_header import HEADER_LIMIT, Element, Header, is_ply, parse_header, shortened
from splatscope.kernels.errors import InputError

BLOCK_ROWS = 16384  # rows handled at once: 4 MB of splats, which stays in the cache between passes
_BLOCK_BYTES = 4 << 20  # most bytes of a block with longer rows
_LINE_LIMIT = 1 << 20  # most characters of a row of text; 62 numbers take a thousand
_TEXT_SAMPLE = 256  # bytes tested for being digits; by chance not one in 10^60 binary files is
_WALK_BYTES = 16 << 20  # bytes of rows with lists that are read at once
_NAMED = 12  # most names in a sentence
_FEW_BYTES = 1 << 18  # bytes of rows with lists; more are worth the second of compiling


@dataclass(frozen=True, eq=False)
class VertexTable:
    """Reads the element `vertex` of one file; reads nothing before `blocks` is iterated."""

    path: Path
    names: tuple[str, ...]  # properties, in file order
    count: int  # rows, checked against the size of the file
    _element: Element
    _byte_order: str  # "<", ">" or "=" for text
    _offset: int  # bytes before the first row (binary) or before the body (text)
    _lines_before: int  # lines of other elements before the first row (text only)
    comments: tuple[str, ...] = ()  # of the header

    def type_of(self, name: str) -> np.dtype:
        """Returns the type of a property's values. Raises KeyError if the file has no property of that name."""
        return np.dtype(self._element.properties[name].type)

    def blocks(self, names: Sequence[str], dtype: DTypeLike = np.float32) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yields (rows, values [rows, len(names)]) from first to last; the caller owns the values.

        Raises InputError if a row is damaged, or if the file has become shorter since it was opened.
        """
        return self._text(names, dtype) if self._byte_order == "=" else self._binary(names, dtype)

    def _rows(self, row_bytes: int) -> Iterator[slice]:
        """Yields the rows of each block."""
        step = max(1, min(BLOCK_ROWS, _BLOCK_BYTES // max(row_bytes, 1)))
        return (slice(start, min(start + step, self.count)) for start in range(0, self.count, step))

    def _binary(self, names: Sequence[str], dtype: DTypeLike) -> Iterator[tuple[slice, NDArray[Any]]]:
        columns = [self.names.index(name) for name in names]
        record = self._element.record(self._byte_order)
        types = {record[name] for name in self.names}
        # All properties have one type, as in every splat file: the records are a matrix, and a block is one gather.
        single = types.pop() if len(types) == 1 else None
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            for rows in self._rows(record.itemsize):
                records = np.fromfile(file, record, rows.stop - rows.start)
                if len(records) < rows.stop - rows.start:
                    raise _cut_short(self.path, self.count, rows.start + len(records), "whole rows")
                with np.errstate(over="ignore", invalid="ignore"):  # doubles beyond float32 become infinite
                    if single is not None:
                        matrix = records.view(single).reshape(len(records), len(self.names))
                        yield rows, matrix.take(columns, axis=1).astype(dtype, copy=False)
                        continue
                    values = np.empty((len(records), len(names)), dtype)
                    for column, name in enumerate(names):
                        values[:, column] = records[name]
                yield rows, values

    def _text(self, names: Sequence[str], dtype: DTypeLike) -> Iterator[tuple[slice, NDArray[Any]]]:
        columns = [self.names.index(name) for name in names]
        with open(self.path, encoding="latin-1") as file:
            lines = (line for _, line in self._lines(file))
            for rows in self._rows(8 * len(self.names)):
                block = list(itertools.islice(lines, rows.stop - rows.start))
                if len(block) < rows.stop - rows.start:
                    raise _cut_short(self.path, self.count, rows.start + len(block), "lines")
                values = self._numbers(block)
                if values is None:
                    raise self._damaged_row(rows)
                with np.errstate(over="ignore"):
                    yield rows, values[:, columns].astype(dtype)

    def _lines(self, file: IO[str]) -> Iterator[tuple[int, str]]:
        """Yields the lines of vertices with their numbers in the body, from 0, without blank ones."""
        file.seek(self._offset)
        lines = ((number, line) for number, line in enumerate(file) if not line.isspace())
        return itertools.islice(lines, self._lines_before, None)

    def _numbers(self, block: list[str]) -> NDArray[np.float64] | None:
        """Returns the values [lines, len(self.names)] of lines of text; None if a line has another number of them."""
        if max(map(len, block)) > _LINE_LIMIT:
            return None
        try:
            values = np.loadtxt(block, np.float64, comments=None, ndmin=2)
        except ValueError:
            return None
        return values if values.shape == (len(block), len(self.names)) else None

    def _damaged_row(self, rows: slice) -> InputError:
        """Returns the error that names the first row among `rows` with another number of values than there are
        properties.
        """
        with open(self.path, "rb") as file:
            header_lines = len(file.read(self._offset).splitlines())
        with open(self.path, encoding="latin-1") as file:
            lines = itertools.islice(enumerate(self._lines(file)), rows.start, rows.stop)
            damaged = ((row, n, self._damage(line)) for row, (n, line) in lines if self._numbers([line]) is None)
            row, number, what = next(damaged, (rows.start, 0, "cannot be read any more"))
        line = header_lines + number + 1
        return InputError(
            f"{self.path} is damaged: row {row:,} of its vertices, counted from 0, {what} (line {line:,} of the file). "
            "Export or download it again."
        )

    def _damage(self, line: str) -> str:
        """Returns a sentence that names the fault in a row of text."""
        if len(line) > _LINE_LIMIT:
            return f"has {len(line):,} characters instead of {len(self.names)} numbers"
        words = line.split()
        if len(words) != len(self.names):
            return f"has {len(words)} values instead of {len(self.names)}: {shortened(line.strip())}"
        wrong = next(column for column, word in enumerate(words) if not _is_number(word))
        return f"has {shortened(words[wrong])} as {shortened(self.names[wrong])}, which is not a number"


def open_vertices(path: Path | str) -> VertexTable:
    """Reads the header and checks that the rows it promises are there.

    Raises InputError if the file is missing, no PLY, cut short, or has no usable element `vertex`.
    """
    path = Path(path)
    header, size = _read_header(path)
    position = next((i for i, element in enumerate(header.elements) if element.name == "vertex"), None)
    if position is None:
        others = _listed([element.name for element in header.elements])
        only = f", only {others}" if others else ""
        raise InputError(f"{path} has no element 'vertex'{only}; it holds no splats or points.")
    before, vertex = header.elements[:position], header.elements[position]
    if vertex.lists:
        raise InputError(
            f"{path} keeps lists ({_listed(vertex.lists)}) in its vertices; splats and points have numbers only."
        )
    names, count, byte_order = tuple(vertex.properties), vertex.count, header.byte_order
    if byte_order == "=":
        lines_before = sum(element.count for element in before)
        # Each number takes a digit and a separator, as does each line of another element, so the size limits the rows.
        if (count * max(len(names), 1) + lines_before) * 2 > size - header.size + 1:
            raise _cut_short(path, count, (size - header.size) // max(2 * len(names), 1), "lines at most")
        return VertexTable(path, names, count, vertex, byte_order, header.size, lines_before, header.comments)
    offset = _binary_offset(path, header, position, size)
    row_bytes = vertex.record(byte_order).itemsize
    if offset + count * max(row_bytes, 1) > size:
        left = max(size - offset, 0)
        found = f"whole rows ({left:,} of {count * row_bytes:,} bytes)"
        raise _cut_short(path, count, left // max(row_bytes, 1), found)
    _refuse_text(path, offset, min(count * row_bytes, _TEXT_SAMPLE))
    return VertexTable(path, names, count, vertex, byte_order, offset, 0, header.comments)


def read_comments(path: Path | str) -> list[str]:
    """Returns the comments of a PLY file, without the word "comment". Raises InputError if it has no header."""
    return list(_read_header(Path(path))[0].comments)


def _refuse_text(path: Path, offset: int, length: int) -> None:
    """Raises InputError if rows declared binary are digits and blanks. Otherwise any text would pass for numbers."""
    with open(path, "rb") as file:
        file.seek(offset)
        start = file.read(length)
    if len(start) >= _TEXT_SAMPLE // 4 and not start.strip(b"0123456789+-.eEnaif \t\r\n"):
        raise InputError(f"{path} is damaged: its header says binary, but its rows are text. Export it again.")


def _read_header(path: Path) -> tuple[Header, int]:
    """Returns the header, and the size of the file in bytes."""
    try:
        with open(path, "rb") as file:
            start = file.read(HEADER_LIMIT)
            size = file.seek(0, io.SEEK_END)
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist.") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder, not a PLY file.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or 'the system refused it'}.") from error
    if not start:
        raise InputError(f"{path} is empty (0 bytes). Export or download it again.")
    if not is_ply(start):
        raise InputError(f"{path} is not a PLY file: {_what_it_is(start)}")
    return parse_header(path, start), size


def _what_it_is(start: bytes) -> str:
    text = start[:200].decode("latin-1").lstrip()
    if text[:1] == "<":
        return "it is a web page or XML, often a failed download. Download it again."
    if start[:2] == b"\x1f\x8b" or start[:4] == b"PK\x03\x04":
        return "it is a gzip or ZIP archive. Unpack it first."
    if lfs_pointer(start):
        return LFS_SENTENCE
    first = text.splitlines()[0][:40] if text else ""
    begins = f"with '{first}'" if first.isprintable() and first else "with bytes that are no text"
    return f"it should begin with the line 'ply', but begins {begins}. Give a PLY file."


def _binary_offset(path: Path, header: Header, position: int, size: int) -> int:
    """Returns where the vertices begin: behind the header and all elements written before them."""
    offset = header.size
    for element in header.elements[:position]:
        if element.lists:
            offset = _skip_lists(path, element, header.byte_order, offset, size)
        else:
            offset += element.count * element.record(header.byte_order).itemsize
        if offset > size:
            name = shortened(element.name)
            raise InputError(f"{path} is cut short: it ends inside its element {name}, before the vertices.")
    return offset


def _skip_lists(path: Path, element: Element, byte_order: str, offset: int, size: int) -> int:
    """Returns where an element with lists ends, or a place beyond `size` if the file ends inside it.

    Rows with lists have no fixed size, so they are walked. Each takes at least a byte, which limits the walk.
    """
    lengths = [np.dtype(p.length_type) if p.length_type else None for p in element.properties.values()]
    length_bytes = np.array([length.itemsize if length else 0 for length in lengths])
    is_signed = np.array([length is not None and length.kind == "i" for length in lengths])
    value_bytes = np.array([np.dtype(p.type).itemsize for p in element.properties.values()])
    walk = _walk if size - offset < _FEW_BYTES else _compiled_walk()
    row = step = 0
    with open(path, "rb") as file:
        while row < element.count:
            file.seek(offset)
            content = np.fromfile(file, np.uint8, max(0, min(_WALK_BYTES, size - offset)))
            moved, row, step = walk(
                content, row, element.count, step, length_bytes, is_signed, value_bytes, byte_order == ">"
            )
            if moved == 0:
                return size + 1
            offset += moved
    return offset


def _walk(
    content: NDArray[np.uint8],
    row: int,
    count: int,
    step: int,
    length_bytes: NDArray[np.int64],
    is_signed: NDArray[np.bool_],
    value_bytes: NDArray[np.int64],
    is_big_endian: bool,
) -> tuple[int, int, int]:
    """Walks over rows with lists as far as `content` has their lengths; returns bytes passed, row and property."""
    place = 0
    while row < count:
        while step < length_bytes.size:
            width = length_bytes[step]
            if place + width > content.size:
                return place, row, step
            length = 0 if width else 1  # of a plain value
            for i in range(width):
                length = length * 256 + int(content[place + i if is_big_endian else place + width - 1 - i])
            if is_signed[step] and length >= 1 << (8 * width - 1):
                length = 0  # some writers mark an empty list by a negative length
            place += width + length * value_bytes[step]
            step += 1
        step = 0
        row += 1
    return place, row, step


@lru_cache(maxsize=1)
def _compiled_walk() -> Callable[..., tuple[int, int, int]]:
    import numba  # takes a second to import and compile, which hardly any file is worth

    return numba.njit(_walk)


def _is_number(word: str) -> bool:
    try:
        np.loadtxt([word], np.float64, comments=None)
    except ValueError:
        return False
    return True


def _cut_short(path: Path, expected: int, found: int, unit: str) -> InputError:
    return InputError(
        f"{path} is cut short: its header promises {expected:,} rows, but the file holds {found:,} {unit}. "
        "Export or download it again."
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(shortened, names[:_NAMED])) + more
