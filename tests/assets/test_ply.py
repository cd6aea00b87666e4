"""Tests reading and writing PLY: bit-exact round trips, every layout, and files that are not what they should be."""

from __future__ import annotations

import errno
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plyfile import PlyData, PlyElement

from splatscope.assets.files.atomic import atomic_path
from splatscope.assets.formats import read_splat_file
from splatscope.assets.geometry.recentre import rebased
from splatscope.assets.splats.ply import read_ply, read_point_cloud, write_ply
from splatscope.assets.splats.read_as import ReadAs
from splatscope.kernels.errors import InputError
from splatscope.kernels.primitive import FLAT_LOG_SCALE
from splatscope.kernels.types import Gaussians
from tests.support.places import DATA

ODD = DATA / "odd"
FIELDS = ("means", "log_scales", "quats", "logit_opacities", "sh")


def bits(gaussians: Gaussians) -> list[np.ndarray]:
    return [np.ascontiguousarray(getattr(gaussians, name)).view(np.uint32) for name in FIELDS]


def same_bits(a: Gaussians, b: Gaussians) -> bool:
    return all(x.shape == y.shape and (x == y).all() for x, y in zip(bits(a), bits(b), strict=True))


def random_bits(count: int, degree: int, finite: bool = False) -> Gaussians:
    """Returns splats of arbitrary bit patterns: NaN payloads, infinities and denormals among them."""
    random = np.random.default_rng(degree)

    def draw(*shape: int) -> np.ndarray:
        if finite:
            return random.normal(size=shape).astype(np.float32)
        return random.integers(0, 1 << 32, shape, np.uint32).view(np.float32)

    return Gaussians(draw(count, 3), draw(count, 3), draw(count, 4), draw(count), draw(count, (degree + 1) ** 2, 3))


def as_columns(g: Gaussians) -> dict[str, np.ndarray]:
    """Returns named columns, spelled out here from the published layout rather than from the reader."""
    bands = g.sh.shape[1] - 1
    columns = {axis: g.means[:, i] for i, axis in enumerate("xyz")}
    columns |= {f"f_dc_{c}": g.sh[:, 0, c] for c in range(3)}
    columns |= {f"f_rest_{c * bands + k}": g.sh[:, 1 + k, c] for c in range(3) for k in range(bands)}
    columns |= {"opacity": g.logit_opacities}
    columns |= {f"scale_{i}": g.log_scales[:, i] for i in range(3)}
    return columns | {f"rot_{i}": g.quats[:, i] for i in range(4)}


def as_element(columns: dict[str, np.ndarray], types: dict[str, str], default: str = "f4") -> PlyElement:
    rows = np.zeros(len(columns["x"]), [(name, types.get(name, default)) for name in columns])
    for name, values in columns.items():
        rows[name] = values
    return PlyElement.describe(rows, "vertex")


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_what_is_saved_is_loaded_bit_for_bit(tmp_path: Path, degree: int) -> None:
    splats = random_bits(40_000 if degree == 0 else 500, degree)  # 40,000 rows take several blocks
    write_ply(tmp_path / "a.ply", splats)
    assert same_bits(read_ply(tmp_path / "a.ply"), splats)


@pytest.mark.parametrize("text", [False, True], ids=["binary", "ascii"])
def test_disks_have_two_scales_in_the_file_and_are_loaded_bit_for_bit(tmp_path: Path, text: bool) -> None:
    splats = random_bits(300, 2, finite=True)
    splats.log_scales[:, 2] = FLAT_LOG_SCALE
    disks = replace(splats, primitive="2dgs")
    write_ply(tmp_path / "a.ply", disks, text=text, offset=(1e6, 0.0, 0.0))
    names = [p.name for p in PlyData.read(tmp_path / "a.ply")["vertex"].properties]
    assert [name for name in names if name.startswith("scale")] == ["scale_0", "scale_1"]
    found = read_ply(tmp_path / "a.ply", (1e6, 0.0, 0.0))
    assert found.primitive == "2dgs"
    assert same_bits(replace(found, means=disks.means), disks)
    np.testing.assert_allclose(found.means, disks.means, atol=1e-9 * 1e6)


