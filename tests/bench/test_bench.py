"""Tests that `splatscope bench` checks before it times, and that its files hold what they claim."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splatscope.app.bench import ablate, kernels, ladder, show, step
from splatscope.app.bench import cpu as bench_cpu
from splatscope.app.bench.cpu import run_cpu_bench
from splatscope.app.bench.measure import results as files
from splatscope.app.bench.measure.results import spread
from splatscope.app.bench.scenes.expected import EXPECTED
from splatscope.app.options.bench import (
    AblateOptions,
    CpuOptions,
    KernelsOptions,
    LadderOptions,
    ShowOptions,
    StepOptions,
)
from splatscope.assets.photographs.images import write_png
from splatscope.kernels.errors import InputError
from tests.support.places import ROOT

QUICK = CpuOptions(scenes=("small",), repeat=2, compile=False)


@pytest.fixture(scope="module")
def results() -> dict:
    return run_cpu_bench(QUICK)


def tiny_capture(folder: Path) -> Path:
    """Returns three 32x24 photographs of noise around the origin."""
    frames = []
    rng = np.random.default_rng(0)
    for index in range(3):
        write_png(folder / f"{index}.png", rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        pose = np.eye(4)
        pose[:3, 3] = (0.2 * index, 0, 4)
        frames.append({"file_path": f"./{index}", "transform_matrix": pose.tolist()})
    content = {"camera_angle_x": 0.8, "frames": frames}
    (folder / "transforms_train.json").write_text(json.dumps(content))
    return folder


def test_results_hold_the_scene_the_machine_and_every_stage(results: dict) -> None:
    (scene,) = results["scenes"]
    assert (scene["name"], scene["splats"], scene["width"], scene["height"]) == ("small", 20_000, 320, 240)
    assert (scene["visible"], scene["instances"]) == pytest.approx(EXPECTED["small"][:2], rel=1e-4)
    assert {"1", str(max(map(int, scene["threads"])))} == set(scene["threads"])
    for figures in scene["threads"].values():
        assert {"project", "sort", "bin", "blend", "blend_backward", "project_backward"} <= set(figures["stages"])
        for times in (figures["forward"], figures["forward_backward"], *figures["stages"].values()):
            assert times["runs"] == QUICK.repeat
            assert 0 <= times["min"] <= times["p10"] <= times["median"] <= times["p90"] <= times["max"]
        stages = sum(times["min"] for times in figures["stages"].values())
        assert stages <= figures["forward"]["max"] + figures["forward_backward"]["max"]
    assert {"cpu", "cores", "memory_gib", "os", "python", "numba", "numpy"} <= set(results["machine"])
    assert {"command", "date", "revision", "load_average_at_start"} <= set(results["run"])
    assert results["run"]["command"] == "splatscope bench cpu --scenes small --repeat 2"


def test_spread_is_the_median_and_the_middle_four_fifths() -> None:
    expected = {"median": 50.0, "min": 0.0, "p10": 10.0, "p90": 90.0, "max": 100.0, "runs": 101}
    assert spread([float(v) for v in reversed(range(101))]) == expected


def test_a_wrong_picture_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_cpu, "_timed", lambda _: pytest.fail("timed a wrong picture"))
    right = EXPECTED["small"]
    for field, value in (("visible", 19_000), ("instances", 29_100), ("transmittance", 0.7597)):
        monkeypatch.setitem(EXPECTED, "small", right._replace(**{field: value}))
        with pytest.raises(InputError, match=r"small: .*nothing was timed"):
            run_cpu_bench(QUICK)


def test_a_training_step_is_timed_by_stage(tmp_path: Path) -> None:
    capture = tiny_capture(tmp_path)
    results = run_cpu_bench(replace(QUICK, train=capture, train_steps=3))
    training = results["training"]
    assert (training["width"], training["height"], training["step"]["runs"]) == (32, 24, 3)
    assert {"project", "blend", "loss", "blend_backward", "adam"} <= set(training["stages"])
    assert str(tmp_path.parent) not in json.dumps(results)  # of a folder only its name
    assert f"--train {tmp_path.name} " in results["run"]["command"]
    assert {p.name for p in tmp_path.iterdir()} == {"0.png", "1.png", "2.png", "transforms_train.json"}


def test_compilation_is_timed_cold_then_from_the_same_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compiles_something.py").write_text(
        "import os, pathlib\n"
        "mark = pathlib.Path(os.environ['NUMBA_CACHE_DIR'], 'compiled')\n"
        "print(0.5 if mark.exists() else 15.0)\n"
        "mark.touch()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(bench_cpu, "_COMPILE_MODULE", "compiles_something")
    assert bench_cpu._time_compilation() == {"cold_seconds": 15.0, "warm_seconds": 0.5}


def test_results_survive_the_file_and_make_the_same_table(results: dict, tmp_path: Path, capsys) -> None:
    file, readme = tmp_path / "r.json", tmp_path / "README.md"
    files.write_results(file, results)
    assert files.read_results(file) == results
    assert files.results_path(file, results) == file
    named = files.write_results(files.results_path(tmp_path / "not yet a folder", results), results)
    assert named.parent == tmp_path / "not yet a folder"
    assert named.name.startswith("cpu-")
    assert named.name.endswith(f"-{results['run']['date'][:10]}.json")
    assert files.read_results(named) == results
    readme.write_text("before <!-- bench:cpu -->old\ntable<!-- /bench:cpu --> after\n")
    show.run(ShowOptions((file,), readme=readme))
    text = readme.read_text()
    show.run(ShowOptions((file,), readme=readme))
    assert readme.read_text() == text
    assert text.startswith("before <!-- bench:cpu -->\n| scene |")
    assert text.endswith("<!-- /bench:cpu --> after\n")
    assert "old" not in text
    rows = [line for line in text.splitlines() if line.startswith("| small |")]
    assert len(rows) == len(results["scenes"][0]["threads"])
    median = results["scenes"][0]["threads"]["1"]["forward_backward"]["median"]
    assert rows[0].endswith(f"| {median:.1f} |")
    assert "project_backward" in capsys.readouterr().out


def test_a_text_without_marks_is_refused_before_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("no table here")
    monkeypatch.setattr(bench_cpu, "run_cpu_bench", lambda _: pytest.fail("measured first"))
    with pytest.raises(InputError, match="needs <!-- bench:cpu -->"):
        bench_cpu.run(CpuOptions(readme=readme))
    assert readme.read_text() == "no table here"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run": {"format": "other"}}', "\x00"])
def test_a_file_of_something_else_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text(content)
    with pytest.raises(InputError, match="was not written by"):
        show.run(ShowOptions((file,)))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (replace(QUICK, repeat=0), "--repeat and --train-steps must be at least 1"),
        (replace(QUICK, scenes=("S9",)), "no benchmark scene 'S9'"),
        (replace(QUICK, threads=(0,)), "--threads must be from 1 to"),
        (replace(QUICK, train=Path("nowhere")), "nowhere"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(options: CpuOptions, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        run_cpu_bench(options)


@pytest.mark.parametrize(
    ("run", "options", "sentence"),
    [
        (ladder.run, LadderOptions(size="8"), "--size must be WIDTHxHEIGHT"),
        (ladder.run, LadderOptions(scenes=("nowhere.ply",)), "no benchmark scene and no splat file 'nowhere.ply'"),
        (ladder.run, LadderOptions(camera=Path("nowhere.json")), "--camera nowhere.json is not a file"),
        (ladder.run, LadderOptions(readme=ROOT / "README.md"), "--readme needs --out as well"),
        (ladder.run, LadderOptions(repeat=0), "--repeat must be at least 1, got 0"),
        (ablate.run, AblateOptions(parts=()), "needs a stage to take apart"),
        (kernels.run, KernelsOptions(steps=("s9",)), "no step 's9'"),
        (step.run, StepOptions(scenes=("S9",)), "no benchmark scene 'S9'"),
        (step.run, StepOptions(train_steps=0), "-n and --views must be at least 1, got 0 and 1"),
        (show.run, ShowOptions(()), "needs the JSON files that --out wrote"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence_before_a_gpu_is_looked_for(
    run: Callable[[Any], None], options: object, sentence: str
) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        run(options)
