"""Tests the GPU benchmark without a GPU: its measurements, counts and tables; and a whole run on emulated kernels."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch

from splatscope.app.bench import ablate, ladder
from splatscope.app.bench.ablate import SORT_STAGES, VARIANTS, ablate_sort, ablated, split_of
from splatscope.app.bench.ladder import LadderBench, ladder_policies, run_ladder
from splatscope.app.bench.measure import gpu
from splatscope.app.bench.measure.results import spread
from splatscope.app.bench.measure.roofline import least_bytes, stage_of
from splatscope.app.bench.peers.rasterisers import PARAMETERS
from splatscope.app.bench.scenes.expected import EXPECTED, Picture
from splatscope.app.bench.scenes.subjects import Loaded, Subject, subject
from splatscope.app.bench.tables.ablation import print_ablation
from splatscope.app.bench.tables.ladder import MODES, print_scene, verdicts
from splatscope.app.options.bench import LadderOptions
from splatscope.assets.splats.ply import write_ply
from splatscope.kernels.cuda.launch.buffers import Capacity
from splatscope.kernels.cuda.plan.passes import Pass
from splatscope.kernels.cuda.plan.planner import Outputs, Plan
from splatscope.kernels.cuda.renderer import Renderer
from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import STEPS, step
from tests.support.bench_rows import row_of
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_pipeline import Kernels, emulated_renderer, pass_for
from tests.support.places import ROOT
from tests.support.small_scenes import random_camera, random_scene

CAMERA = random_camera(64, 48)
SCENE = random_scene(CAMERA, 100, seed=11, degree=2)


def plan_of(name: str) -> Plan:
    nothing = Outputs(None, None, None, None, None, None, {})
    return Plan(Pass(step(name), True, False, 1000), Capacity(1, 1), [], [], nothing)


# ---- What is measured ------------------------------------------------------------------------------------------------


def test_the_ladder_is_every_step_and_with_toggles_one_more_row_each() -> None:
    assert list(ladder_policies(LadderOptions())) == list(STEPS)
    assert list(ladder_policies(LadderOptions(steps=("s01", "best")))) == ["s01", "best"]
    assert list(ladder_policies(LadderOptions(steps=("s00",), vs=("all",)))) == ["s00", "best"]
    rows = ladder_policies(LadderOptions(toggles=True))
    assert rows["best, blend_backward.reduce = scatter"].blend_backward.reduce == "scatter"
    assert all(policy.problems() == [] for policy in rows.values())
    assert not any("ablate" in name for name in rows)
    with pytest.raises(InputError, match="no step 's9'"):
        ladder_policies(LadderOptions(steps=("s9",)))


def test_wrong_counts_fail_at_the_end_in_a_sentence_and_all_that_was_measured_is_in_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = {"S1": {"s00": ["visible are 7, expected 9"], "best": ["visible are 8, expected 9"]}, "S2": {"best": []}}

    def measure(bench: LadderBench, subject: Subject, peers: object) -> dict[str, Any]:
        steps = {name: row_of(2.0) | {"wrong": wrong} for name, wrong in rows[subject.name].items()}
        return {"name": subject.name, "splats": 10, "width": 8, "height": 9, "steps": steps}

    monkeypatch.setattr(ladder, "need_gpu", lambda: None)
    monkeypatch.setattr(ladder, "describe_gpu", lambda: {"gpu": "a card", "copy_gb_per_second": 1000.0})
    monkeypatch.setattr(ladder, "_renderers", lambda: (None, None))
    monkeypatch.setattr(LadderBench, "measure", measure)
    subjects, out = [Subject(name, name, lambda: pytest.fail("nothing is drawn")) for name in rows], tmp_path / "l.json"
    with pytest.raises(InputError, match=r"S1, s00: visible are 7, expected 9, and 1 more.* are in .*l\.json"):
        run_ladder(subjects, LadderOptions(out=out))
    assert [scene["name"] for scene in json.loads(out.read_text())["scenes"]] == ["S1", "S2"]
    with pytest.raises(InputError, match="are above"):
        run_ladder(subjects[:1], LadderOptions())
    assert run_ladder(subjects[1:], LadderOptions())[1]["scenes"][0]["name"] == "S2"


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_the_ladder_says_what_is_missing() -> None:
    with pytest.raises(InputError, match=r"needs cupy|no NVIDIA GPU"):
        run_ladder([], LadderOptions())


def test_a_scene_keeps_its_counts_only_from_its_own_camera() -> None:
    own = subject("small").load()
    assert own.expected == EXPECTED["small"]
    wide = subject("small", size=(640, 360))
    assert wide.name == "small at 640x360"
    loaded = wide.load()
    assert loaded.expected is None
    camera = loaded.camera
    assert (camera.width, camera.height) == (640, 360)
    assert (camera.fx, camera.fy) == (1.5 * own.camera.fx, 1.5 * own.camera.fy)  # 240 rows become 360
    assert (camera.cx, camera.cy) == (320, 180)


def test_any_splat_file_is_framed_and_named_without_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "mine.ply"
    write_ply(file, SCENE)
    chosen = subject(str(file), size=(320, 200))
    assert chosen.name == "mine.ply at 320x200"
    assert str(tmp_path) not in chosen.words
    loaded = chosen.load()
    assert (loaded.expected, loaded.bits_match, loaded.gaussians.count) == (None, None, 100)
    assert (loaded.camera.width, loaded.camera.height) == (320, 200)
    in_view = SCENE.means @ loaded.camera.matrix[:3, :3].T + loaded.camera.matrix[:3, 3]
    assert (in_view[:, 2] > 0).mean() > 0.9


def test_the_roofline_counts_each_array_once() -> None:
    camera = random_camera(640, 480)
    counts = {"visible": 1_000, "instances": 5_000, "skipped": 0}
    best, bf16, single = (least_bytes(plan_of(n), 10_000, counts, camera) for n in ("best", "s06_bf16", "s01c"))
    assert best["project"] - bf16["project"] == 96 * 1_000
    assert best["project_backward"] - bf16["project_backward"] == 96 * (1_000 + 10_000)
    assert "depth_sort" not in single  # one sort of everything
    assert single["tile_sort"] == 6 * 2 * 12 * 5_000  # six digits of (8-byte key, slot), read and written
    assert best["tile_sort"] == 2 * 2 * 6 * 5_000


@pytest.mark.parametrize("name", STEPS)
def test_every_stage_of_every_step_has_kernels_whose_cost_is_shown(name: str) -> None:
    counts = {"visible": 1_000, "instances": 5_000, "skipped": 0}
    stages = set(least_bytes(plan_of(name), 10_000, counts, random_camera(640, 480)))
    assert stages == {stage_of(kernel) for _, kernel in plan_of(name).made_for.kernels().values()}


# ---- Tables ----------------------------------------------------------------------------------------------------------


def test_a_step_that_does_not_win_has_its_reason() -> None:
    steps = {
        "s00": row_of(20, blend=15),
        "s01e": row_of(3.0, blend=1),
        "s01": row_of(3.5, blend=1),
        "s02": row_of(2.5, blend=1, zero=0.25),
        "s03": row_of(2.8, blend=0.9, project_backward=0.3),
        "s04": row_of(2.79, blend=0.9, project_backward=0.3),
        "s06_bf16": row_of(1.0, blend=0.2),
        "best": row_of(2.6, blend=1.05, zero=0.29),
    }
    assert verdicts(steps) == {
        "s01": "is s01e",
        "s03": "loses to s02: project_backward +0.300 ms, zero -0.250 ms",
        "s04": "even with s03",
        "best": "loses to s02: blend +0.050 ms, zero +0.040 ms",  # which keeps single precision
    }
    assert verdicts({"best": row_of(1.0)}) == {}


def test_the_table_shows_each_step_and_what_is_wrong_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    row = row_of(2.0, blend=2.0) | {"wrong": ["visible are 7"]}
    result = {"name": "S9", "splats": 10, "width": 8, "height": 9, "steps": {"best": row}}
    print_scene(result, 1000.0)
    text = capsys.readouterr().out
    assert "10 splats at 8×9" in text
    assert "1,000 │" in next(line for line in text.splitlines() if "│ best" in line)  # a frame in a millisecond
    assert "WRONG in S9, best: visible are 7." in text
    roofline = next(line for line in text.splitlines() if "0.75" in line)
    assert [cell.strip() for cell in roofline.strip("│").split("│")] == [
        "blend", "2.0000", "2000.0", "1,000", "100%", "40", "0", "0.75",
    ]  # fmt: skip
    print_scene(result | {"steps": {"s06": row_of(4.0, blend=4.0), "best": row, "best, own": row}}, 1000.0)
    text = capsys.readouterr().out
    assert [line.split()[1:6] for line in text.splitlines() if "% 40 " in line] == [
        ["s06", "│", "500", "50%", "40"], ["best", "│", "1,000", "100%", "40"], ["best,", "own", "│", "1,000", "100%"],
    ]  # fmt: skip
    assert "best: fewest bytes" in text, "whichever row comes last"


# ---- Stages taken apart ----------------------------------------------------------------------------------------------


def test_the_parts_of_the_backward_blend_add_up_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    ms: dict[str, float] = dict(zip(VARIANTS, (3.2, 2.9, 2.2, 1.1), strict=True))
    split = split_of(ms)
    assert sum(split.values()) == pytest.approx(3.2)
    assert split == pytest.approx({"floor": 1.1, "gradient math": 1.1, "reductions": 0.7, "atomics": 0.3})
    kernels = {variant: {"registers": 64, "spill_bytes": 0} for variant in VARIANTS}
    variants = {variant: spread([value]) for variant, value in ms.items()}
    row = {"part": "blend_backward", "step": "best", "variants": variants, "kernels": kernels, "split": split}
    print_ablation("S9", row)
    text = capsys.readouterr().out
    assert "floor 1.1000 ms (34.4%) / gradient math 1.1000 ms (34.4%)" in text
    assert "0.3000 │  9.4%" in text  # atomics


def test_each_variant_is_a_policy_of_its_own() -> None:
    for name in STEPS:
        policies = {ablated(step(name), variant) for variant in VARIANTS}
        assert len(policies) == len(VARIANTS)
        assert step(name) in policies  # off


def test_the_visit_to_a_gpu_refuses_a_part_it_does_not_have(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "gpu_check.sh"
    ran = subprocess.run(["bash", str(script), str(tmp_path), "tests", "python3"], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "no part python3; parts are tests, training, ladder" in ran.stdout


# ---- On emulated kernels ---------------------------------------------------------------------------------------------


class HostPair:
    """Times as EventPair does, by the host's clock."""

    def __init__(self) -> None:
        self._start = perf_counter()

    def end(self) -> None:
        self.ms = 1e3 * (perf_counter() - self._start)


