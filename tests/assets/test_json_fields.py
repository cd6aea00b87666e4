"""Tests JSON that any program may have written, or that somebody broke: it is read, or a sentence names the place."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splatscope.assets.capture import Capture
from splatscope.assets.files.json_fields import FILE_LIMIT, check_rotation, matrix, parse_json, read_json
from splatscope.assets.formats import open_path
from splatscope.assets.trained.cameras import read_camera
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera
from tests.assets.test_phone_apps import make_polycam, make_record3d
from tests.support.odd_captures import make_transforms


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_every_unicode_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.json").write_bytes('{"ü": [1, null]}'.encode(encoding))
    assert read_json(tmp_path / "a.json") == {"ü": [1, None]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "a.json is empty"),
        (b" \n", "a.json is empty"),
        (b'{"a": 1,\n "b" 2}', "a.json is not valid JSON: line 2, column 6."),
        ('{"é": 1}'.encode("latin-1"), "a.json is not text in UTF-8, at byte 2."),
        (b"[" * 100_000, "a.json nests brackets deeper than can be read."),
        (b'{"a":' * 100_000, "a.json nests brackets deeper than can be read."),
        (b"[" + b"9" * 5000 + b"]", "a.json is not valid JSON: it holds a number of thousands of digits."),
        (b'{"w": 1, "w": 2}', "a.json gives 'w' twice in one object, with two values. Keep one."),
        (b"version https://git-lfs.github.com/spec/v1\n", "a.json cannot be read: it is a Git LFS pointer"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(content: bytes, said: str) -> None:
    with pytest.raises(InputError) as error:
        parse_json(content, "a.json")
    assert str(error.value).startswith(said)


def test_a_key_given_twice_with_one_value_is_no_mistake() -> None:
    assert parse_json(b'{"w": 1, "w": 1.0, "x": NaN, "x": NaN}', "a.json")["w"] == 1


def test_a_file_too_large_is_named_by_what_it_should_be(tmp_path: Path) -> None:
    with open(tmp_path / "big.json", "wb") as file:
        file.truncate(FILE_LIMIT + 1)
    with pytest.raises(InputError, match=r"big\.json is larger than 64 MB, so it is not a run's settings\.json\."):
        read_json(tmp_path / "big.json", "a run's settings.json")


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("x", "'x'"),
        ([[1, 2], [3]], "rows of different lengths"),
        ([[1, 2], [3, "4"]], "'4'"),
        ([[1, 2], [3, True]], "True"),
        ([1, 2, 3, 4], "4"),
        ([[1, 2, 3]], "1 x 3"),
        (None, "None"),
    ],
)
def test_a_matrix_says_what_it_got(value: object, got: str) -> None:
    with pytest.raises(InputError) as error:
        matrix({"m": value}, "m", (2, 2), "a.json")
    assert str(error.value) == f"a.json: m must be 2 x 2 numbers in rows, got {got}."


@pytest.mark.filterwarnings("error")
def test_huge_numbers_are_no_rotation_and_warn_of_nothing() -> None:
    with pytest.raises(InputError, match="its axes have lengths inf, 1, 1, not 1"):
        check_rotation(np.diag([1e308, 1, 1]) + np.array([[0, 0, 0], [1.7e308, 0, 0], [0, 0, 0]]), "m", "a.json")


RAW = "\0raw:"  # before what stands in the file as it is
VALUES = (
    *(f"{RAW}{text}" for text in ("NaN", "Infinity", "1e400", "9" * 400, "9" * 5000, "[" * 2000 + "]" * 2000)),
    *(
        None,
        True,
        "x",
        "",
        [],
        {},
        -1,
        0,
        1e-320,
        1e308,
        10**18,
        [[[]]],
        "a" * 5000,
        "../" * 50,
        "/",
        "\ud800",
        "\x1b[m\n",
    ),
)


def places(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from places(value, (*at, key))


def broken(content: Any, rng: random.Random) -> bytes:
    content = json.loads(json.dumps(content))
    *above, last = rng.choice(list(places(content)))
    node = content
    for key in above:
        node = node[key]
    if rng.random() < 0.2:
        del node[last]
    else:
        node[last] = rng.choice(VALUES)
    text = json.dumps(content)
    for value in VALUES:
        if isinstance(value, str) and value.startswith(RAW):
            text = text.replace(json.dumps(value), value.removeprefix(RAW))
    data = text.encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-16")))
    return data[: rng.randrange(len(data))] if rng.random() < 0.1 else data


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("kind", ["transforms", "other", "polycam", "record3d", "camera"])
def test_broken_files_open_or_are_refused_in_a_sentence(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "capture"
    if kind == "polycam":
        file = make_polycam(folder, ("corrected_",)) / "keyframes/corrected_cameras/1000.json"
    elif kind == "record3d":
        file = make_record3d(folder, "metadata.json", "rgb", perFrameIntrinsicCoeffs=[[50, 51, 19, 16]] * 3)
        file = file / "metadata.json"
    else:
        file = make_transforms(folder, k1=0.1, ply_file_path="points.ply") / "transforms.json"
    if kind == "other":
        file = Path(shutil.move(file, folder / "transform_train.json"))
    if kind == "camera":
        row = {"img_name": "a", "width": 4, "height": 3, "position": [0, 0, 0], "fx": 5, "fy": 5}
        file.write_text(json.dumps([row | {"rotation": [[1, 0, 0], [0, 1, 0], [0, 0, 1]]}]))
    content, rng = json.loads(file.read_text()), random.Random(14)
    for _ in range(40):
        file.write_bytes(broken(content, rng))
        said, opened = "A sentence.", None
        try:
            opened = read_camera(file) if kind == "camera" else open_path(folder)
        except InputError as error:
            said = str(error)
        assert said.endswith(".")
        assert "\n" not in said
        assert opened is None or isinstance(opened, Camera if kind == "camera" else Capture)