def test_rays_are_told_from_flattened_gaussians_by_a_comment(tmp_path: Path) -> None:
    splats = random_bits(5, 1, finite=True)
    write_ply(tmp_path / "a.ply", replace(splats, primitive="3dgut"), comments=["of a run"])
    found = read_ply(tmp_path / "a.ply")
    assert (found.primitive, same_bits(found, splats)) == ("3dgut", True)
    write_ply(tmp_path / "b.ply", splats, comments=["of a run"])
    assert read_ply(tmp_path / "b.ply").primitive == "3dgs"


def test_a_comment_that_does_not_fit_the_columns_is_refused_and_other_comments_mean_nothing(tmp_path: Path) -> None:
    disks = replace(random_bits(5, 0, finite=True), primitive="2dgs")
    write_ply(tmp_path / "a.ply", disks, comments=["primitive 3dgut"])
    with pytest.raises(InputError, match='has the comment "primitive 3dgut", but the scales of 2dgs'):
        read_ply(tmp_path / "a.ply")
    write_ply(tmp_path / "b.ply", disks, comments=["primitive mesh"])
    assert read_ply(tmp_path / "b.ply").primitive == "2dgs"


def test_two_scales_next_to_one_with_another_number_are_no_disk(tmp_path: Path) -> None:
    columns = as_columns(random_bits(2, 0))
    columns["scale_3"] = columns.pop("scale_2")
    PlyData([as_element(columns, {})]).write(tmp_path / "a.ply")
    with pytest.raises(InputError, match="lack scale_2"):
        read_ply(tmp_path / "a.ply")


def test_a_file_is_read_as_the_primitive_that_is_asked_for(tmp_path: Path) -> None:
    splats = random_bits(5, 1, finite=True)
    write_ply(tmp_path / "a.ply", splats)
    rays = read_splat_file(tmp_path / "a.ply", ReadAs(primitive="3dgut")).gaussians
    assert (rays.primitive, same_bits(rays, splats)) == ("3dgut", True)
    disks = read_splat_file(tmp_path / "a.ply", ReadAs(primitive="2dgs")).gaussians
    assert (disks.primitive, set(disks.log_scales[:, 2])) == ("2dgs", {np.float32(FLAT_LOG_SCALE)})
    np.testing.assert_array_equal(disks.log_scales[:, :2], splats.log_scales[:, :2])
    write_ply(tmp_path / "b.ply", disks)
    with pytest.raises(InputError, match="two scales, which are disks: --primitive 3dgut needs three"):
        read_splat_file(tmp_path / "b.ply", ReadAs(primitive="3dgut"))


def test_the_file_has_the_layout_that_others_read(tmp_path: Path) -> None:
    splats = random_bits(7, 3, finite=True)
    write_ply(tmp_path / "a.ply", splats, comments=["made by a test", "two\nlines, ünï"])
    data = PlyData.read(tmp_path / "a.ply")
    rest = " ".join(f"f_rest_{i}" for i in range(45))
    names = f"x y z nx ny nz f_dc_0 f_dc_1 f_dc_2 {rest} opacity scale_0 scale_1 scale_2 rot_0 rot_1 rot_2 rot_3"
    assert [p.name for p in data["vertex"].properties] == names.split()
    assert {p.val_dtype for p in data["vertex"].properties} == {"f4"}
    assert (data.byte_order, data.text, data.comments) == ("<", False, ["made by a test", "two lines, ?n?"])
    for name, values in as_columns(splats).items():
        assert (data["vertex"][name] == values).all(), name
    assert not any(data["vertex"][name].any() for name in ("nx", "ny", "nz"))