class Twin:
    """Draws as a peer with our own renderer, except that its picture is a little brighter."""

    name, version = "twin", "1.0"

    def __init__(self, renderer: Renderer) -> None:
        self.renderer, self.given, self.released = renderer, None, False
        self.scene = renderer.upload(SCENE)

    def prepare(self, given: Any) -> None:
        self.given = given

    def forward(self) -> Any:
        return self.renderer.forward(self.scene, CAMERA, training=True).image + 0.25

    def backward(self, image: Any, image_gradient: Any) -> tuple[Any, ...]:
        gradients = self.renderer.backward(image_gradient)
        return tuple(gradients[name].clone() for name in PARAMETERS)

    def raw_gradients(self, gradients: tuple[Any, ...]) -> dict[str, Any]:
        named = dict(zip(PARAMETERS, gradients, strict=True))
        return named | {"sh": named["sh"][:, :9], "quats": 1.5 * named["quats"]}

    def release(self) -> None:
        self.released = True


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Runs kernels of `best` on this processor, with a clock that needs no GPU."""
    if not is_supported():
        pytest.skip("needs Linux and g++")
    monkeypatch.setattr(gpu, "EventPair", HostPair)
    monkeypatch.setattr(gpu, "WALL_BATCHES", 1)
    for module in (ladder, ablate):
        monkeypatch.setattr(module, "hold", lambda: None)
    monkeypatch.setattr(ladder, "kernel_reports", lambda plan: {})
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return Kernels([pass_for(step("best"), CAMERA, training, False) for training in (True, False)])


def of_this_scene(expected: Picture | None) -> Subject:
    return Subject("tiny", "tiny", lambda: Loaded(SCENE, CAMERA, None, expected))


def test_steps_and_peers_take_turns_and_are_compared(emulation: Kernels, capsys: pytest.CaptureFixture[str]) -> None:
    twin = Twin(emulated_renderer(emulation))
    bench = LadderBench({"best": step("best")}, 2, (emulated_renderer(emulation), emulated_renderer(emulation)))
    result = bench.measure(of_this_scene(None), [twin])
    row, peer = result["steps"]["best"], result["peers"]["twin"]
    assert (result["splats"], result["width"], result["height"]) == (100, 64, 48)
    assert row["wrong"] == []
    for times in (row, peer):
        assert all(times[mode]["runs"] == 2 for mode in (*MODES, "synchronous"))
        assert set(times["wall_ms"]) == {"view", "forward_backward"}
    assert twin.given is not None
    assert twin.given.sh.shape == (100, 9, 3)  # as the scene has them, not padded
    assert twin.released
    assert peer["image_mean_difference"] == pytest.approx(0.25, abs=1e-6)
    expected = dict.fromkeys(PARAMETERS, 0.0) | {"quats": 0.5}
    assert peer["gradient_differences"] == pytest.approx(expected, abs=1e-6)
    print_scene(result, 4000.0)
    text = capsys.readouterr().out
    assert "twin (1.0)" in text
    assert "50.00%" in text
    wrong = bench.measure(of_this_scene(Picture(row["visible"] + 1, row["instances"], 0.0)))
    assert wrong["steps"]["best"]["wrong"] == [f"visible are {row['visible']}, expected {row['visible'] + 1}"]


def test_every_kernel_between_projection_and_blending_is_timed_by_itself(
    emulation: Kernels, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ablate, "Renderer", lambda: emulated_renderer(emulation))
    row = ablate_sort(of_this_scene(None), step("best"), 3)
    assert all(times["runs"] == 3 for times in row["parts"].values())
    assert {name.partition(",")[0] for name in row["parts"]} == set(SORT_STAGES)
    assert [name for name in row["parts"] if name.startswith("depth_sort")] == [
        "depth_sort, histogram 1",
        *(f"depth_sort, sort_pass {number}" for number in range(1, 5)),
    ]
    assert set(row["beside"]) == {
        "an empty pair of events",
        "gather of footprints by depth",
        "gather of splats by list",
    }
    print_ablation("tiny", {"part": "sort", "step": "best", **copy.deepcopy(row)})
    text = capsys.readouterr().out
    assert f"{row['visible']:,} visible" in text
    assert "depth_sort, sort_pass 4" in text
