"""Tests the table of the GPU's figures: the newest of each, others compared with `best` of their run, without a GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from splatscope.app.bench.measure.results import read_results
from splatscope.app.bench.show import print_gpu_results
from splatscope.app.bench.show import run as show
from splatscope.app.bench.tables.ladder_document import cuda_table
from splatscope.app.options.bench import ShowOptions
from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import STEPS
from tests.support.bench_rows import file_of, ladder_of, peer_of, row_of, scene_of

OLD, NEW = "2026-11-29T10:00:00+00:00", "2026-11-30T10:00:00+00:00"


def rows(table: str) -> dict[str, list[str]]:
    """Returns the first cell of each row -> its other cells."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


def test_every_step_has_its_row_and_every_scene_its_column() -> None:
    table = cuda_table(
        [
            ("r/a.json", file_of([scene_of("S1", ladder_of(1.0))])),
            ("r/b.json", file_of([scene_of("S2", ladder_of(20.0))])),
        ]
    )
    found = rows(table)
    assert list(found)[: len(STEPS) + 1] == ["forward + backward, ms", *STEPS]
    assert found["forward + backward, ms"][:2] == ["S1, 1.6M, 1557×1038", "S2, 1.6M, 1557×1038"]
    assert found["best"][:2] == ["1.00 (0.992–1.02)", "20.0 (19.8–20.3)"]
    assert found["best, frames a second by the wall clock"][:2] == ["2,000", "100"]
    assert "on NVIDIA H200, driver 580.1, CUDA 13.0, torch 2.11, CuPy 14.2; 2026-11-30, revision abc" in table
    assert "[a.json](r/a.json), [b.json](r/b.json)" in table
    assert "No other rasteriser was timed" in table


def test_rows_of_toggles_are_shown_by_their_present_names(tmp_path: Path) -> None:
    earlier = {"best, sort.sort = single64": row_of(1.5), "best, schedule.chunk = policy": row_of(1.0)}
    file = tmp_path / "earlier.json"
    file.write_text(json.dumps(file_of([scene_of("S1", ladder_of(1.0) | earlier)])))
    steps = read_results(file)["scenes"][0]["steps"]
    assert list(steps)[-2:] == ["best, sort.scheme = single64", "best, schedule.chunk = modelled"]
    assert steps["best, sort.scheme = single64"]["forward_backward"]["median"] == 1.5