@pytest.mark.parametrize("text", [False, True], ids=["binary", "ascii"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("types", ["float", "double", "mixed"])
def test_any_order_type_and_encoding_gives_the_same_splats(tmp_path: Path, text: bool, order: str, types: str) -> None:
    splats = random_bits(50, 2, finite=True)
    columns = as_columns(splats) | {"label": np.arange(50.0)}
    names = list(columns)
    np.random.default_rng(0).shuffle(names)
    kinds = {"label": "u1", "x": "f8", "rot_2": "f8"} if types == "mixed" else {}
    vertex = as_element({name: columns[name] for name in names}, kinds, "f8" if types == "double" else "f4")
    lists = np.empty(3, [("vertex_indices", "O"), ("flags", "i4")])
    lists["vertex_indices"] = [np.arange(n, dtype=np.int32) for n in (3, 0, 5)]
    face = PlyElement.describe(lists, "face")
    plain = PlyElement.describe(np.ones(4, [("a", "f8"), ("b", "u1")]), "info")
    PlyData([plain, face, vertex, plain_copy(plain)], text=text, byte_order=order).write(tmp_path / "a.ply")
    assert same_bits(read_ply(tmp_path / "a.ply"), splats)


def plain_copy(element: PlyElement) -> PlyElement:
    return PlyElement.describe(np.array(element.data), "more")


@pytest.mark.parametrize("newline", [b"\r\n", b"\r"])
def test_header_lines_may_end_as_on_any_system(tmp_path: Path, newline: bytes) -> None:
    splats = random_bits(5, 0)
    write_ply(tmp_path / "a.ply", splats, comments=["x"])
    header, _, body = (tmp_path / "a.ply").read_bytes().partition(b"end_header\n")
    header = header.replace(b"comment x", "comment Gerät".encode("latin-1"))
    (tmp_path / "b.ply").write_bytes((header + b"end_header\n").replace(b"\n", newline) + body)
    assert same_bits(read_ply(tmp_path / "b.ply"), splats)


@pytest.mark.parametrize(("count", "named"), [(1, "1"), (8, "8"), (44, "44"), (72, "72")])
def test_an_odd_number_of_f_rest_is_refused_with_the_number(tmp_path: Path, count: int, named: str) -> None:
    columns = as_columns(random_bits(2, 0)) | {f"f_rest_{i}": np.zeros(2) for i in range(count)}
    PlyData([as_element(columns, {})]).write(tmp_path / "a.ply")
    with pytest.raises(InputError, match=f"has {named} f_rest properties; 0, 9, 24 or 45"):
        read_ply(tmp_path / "a.ply")


@pytest.mark.parametrize("missing", ["opacity", "rot_3", "scale_1", "f_dc_1", "z"])
def test_a_missing_property_is_named(tmp_path: Path, missing: str) -> None:
    columns = as_columns(random_bits(2, 1))
    del columns[missing]
    if missing == "z":
        columns["x"] = np.zeros(2)
    PlyData([as_element(columns, {})]).write(tmp_path / "a.ply")
    with pytest.raises(InputError, match=f"lack {missing} "):
        read_ply(tmp_path / "a.ply")


def test_vertices_without_any_property_are_said_to_have_none(tmp_path: Path) -> None:
    (tmp_path / "a.ply").write_text("ply\nformat ascii 1.0\nelement vertex 0\nend_header\n")
    with pytest.raises(InputError, match=r"\(they have no properties\)"):
        read_ply(tmp_path / "a.ply")


def outcome(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    try:
        read_ply(path)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", [False, True], ids=["binary", "ascii"])
def test_a_file_cut_anywhere_is_refused_in_words(tmp_path: Path, text: bool) -> None:
    stream = io.BytesIO()
    PlyData([as_element(as_columns(random_bits(3, 1, finite=True)), {})], text=text, byte_order="<").write(stream)
    content = stream.getvalue().rstrip(b"\n") if text else stream.getvalue()
    body = content.index(b"end_header\n") + len(b"end_header\n")
    for end in [*range(0, body, 5), *range(body - 12, len(content), 2)]:
        said = outcome(tmp_path / "a.ply", content[:end])
        if text and end > content.rfind(b" "):
            continue  # the last number lost digits, which no reader can know
        assert said, f"cut at {end} of {len(content)}"
        if not text and end >= body:
            assert "cut short: its header promises 3 rows" in said
            assert f"holds {(end - body) // 92} whole rows ({end - body:,} of 276 bytes)" in said


@pytest.mark.parametrize("text", [False, True], ids=["binary", "ascii"])
def test_damaged_headers_never_raise_anything_but_input_errors(tmp_path: Path, text: bool) -> None:
    stream = io.BytesIO()
    PlyData([as_element(as_columns(random_bits(2, 1, finite=True)), {})], text=text, byte_order="<").write(stream)
    content = stream.getvalue()
    header = content.index(b"end_header\n") + 11
    random = np.random.default_rng(3)
    refused = 0
    for position in range(header):
        for value in (content[position] ^ (1 << random.integers(8)), random.integers(256), ord("9")):
            damaged = bytearray(content)
            damaged[position] = value
            refused += bool(outcome(tmp_path / "a.ply", bytes(damaged)))
    assert refused > header  # most damage is noticed


@pytest.mark.parametrize("count", ["999999999999", "-1", "1e3", "99999999999999999999", "3.0"])
@pytest.mark.parametrize("text", [b"binary_little_endian", b"ascii"])
@pytest.mark.parametrize("element", ["vertex", "face"])
def test_counts_in_a_header_are_not_trusted(tmp_path: Path, count: str, text: bytes, element: str) -> None:
    splats = random_bits(3, 0)
    write_ply(tmp_path / "a.ply", splats)
    content = (tmp_path / "a.ply").read_bytes().replace(b"binary_little_endian", text)
    if element == "vertex":
        content = content.replace(b"element vertex 3", f"element vertex {count}".encode())
    else:
        lists = f"element face {count}\nproperty list uchar int vertex_indices\nelement vertex 3"
        content = content.replace(b"element vertex 3", lists.encode())
    assert outcome(tmp_path / "a.ply", content)


LISTS = "property list uchar int indices"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c + b"trailing" * 9, ""),  # whatever follows the last row is not ours
        (lambda c: c.replace(b"element vertex", b"obj_info by \xff\xfe\nelement vertex"), ""),
        (lambda c: c.replace(b"end_header", b"comment end_header comes\nend_header"), ""),
        (lambda c: with_header(c, lambda h: h.replace(b" ", b"\t").replace(b"\n", b" \n")), ""),
        (lambda c: c.replace(b"end_header", b"element face 10000\nproperty list uchar int i\nend_header"), ""),
        (lambda c: with_header(c, lambda h: h, b"some words and no rows"), "0 whole rows"),
        (lambda c: with_header(c, lambda h: h, b"0.25 -1e-05 nan " * 40), "header says binary, but its rows are text"),
        (lambda c: c.replace(b"binary_little_endian", b"ascii"), "damaged|cut short"),
        (lambda c: c.replace(b"float y", b"float x"), "cannot be understood"),
        (lambda c: c.replace(b"float y", b"float16 y"), "at line 5, 'property float16 y': types are char, int8"),
        (lambda c: c.replace(b"end_header", b"element vertex 5\nproperty int q\nend_header"), "cannot be understood"),
        (lambda c: c.replace(b"little_endian 1.0", b"little_endian 2.0"), "cannot be understood"),
        (lambda c: c.replace(b"format binary_little_endian 1.0\n", b""), "cannot be understood"),
        (lambda c: c.replace(b"float nx", b"float f_rest_9"), "10 f_rest properties; 0, 9, 24 or 45 are allowed"),
        (lambda c: c.replace(b"float opacity", b"float opacity\nproperty list uchar int m"), "keeps lists"),
        (lambda c: c.replace(b"vertex 5", b"vertex 6"), "promises 6 rows, but the file holds 5 whole rows"),
        (lambda c: c.replace(b"vertex 5", b"vertex 0"), "holds 0 splats"),
        (lambda c: before(c, "element face 2\n" + LISTS, b"\1\0\0\0\0\0"), ""),
        (lambda c: before(c, "element face 2\n" + LISTS, b"\xff\0\0\0\0\0"), "inside its element 'face'"),
        (lambda c: before(c, "element face 2\nproperty list int int i", b"\xff" * 4 + bytes(4)), ""),
        (lambda c: before(c, "element face 2\nproperty list uint double i", b"\xff" * 8), "inside its element 'face'"),
        (lambda c: before(c, f"element face {10**17}\nproperty int i", b""), "inside its element 'face'"),
        (lambda c: before(c, "element a 1\nproperty double v\nelement b 3\nproperty uchar w", bytes(11)), ""),
    ],
)
def test_odd_and_lying_files_open_whole_or_say_why(tmp_path: Path, change: Callable[[bytes], bytes], said: str) -> None:
    splats = random_bits(5, 1, finite=True)
    write_ply(tmp_path / "a.ply", splats)
    found = outcome(tmp_path / "a.ply", change((tmp_path / "a.ply").read_bytes()))
    if said:
        assert re.search(said, found)
    else:
        assert found == ""
        assert same_bits(read_ply(tmp_path / "a.ply"), splats)


