"""Tests PLY files that are damaged, odd or malicious: each is read, or refused in one sentence, at a bounded cost."""

from __future__ import annotations

import os
import random
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from splatscope.assets.splats.ply import read_ply, read_point_cloud, write_ply
from splatscope.assets.splats.ply_table import open_vertices
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Gaussians
from tests.support.places import DATA

FAULTS = DATA / "faults"
XYZ = "property float x\nproperty float y\nproperty float z\n"
TEXT, BINARY = "ply\nformat ascii 1.0\n", "ply\nformat binary_little_endian 1.0\n"


def splats(count: int) -> Gaussians:
    rng = np.random.default_rng(count)
    shapes = ((3,), (3,), (4,), (), (4, 3))
    return Gaussians(*(rng.normal(size=(count, *shape)).astype(np.float32) for shape in shapes))


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as refused:
        read_point_cloud(path)
    return str(refused.value)


@pytest.mark.parametrize("place", ["first", "inner", "last"])
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1 2 3 4", "has 4 values instead of 5: '1 2 3 4'"),
        ("1 2 3 4 5 6", "has 6 values instead of 5: '1 2 3 4 5 6'"),
        ("1 2 x 4 5", "has 'x' as 'z', which is not a number"),
        ("1 2 3 4 1_0", "has '1_0' as 'b', which is not a number"),
        ("1 2 \x1b[2J 4 5", r"has '\x1b[2J' as 'z', which is not a number"),
    ],
)
def test_the_damaged_row_of_a_text_is_named_with_its_line(tmp_path: Path, place: str, row: str, said: str) -> None:
    rows = ["1.5 2 3 4 5"] * 40_000  # several blocks
    number = {"first": 0, "inner": 20_020, "last": len(rows) - 1}[place]
    rows[number] = row
    header = f"{TEXT}element vertex {len(rows)}\n{XYZ}property float a\nproperty float b\nend_header\n\n"
    path = tmp_path / "a.ply"
    path.write_text(header + "\n".join(rows))
    line = header.count("\n") + number + 1
    assert f"row {number:,} of its vertices, counted from 0, {said} (line {line:,} of the file)" in refusal(path)
    assert path.read_text().split("\n")[line - 1] == row


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("other", ["\n", "\r\n", "\r"])
def test_newlines_of_two_kinds_hide_no_line(tmp_path: Path, newline: str, other: str) -> None:
    header = f"{BINARY}element vertex 1\n{XYZ}element a 0\nend_header\n".replace("\n", newline)
    path, body = tmp_path / "a.ply", np.arange(3, dtype="<f4").tobytes()
    path.write_bytes(header.replace(f"1{newline}property", f"1{other}property").encode() + body)
    assert read_point_cloud(path).positions.tolist() == [[0, 1, 2]]
    hidden = header.replace("element a 0", f"element b 0{other}element vertex 99999999999{other}property float q")
    path.write_bytes(hidden.encode() + body)
    number = hidden.encode().splitlines().index(b"element vertex 99999999999") + 1
    assert f"at line {number}, 'element vertex 99999999999': a second element of that name" in refusal(path)


@pytest.mark.parametrize("count", ["300000000", "99999999999"])
@pytest.mark.parametrize("rows", ["property list uchar int q", "property float q", ""])
@pytest.mark.parametrize("text", [True, False])
def test_counts_are_held_against_the_file_before_anything_is_allocated(
    tmp_path: Path, count: str, rows: str, text: bool
) -> None:
    path = tmp_path / "a.ply"
    for elements in (
        f"element b {count}\n{rows}\nelement vertex 1\n{XYZ}",
        f"element vertex {count}\n{XYZ if rows else ''}",
    ):
        path.write_bytes(f"{TEXT if text else BINARY}{elements}end_header\n".encode() + b"1 2 3\n" * 3)
        tracemalloc.start()
        said = refusal(path) if rows or text or "vertex 1\n" not in elements else ""
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert not said or "cut short" in said
        assert peak < 4 << 20