def test_the_command_line_of_a_measured_run_has_the_present_names_of_toggles(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    runs = [{"settings": ["densify.interval=50", "--toggle", "launch.launch=direct"]}]
    file.write_text(json.dumps(file_of([]) | {"training_runs": runs}))
    settings = read_results(file)["training_runs"][0]["settings"]
    assert settings == ["densify.interval=50", "--toggle", "launch.mode=direct"]


def test_the_newest_whole_ladder_counts_and_part_of_one_does_not() -> None:
    files = [
        ("new.json", file_of([scene_of("S1", ladder_of(1.0))], NEW)),
        ("old.json", file_of([scene_of("S1", ladder_of(2.0))], OLD)),
        ("part.json", file_of([scene_of("S1", {"best": row_of(0.5)})], "2026-12-01T10:00:00+00:00")),
        ("three.json", file_of([scene_of("S1", {n: row_of(0.5) for n in ("s00", "s06", "best")})], "2026-12-01")),
    ]
    table = cuda_table(files)
    assert rows(table)["best"][0].startswith("1.00 (")
    assert "old.json" not in table
    assert "part.json" not in table
    assert "three.json" not in table
    with pytest.raises(InputError, match="None of the files has a scene with s00 and best"):
        cuda_table(files[2:3])
    assert list(rows(cuda_table(files[3:])))[1:4] == ["s00", "s06", "best"]


def test_a_step_that_loses_says_where_and_to_whom() -> None:
    losing = ladder_of(1.0)
    losing["s03"] = row_of(2 + losing["s02"]["forward_backward"]["median"], blend=1.5)
    files = [
        ("a", file_of([scene_of("S1", losing)])),
        ("b", file_of([scene_of("S2", losing)])),
        ("c", file_of([scene_of("S3", ladder_of())])),
    ]
    last = {name: cells[-1] for name, cells in rows(cuda_table(files)).items()}
    assert last["s03"] == "S1, S2 loses to s02: blend +0.500 ms"
    assert last["s01"] == "is s01e"
    assert last["s02"] == ""


def test_others_are_multiples_of_best_in_their_own_run() -> None:
    peers = {"gsplat, unpacked": peer_of(9.0), "inria": peer_of(40.0)}
    rival = file_of([scene_of("S1", {"best": row_of(2.0)}, peers)]) | {"absent_peers": ["faster_gs is not installed."]}
    files = [("a.json", file_of([scene_of("S1", ladder_of(1.0)), scene_of("S2", ladder_of(1.0))])), ("p.json", rival)]
    table = cuda_table(files)
    found = rows(table)
    assert found["gsplat, unpacked (1.5.3)"][:2] == ["9.00 (8.93–9.14), 4.5× best", "not measured"]
    assert found["inria (1.5.3)"][0].endswith("20.0× best")
    assert "faster_gs is not installed." in table
    assert "p.json" in table


@pytest.mark.parametrize("difference", [0.5, float("nan")])
def test_a_rasteriser_that_draws_something_else_gets_no_times(difference: float, capsys: Any) -> None:
    peers = {"inria": peer_of(40.0) | {"image_mean_difference": difference}}
    results = file_of([scene_of("S1", ladder_of(), peers)])
    assert rows(cuda_table([("a.json", results)]))["inria (1.5.3)"][0] == "draws another picture"
    print_gpu_results(results)
    assert "WRONG in S1, inria: it draws another picture" in capsys.readouterr().out


def test_a_scene_at_another_size_is_a_sentence_not_a_column() -> None:
    files = [
        ("a.json", file_of([scene_of("S2", ladder_of())])),
        ("v.json", file_of([scene_of("S2 at 1920x1080", {"best": row_of(2.0)})])),
        ("ablate.json", file_of([{"name": "S2", "ablations": []}])),
    ]
    table = cuda_table(files)
    assert rows(table)["forward + backward, ms"][:-1] == ["S2, 1.6M, 1557×1038"]
    assert "S2 at 1920x1080 for viewing: 1.00 (1.00–1.00) ms, 1,000 frames a second by the wall clock." in table
    assert "v.json" in table
    assert "ablate.json" not in table


def test_figures_of_different_gpus_do_not_share_a_table() -> None:
    files = [
        ("a", file_of([scene_of("S1", ladder_of())])),
        ("b", file_of([scene_of("S2", ladder_of())], gpu="NVIDIA L4")),
    ]
    with pytest.raises(InputError, match="different GPUs, NVIDIA H200 and NVIDIA L4"):
        cuda_table(files)


def test_the_table_is_rebuilt_from_files_and_shown_without_a_gpu(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "results").mkdir()
    paths = (tmp_path / "results" / "h200-S1.json", tmp_path / "results" / "h200-S2.json")
    for path, name in zip(paths, ("S1", "S2"), strict=True):
        path.write_text(json.dumps(file_of([scene_of(name, ladder_of(), {"inria": peer_of(20.0)})])))
    readme = tmp_path / "README.md"
    readme.write_text("a <!-- bench:cpu -->kept<!-- /bench:cpu --> b <!-- bench:cuda -->old<!-- /bench:cuda --> c")
    show(ShowOptions(paths, readme=readme))
    text = readme.read_text()
    assert (
        re.sub(r"(?s)<!-- bench:cuda -->.*<!-- /bench:cuda -->", "…", text)
        == "a <!-- bench:cpu -->kept<!-- /bench:cpu --> b … c"
    )
    assert "[h200-S1.json](results/h200-S1.json)" in text
    shown = capsys.readouterr().out
    assert "S1: 1,593,000 splats" in shown
    assert "S2: 1,593,000 splats" in shown
    cpu = tmp_path / "cpu.json"
    cpu.write_text(json.dumps({"run": {"format": file_of([])["run"]["format"]}, "machine": {"cpu": "x"}}))
    with pytest.raises(InputError, match="of the CPU and of a GPU"):
        show(ShowOptions((*paths, cpu)))