def with_header(content: bytes, change: Callable[[bytes], bytes], body: bytes | None = None) -> bytes:
    header, end, rest = content.partition(b"end_header\n")
    return change(header) + end + (rest if body is None else body)


def before(content: bytes, elements: str, body: bytes) -> bytes:
    """Returns the file with more elements, and their rows, in front of the vertices."""
    content = content.replace(b"element vertex", elements.encode() + b"\nelement vertex")
    return content.replace(b"end_header\n", b"end_header\n" + body)


@pytest.mark.parametrize("text", [False, True], ids=["binary", "ascii"])
def test_a_file_cut_inside_any_element_is_refused(tmp_path: Path, text: bool) -> None:
    vertex = as_element(as_columns(random_bits(3, 0, finite=True)), {})
    lists = np.empty(2, [("indices", "O")])
    lists["indices"] = [np.arange(3, dtype=np.int32), np.arange(70, dtype=np.int32)]
    elements = [PlyElement.describe(lists, "face"), PlyElement.describe(np.ones(4, [("a", "f8")]), "info"), vertex]
    stream = io.BytesIO()
    PlyData(elements, text=text, byte_order="<").write(stream)
    content = stream.getvalue()
    body = content.index(b"end_header\n") + 11
    last = content.rstrip(b"\n").rfind(b"\n") if text else len(content)
    for end in [*range(body, last, 9), last - 1]:
        assert re.search("cut short|damaged", outcome(tmp_path / "a.ply", content[:end])), end
    assert outcome(tmp_path / "a.ply", content) == ""