@pytest.mark.parametrize("kind", ["narrow", "float", "none"])
def test_points_take_little_more_memory_than_their_file(tmp_path: Path, kind: str) -> None:
    count = 400_000
    colors = {"narrow": "u1", "float": "<f4", "none": ""}[kind]
    names = [f"property {'uchar' if kind == 'narrow' else 'float'} {name}\n" for name in ("red", "green", "blue")]
    record = np.dtype([("xyz", "<f4", 3), ("other", "<f4", 6), *([("rgb", colors, 3)] if colors else [])])
    others = "".join(f"property float o{i}\n" for i in range(6))
    header = f"{BINARY}element vertex {count}\n{XYZ}{others}{''.join(names) if colors else ''}end_header\n"
    rows = np.zeros(count, record)
    rows["xyz"][7, 1] = np.nan
    path = tmp_path / "a.ply"
    path.write_bytes(header.encode() + rows.tobytes())
    del rows
    tracemalloc.start()
    cloud = read_point_cloud(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(cloud.positions) == count - 1
    assert f"Left out: 1 of {count:,} points" in cloud.remarks[0]
    assert peak < 2 * path.stat().st_size


@pytest.mark.parametrize("text", [True, False])
def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(tmp_path: Path, text: bool) -> None:
    path = tmp_path / "a.ply"
    write_ply(path, splats(40_000), text=text)
    table = open_vertices(path)
    blocks = table.blocks(["x", "y"])
    next(blocks)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(InputError, match=r"cut short: its header promises 40,000 rows, but the file holds \d\d,\d\d\d"):
        list(blocks)


@pytest.mark.parametrize("order", ["little", "big"])
def test_many_rows_with_lists_before_the_vertices_are_passed_over(tmp_path: Path, order: str) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(-1, 3, 150_000)
    sizes = 2 + 2 * np.maximum(lengths, 0) + 1
    body = np.full(sizes.sum(), 77, np.uint8)
    starts = np.cumsum(sizes) - sizes
    body[starts[:, None] + np.arange(2)] = (
        lengths.astype("<i2" if order == "little" else ">i2").view("u1").reshape(-1, 2)
    )
    lists = f"element face {len(lengths)}\nproperty list short short i\nproperty uchar q\n"
    header = f"{BINARY.replace('little', order)}{lists}element vertex 1\n{XYZ}end_header\n".encode()
    last = np.arange(3, dtype="<f4" if order == "little" else ">f4").tobytes()
    path = tmp_path / "a.ply"
    path.write_bytes(header + body.tobytes() + last)
    assert read_point_cloud(path).positions.tolist() == [[0, 1, 2]]
    path.write_bytes(header + body.tobytes()[:-50_000])
    assert "ends inside its element 'face'" in refusal(path)


def test_names_from_a_file_are_shown_short_and_without_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.ply"
    for name in ("\x1b[31mred\x07", "n" * 5000):
        path.write_text(f"{BINARY}element vertex 0\nproperty float {name}\nend_header\n")
        with pytest.raises(InputError) as refused:
            read_ply(path)
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 300 + len(str(path))


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Returns the content with one fault, such as damaged disks and odd writers make."""
    header, _, body = content.partition(b"end_header\n")
    place = rng.randrange(len(header))
    kind = rng.randrange(7)
    if kind == 0:
        return content[: rng.randrange(len(content))]
    if kind == 1:
        place = rng.randrange(len(content))
        return content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]
    if kind == 2:
        header = re.sub(rb"\n", lambda _: rng.choice((b"\n", b"\r\n", b"\r", b"\n\n")), header)
    elif kind == 3:
        header = re.sub(rb"(element \w+) \d+", lambda m: m[1] + b" %d" % rng.choice((0, 7, 10**9, 10**17)), header)
    elif kind == 4:
        types = (b"float", b"double", b"uchar", b"list uchar int", b"list int float", b"float16", b"")
        header = re.sub(rb"float|int", lambda m: m[0] if rng.random() < 0.8 else rng.choice(types), header)
    elif kind == 5:
        header = header[:place] + header[rng.randrange(place, len(header)) :]
    else:
        lists = b"element face %d\nproperty list uint double i\n" % rng.choice((0, 3, 10**12))
        header = header.replace(b"element vertex", lists + b"element vertex")
    return header + b"end_header\n" + body


@pytest.mark.parametrize("text", [True, False])
def test_mutated_files_are_read_or_refused_in_one_printable_sentence(tmp_path: Path, text: bool) -> None:
    path = tmp_path / "a.ply"
    write_ply(path, splats(30), text=text)
    content, rng = path.read_bytes(), random.Random(text)
    said = []
    for _ in range(300):
        path.write_bytes(mutated(content, rng))
        for read in (read_ply, read_point_cloud):
            try:
                read(path)
            except InputError as error:
                said.append(str(error))
    assert 200 < len(said) < 600
    assert all(sentence.isprintable() for sentence in said)


@pytest.mark.skipif(not FAULTS.exists(), reason="the shared test data is not here")
@pytest.mark.parametrize(
    ("file", "said"),
    [
        (
            "ascii-row-not-named/n20-ascii-short-row.ply",
            r"row 20 of its vertices, counted from 0, has 40 values instead",
        ),
        ("ply-mixed-newlines/index.ply", "lack f_dc_0"),
        ("ply-mixed-newlines/big.ply", "lack f_dc_0"),
        ("ply-mixed-newlines/mem.ply", "cut short"),
    ],
)
def test_files_that_went_wrong_in_use_are_refused_for_what_they_are(file: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_ply(FAULTS / file)
