"""Tests the real window on a real engine: the bundled splats, a hundred pictures, a broken file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.display import Program
from tests.support.places import STILL_LIFE, SUPPORT

SCRIPT = SUPPORT / "real_window.py"
PICTURES = 80
GROWTH = 24 << 20  # bytes that numpy's and the driver's own caches may still take; ten pictures would be more


@pytest.fixture
def program(display: str) -> Iterator[Program]:
    made = Program(display, SCRIPT, [str(STILL_LIFE)])
    yield made
    made.end()


def fly(program: Program, pictures: int) -> None:
    """Flies to and fro until this many more pictures were made."""
    wanted = program.facts["pictures"] + pictures
    while program.facts["pictures"] < wanted:
        for key in ("a", "d"):
            program.xdotool("keydown", key)
            time.sleep(0.6)
            program.xdotool("keyup", key)


def test_a_hundred_pictures_take_no_more_memory_than_a_few_and_a_broken_file_changes_nothing(
    program: Program, tmp_path: Path
) -> None:
    window = program.find_window("splatscope")
    program.wait_for("pictures", lambda facts: facts["pictures"] > 0, seconds=90)
    assert program.facts["up"] == [0.0, 0.0, 1.0], "it stands on its table"
    program.xdotool("mousemove", "--window", window, 200, 300)
    fly(program, 40)
    before = program.facts["resident"]
    fly(program, PICTURES)
    assert program.facts["resident"] - before < GROWTH
    broken = tmp_path / "broken ü.ply"
    broken.write_bytes(STILL_LIFE.read_bytes()[:100_000])
    program.xdotool("key", "ctrl+o")
    time.sleep(0.6)
    program.xdotool("type", "--delay", 15, str(broken))
    program.xdotool("key", "Return")
    program.wait_for("a sentence about it", lambda facts: "broken" in str(facts["errors"]))
    assert program.facts["scene"] == str(STILL_LIFE)
    fly(program, 5)