def test_splats_far_from_the_origin_keep_every_bit_of_their_place(tmp_path: Path) -> None:
    offset = (500_000.0, 5_400_000.0, 300.0)
    splats = random_bits(20_000, 1, finite=True)
    write_ply(tmp_path / "far.ply", splats, offset=offset)
    vertices = PlyData.read(tmp_path / "far.ply")["vertex"]
    for axis, name in enumerate("xyz"):
        np.testing.assert_array_equal(vertices[name], splats.means[:, axis].astype(float) + offset[axis])
    opened = read_splat_file(tmp_path / "far.ply")
    x, y, z = opened.offset
    assert (x, y, z) == offset
    assert "lies far from the origin, about (500,000, 5,400,000, 300)" in opened.warnings[0]
    # Local positions lose what float64 cannot hold beside five million: 1e-9.
    np.testing.assert_allclose(opened.gaussians.means, splats.means, atol=1e-9, rtol=0)
    for name in FIELDS[1:]:
        assert np.array_equal(getattr(opened.gaussians, name), getattr(splats, name))
    write_ply(tmp_path / "again.ply", opened.gaussians, offset=opened.offset)
    again = PlyData.read(tmp_path / "again.ply")["vertex"]
    assert all(np.allclose(again[name], vertices[name], atol=1e-9, rtol=0) for name in "xyz")
    near = rebased(opened.gaussians, opened.offset, (499_999.0, 5_400_002.0, 300.0))
    np.testing.assert_allclose(near.means, splats.means + np.array([1, -2, 0], np.float32), atol=1e-6)


