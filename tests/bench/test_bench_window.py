"""Tests the measurement of the window's cost; the figures in the documents are those of its file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from splatscope.app.bench import window
from splatscope.app.options.bench import WindowOptions
from splatscope.kernels.errors import InputError
from tests.support.places import ROOT

STORED = ROOT / "benchmarks/results/h200-window-2026-11-30.json"
FACTS = ["capture", "splats", "seconds", "backend"]


def run_program(display: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "splatscope.app", "bench", "window", *map(str, words)]
    environment = {**os.environ, "DISPLAY": display, "COLUMNS": "200"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def check(results: dict[str, Any]) -> None:
    """Checks that the figures of a run agree with each other."""
    assert list(results) == ["run", "machine", *FACTS, "phases"]
    assert results["run"]["format"] == "splatscope window cost 1"
    phases = results["phases"]
    assert list(phases) == ["closed", "still", "moving", "no_pictures"]
    closed = phases["closed"]["it_per_s"]
    for figures in phases.values():
        first, last = figures["iterations"]
        assert figures["share_of_closed"] == round(figures["it_per_s"] / closed, 5)
        assert last > first
    assert phases["still"]["iterations"][1] < phases["moving"]["iterations"][0]
    assert phases["moving"]["iterations"][1] < phases["no_pictures"]["iterations"][0]
    assert phases["moving"]["pictures_per_s"] > 0
    assert phases["moving"]["latency_ms"]["median"] > 0
    assert phases["moving"]["picture_ms"]["median"] > 0
    assert phases["no_pictures"]["pictures_per_s"] == 0
    assert phases["no_pictures"]["window_frames_per_s"] > 0
    assert "picture_ms" not in phases["no_pictures"]


def test_a_run_is_measured_without_a_window_and_beside_one(display: str, tmp_path: Path) -> None:
    from tests.support.small_capture import write_blender_set  # loads torch, which a process of the test below need not

    capture, file = tmp_path / "set", tmp_path / "cost.json"
    write_blender_set(capture)
    words = ("--splats", 200, "--seconds", 0.5, "--backend", "cpu")
    done = run_program(display, capture, *words, "--out", file)
    assert done.returncode == 0, done.stderr
    results = json.loads(file.read_text())
    check(results)
    command = "splatscope bench window set --splats 200 --seconds 0.5 --backend cpu"
    assert (results["run"]["command"], results["backend"], results["splats"]) == (command, "cpu", 200)
    assert results["phases"]["closed"]["photograph_size"] == [72, 56]
    rows = [line for line in done.stdout.splitlines() if line.startswith("│")]
    for row, figures in zip(rows, results["phases"].values(), strict=True):
        assert f"{figures['share_of_closed']:.1%}" in row
    stored = json.loads(STORED.read_text())
    check(stored)
    for name, figures in stored["phases"].items():
        told = {"picture_ms", "latency_ms"} if name == "still" else set()  # a slow machine may show none so soon
        assert set(figures) == set(results["phases"][name]) | told  # the stored file is one that the program writes


def test_without_a_display_or_a_capture_it_says_so_in_a_sentence(display: str, tmp_path: Path) -> None:
    for there, words in (("", "No window can be opened: "), (display, str(tmp_path / "nowhere"))):
        done = run_program(there, tmp_path / "nowhere", "--backend", "cpu")
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(rf"splatscope: .*{re.escape(words)}.*\n", done.stderr)


def hang(_options: object, folder: Path, tell: window.Tell) -> None:
    tell("closed", {"process": os.getpid()})
    time.sleep(60)


def die(*_: object) -> None:
    os._exit(7)


def test_a_measurement_that_hangs_or_dies_is_ended_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = WindowOptions(tmp_path, seconds=0.1)
    with pytest.raises(InputError, match="with exit code 7"):
        next(window._in_a_process(die, 1, options, tmp_path))
    told = window._in_a_process(hang, 2, options, tmp_path)
    _, facts = next(told)
    monkeypatch.setattr(window, "START_SECONDS", 0.1)
    with pytest.raises(InputError, match="sent no figures"):
        next(told)
    with pytest.raises(ProcessLookupError):
        os.kill(facts["process"], 0)


def test_the_figures_of_the_window_in_the_documents_are_those_of_the_file() -> None:
    text = " ".join((ROOT / "docs" / "benchmarks.md").read_text().split())
    phases = json.loads(STORED.read_text())["phases"]
    still, moving = phases["still"], phases["moving"]
    wanted = (
        f"a run that does {phases['closed']['it_per_s']:,.0f} steps a second",
        f"keeps {moving['share_of_closed']:.1%} of that while the camera moves",
        f"at {moving['pictures_per_s']:.0f} pictures a second",
        f"{still['share_of_closed']:.1%} at {still['pictures_per_s']:.0f} a second of a still one",
        f"a picture comes {moving['latency_ms']['median']:.0f} ms after",
        f"(../{STORED.relative_to(ROOT)})",
    )
    for words in wanted:
        assert words in text
