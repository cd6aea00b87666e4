"""Tests the benchmark of whole runs: rows that name what was trained, tables that compare only comparable runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from splatscope.app.bench import runs
from splatscope.app.bench.tables.runs import MEASURED, print_runs, seconds_to, training_table
from splatscope.app.options.bench import RunsOptions
from splatscope.kernels.errors import InputError
from tests.support.small_capture import write_blender_set


def test_recipes_run_whole_and_their_table_goes_into_a_text(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "gpu_is_present", lambda: False)
    write_blender_set(tmp_path / "ring")
    readme = tmp_path / "README.md"
    readme.write_text("a <!-- bench:train -->old<!-- /bench:train --> b")
    settings = ("initial.random_count=200", "test_interval=20")
    chosen: dict[str, Any] = {"recipe": ("inria", "fast"), "iterations": 40, "set": settings}
    runs.run(RunsOptions(tmp_path / "ring", **chosen, out=tmp_path / "runs.json", readme=readme))
    stored = json.loads((tmp_path / "runs.json").read_text())
    command = "splatscope bench runs ring --recipe inria fast --iterations 40 --set"
    assert stored["run"]["command"] == f"{command} {' '.join(settings)}"
    rows = stored["training_runs"]
    assert [row["recipe"] for row in rows] == ["inria", "fast"]
    for row in rows:
        assert (row["iterations"], row["views"], row["held_out"], row["width"]) == (40, 18, 6, 72)
        assert [scoring[0] for scoring in row["curve"]] == [20, 40]
        assert row["curve"][-1][2] == row["psnr"] > 10
        assert sum(row["seconds"].values()) < row["whole_seconds"] + 1e-3
        assert row["seconds"]["training"] < row["process_seconds"], "it began before the run did"
    text = readme.read_text()
    assert text.startswith(f"a <!-- bench:train -->\n{MEASURED}\n\n| capture |")
    assert "| ring, 72×56 | splatscope fast initial.random_count=200 test_interval=20 | 40 |" in text
    assert "[runs.json](runs.json)" in text
    assert "ring 72×56, splatscope inria" in capsys.readouterr().out


def test_what_cannot_be_run_is_said_before_anything_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there are inria, .*gsplat"):
        runs.run(RunsOptions(tmp_path, recipe=("best",)))
    with pytest.raises(InputError, match="needs --recipe"):
        runs.run(RunsOptions(tmp_path))
    with pytest.raises(InputError, match="There is no capture x; give the path"):
        runs.run(RunsOptions(Path("x"), recipe=("fast",)))
    (tmp_path / "a.md").write_text("<!-- bench:train --><!-- /bench:train -->")
    with pytest.raises(InputError, match="--readme needs --out"):
        runs.run(RunsOptions(tmp_path, recipe=("fast",), readme=tmp_path / "a.md"))
    for setting, remedy in (("seed=3", "give --seeds"), (" data.resolution =2", "give -r"), ("iterations=9", "--iter")):
        with pytest.raises(InputError, match=remedy):
            runs.run(RunsOptions(tmp_path, recipe=("fast",), set=(setting,)))


def test_a_trainer_that_is_not_installed_is_left_out_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_1: object, _2: object, _3: object, recipe: str, seed: int, is_first: bool) -> tuple[Any, Any]:
        said = capsys.readouterr().out
        assert ("gsplat is not installed, so it is not in the table" in said) == is_first
        if recipe == "fast":
            assert "splatscope inria, seed 0: 10,000 iterations" in said, "a row is shown when it is there"
            raise InputError("RuntimeError at training/steps/host.py, line 1: no room.")
        return row_of(recipe, 36.0, seed, height=56), {"machine": {"cpu": "a cpu"}}

    monkeypatch.setitem(sys.modules, "gsplat", None)  # import fails
    monkeypatch.setattr(runs, "in_a_process", run)
    out = tmp_path / "runs.json"
    with pytest.raises(
        InputError, match=r"^fast, seed 0: RuntimeError .* no room\. What ran before it is in .*runs\.json"
    ):
        runs.run(RunsOptions(tmp_path, recipe=("gsplat", "inria", "fast", "gsplat-mcmc"), out=out))
    stored = json.loads((tmp_path / "runs.json").read_text())
    assert [row["recipe"] for row in stored["training_runs"]] == ["inria"]
    assert stored["absent_peers"] == [
        "gsplat is not installed, so it is not in the table; it comes from https://docs.gsplat.studio."
    ]
    with pytest.raises(InputError, match="There is nothing to run: gsplat is not installed"):
        runs.run(RunsOptions(tmp_path, recipe=("gsplat",), out=out))


def row_of(recipe: str, psnr: float, seed: int = 0, trainer: str = "splatscope", **other: Any) -> dict[str, Any]:
    """Returns a run that rises by 1 dB a second until it is at `psnr` after 10 s."""
    curve = [[1000 * i, float(i), psnr - 10 + i, 0.9, 100 * i] for i in range(1, 11)]
    named = {"trainer": trainer, "recipe": recipe, "settings": [], "seed": seed, "capture": "lego", "width": 800}
    scores = {"height": 800, "iterations": 10_000, "splats": 1000, "psnr": psnr, "ssim": 0.9, "training_seconds": 10.0}
    return {**named, **scores, "curve": curve, "whole_seconds": 15.0, "peak_gib": 1.5, **other}


def file_of(*runs: dict[str, Any], gpu: str = "NVIDIA H200") -> dict[str, Any]:
    machine = {"gpu": gpu, "driver": "580", "torch": "2.11"}
    return {"run": {"date": "2026-11-30T00:00:00"}, "machine": machine, "training_runs": list(runs)}


def test_seconds_to_quality_are_measured_against_our_own_default() -> None:
    ours = file_of(row_of("inria", 36.0), row_of("fast", 37.0), row_of("fast", 38.0, seed=1), row_of("mcmc", 35.0))
    theirs = file_of(row_of("default", 35.75, trainer="gsplat 1.5.3")) | {"remarks": ["Loss kernels are ours."]}
    table = training_table([("a.json", ours), ("b.json", theirs)])
    cells = {line.split(" | ")[1]: line.rstrip(" |").split(" | ") for line in table.splitlines() if "lego" in line}
    assert cells["splatscope inria"][-1] == "10.0 / 10.0"
    assert cells["splatscope fast"][-1] == "8.5 / 8.5"  # 9 and 8 s
    assert "37.50 (37.00–38.00, 2 seeds)" in cells["splatscope fast"]
    assert cells["splatscope mcmc"][-1] == "never / never"
    assert cells["gsplat 1.5.3 default"][-1] == "10.0 / never"
    assert "Loss kernels are ours." in table
    assert seconds_to(row_of("fast", 36.0), 33.2) == 8


def test_another_size_or_a_changed_default_is_no_goal() -> None:
    changed = row_of("inria", 36.0, settings=["sh_degree=1"])
    small = row_of("inria", 36.0, width=400)
    table = training_table([("a.json", file_of(changed, small, row_of("fast", 37.0)))])
    fast = next(line for line in table.splitlines() if "splatscope fast" in line)
    assert fast.endswith("| – / – |")


def test_scores_on_the_way_and_the_clock_of_the_process_are_shown_where_a_run_has_them(
    capsys: pytest.CaptureFixture,
) -> None:
    clocked = row_of("inria", 36.0, process_seconds=21.0)
    early = row_of("mcmc", 35.0, curve=[[5000, 5.0, 35.0, 0.9, 1000]], process_seconds=None)
    table = training_table([("a.json", file_of(clocked, row_of("fast", 37.0), early))])
    head, _, *rows = (line[2:-2].split(" | ") for line in table.splitlines() if line.startswith("|"))
    assert len(head) <= 11
    found = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["PSNR after 7,000"] for row in found] == ["33.00", "34.00", "–"]
    assert [row["start to saved, s"] for row in found] == ["21.0", "–", "–"]
    print_runs([clocked, early])
    with_all, with_less = capsys.readouterr().out.splitlines()
    assert "PSNR 36.00 dB (33.00 after 7,000 of 10,000)" in with_all
    assert with_all.endswith("15.0 s from reading to saved, 21.0 s from the start of the process")
    assert with_less.endswith("15.0 s from reading to saved")


def test_runs_of_different_machines_do_not_share_a_table() -> None:
    files = [("a", file_of(row_of("fast", 36.0))), ("b", file_of(row_of("fast", 36.0), gpu="NVIDIA L4"))]
    with pytest.raises(InputError, match="different machines, NVIDIA H200 and NVIDIA L4"):
        training_table(files)