def test_float32_splats_far_away_are_saved_bit_for_bit_where_they_were(tmp_path: Path) -> None:
    splats = random_bits(300, 0, finite=True)
    far = replace(splats, means=splats.means + np.array([500_000, 5_400_000, 300], np.float32))
    write_ply(tmp_path / "far.ply", far)
    opened = read_splat_file(tmp_path / "far.ply")
    assert np.abs(opened.gaussians.means).max() < 10
    write_ply(tmp_path / "again.ply", opened.gaussians, offset=opened.offset)
    assert same_bits(read_ply(tmp_path / "again.ply"), far)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"PK\x03\x04", "gzip or ZIP archive"),
        (b"\x1f\x8b\x08\x00", "gzip or ZIP archive"),
        (b"\xef\xbb\xbfply\n", "not a PLY"),
        (b"ply\n" + bytes(3 << 20), "no end_header"),
        (b"ply\nformat ascii 1.0\nend_header\n", "no element 'vertex'"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty list uchar float x\nend_header\n1 2\n", "lists"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty uint packed_position\nend_header\n1\n", "compressed PLY"),
        (b"ply\nformat ascii 1.0\nelement vertex 0\nproperty float x\nend_header\n", "mesh or point cloud"),
    ],
)
def test_other_files_are_told_what_they_are(tmp_path: Path, content: bytes, said: str) -> None:
    assert said in outcome(tmp_path / "a.ply", content)


def test_no_splats_no_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    write_ply(tmp_path / "a.ply", random_bits(0, 1))
    for path, said in ((tmp_path / "a.ply", "0 splats"), (tmp_path / "b.ply", "not exist"), (tmp_path, "folder")):
        with pytest.raises(InputError, match=said):
            read_ply(path)


def test_a_point_cloud_gives_positions_and_colours(tmp_path: Path) -> None:
    rows = np.zeros(3, [("x", "f8"), ("y", "f4"), ("z", "f4"), ("red", "u1"), ("green", "u1"), ("blue", "u1")])
    rows["x"], rows["green"] = [500000.123456, np.nan, 3], [7, 8, 255]
    PlyData([PlyElement.describe(rows, "vertex")]).write(tmp_path / "a.ply")
    cloud = read_point_cloud(tmp_path / "a.ply")
    assert cloud.positions.tolist() == [[500000.123456, 0, 0], [3, 0, 0]]  # the point at NaN is gone
    assert cloud.colors.tolist() == [[0, 7, 0], [0, 255, 0]]
    PlyData([PlyElement.describe(rows[["x", "y", "z"]].astype(rows.dtype.descr[:3]), "vertex")]).write(
        tmp_path / "b.ply"
    )
    assert read_point_cloud(tmp_path / "b.ply").colors.tolist() == [[128] * 3] * 2


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("prefix", ["", "diffuse_"])
@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        ("u1", [0, 7, 255]),
        ("u2", [0, 7 * 257 + 100, 65535]),
        ("u2", [0, 7, 255]),
        ("i4", [0, 7 * 257, 65535]),
        ("f4", [0, 7 / 255, 1]),
        ("f4", [0, 7, 255]),
        ("f8", [-0.5, 7, 255.4]),
    ],
)
def test_colours_of_points_are_read_in_any_measure(
    tmp_path: Path, text: bool, prefix: str, kind: str, stored: list[float]
) -> None:
    names = [f"{prefix}{name}" for name in ("red", "green", "blue")]
    rows = np.zeros(1, [(name, "f4") for name in "xyz"] + [(name, kind) for name in names])
    for name, value in zip(names, stored, strict=True):
        rows[name] = value
    PlyData([PlyElement.describe(rows, "vertex")], text=text).write(tmp_path / "a.ply")
    assert read_point_cloud(tmp_path / "a.ply").colors.tolist() == [[0, 7, 255]]


def test_what_a_killed_process_left_of_a_file_is_removed_when_the_file_is_written_again(tmp_path: Path) -> None:
    code = (
        "import os, sys; from splatscope.assets.files.atomic import atomic_path\n"
        "with atomic_path(sys.argv[1]): os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "a [b].ply"
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    names = (f".a [b].{os.getpid():06x}00.ply", ".a [b].my notes.ply", ".a [c].00000001.ply")
    others = [tmp_path / name for name in names]
    for other in others:
        other.touch()
    write_ply(path, random_bits(3, 0))
    assert left.exists(), "it may still be written, elsewhere"
    for file in (left, *others):
        os.utime(file, (0, 0))
    write_ply(path, random_bits(3, 0))
    assert {*tmp_path.iterdir()} == {path, *others}


def write_half(path: Path, error: Exception) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(b"half")
        raise error


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "a.ply"
    splats = random_bits(3, 0)
    write_ply(path, splats)
    full = OSError(errno.ENOSPC, "No space left on device")
    elsewhere = FileNotFoundError(errno.ENOENT, "No such file", str(tmp_path / "another file"))
    with pytest.raises(InputError, match="disk is full"):
        write_half(path, full)
    for other in (KeyError(), elsewhere):
        with pytest.raises(type(other)):
            write_half(path, other)
    assert [p.name for p in path.parent.iterdir()] == ["a.ply"]
    assert same_bits(read_ply(path), splats)
    with pytest.raises(InputError, match="part of the path is a file"):
        write_ply(path / "b.ply", splats)
    with pytest.raises(InputError, match="folder of that name"):
        write_ply(path.parent, splats)


@pytest.mark.parametrize("name", ["big_endian", "extra_properties", "face_element_after", "no_normals", "ascii"])
def test_rewritten_real_files_equal_their_original(name: str) -> None:
    if not ODD.exists():
        pytest.skip("the shared test data is not here")
    original = read_ply(ODD / "ply-derived/reference_500.ply")
    other = read_ply(ODD / f"ply-derived/{name}.ply")
    if name == "ascii":  # written with fewer digits
        for a, b in zip(bits(original), bits(other), strict=True):
            np.testing.assert_allclose(a.view(np.float32), b.view(np.float32), rtol=2e-5, atol=1e-6)
    else:
        assert same_bits(original, other)


def test_real_odd_files_open_or_say_why() -> None:
    if not ODD.exists():
        pytest.skip("the shared test data is not here")
    opened, refused = {}, {}
    for path in sorted(ODD.glob("*/*.ply")):
        try:
            opened[path.stem] = read_ply(path)
        except InputError as error:
            refused[path.stem] = str(error)
    assert opened["one_splat"].count == 1
    assert (opened["no_f_rest"].sh_degree, opened["sh_degree_1"].sh_degree) == (0, 1)
    assert not np.isfinite(opened["nan_inf"].means).all() or not np.isfinite(opened["nan_inf"].log_scales).all()
    assert {"empty_file", "not_a_ply", "truncated_body", "missing_opacity"} <= set(refused)
    assert all(str(ODD) in text and text.endswith(".") for text in refused.values())
