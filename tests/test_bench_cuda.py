"""The GPU benchmark's table and its byte counts, without a GPU."""

from __future__ import annotations

import pytest
import torch

from splatscope.app.bench_cuda import MODES, LadderOptions, _policies, least_bytes, print_scene, run_ladder, spread
from splatscope.kernels.cuda_buffers import Capacity
from splatscope.kernels.errors import InputError
from splatscope.kernels.passes import Pass
from splatscope.kernels.pipeline import Outputs, Plan
from splatscope.kernels.steps import STEPS, step
from tests.small_scenes import random_camera


def plan_of(name: str) -> Plan:
    nothing = Outputs(None, None, None, None, None, None, {})
    return Plan(Pass(step(name), True, False, 1000), Capacity(1, 1), [], [], nothing)


def test_the_ladder_is_every_step_and_with_toggles_one_more_row_each() -> None:
    assert list(_policies(LadderOptions())) == list(STEPS)
    assert list(_policies(LadderOptions(steps=("s01", "best")))) == ["s01", "best"]
    rows = _policies(LadderOptions(toggles=True))
    assert rows["best, blend_backward.reduce = scatter"].blend_backward.reduce == "scatter"
    assert all(policy.problems() == [] for policy in rows.values())
    with pytest.raises(InputError, match="no step 's9'"):
        _policies(LadderOptions(steps=("s9",)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_the_ladder_says_what_is_missing() -> None:
    with pytest.raises(InputError, match=r"needs cupy|no NVIDIA GPU"):
        run_ladder(LadderOptions())


def test_the_roofline_counts_each_array_once() -> None:
    camera = random_camera(640, 480)
    counts = {"visible": 1_000, "instances": 5_000, "skipped": 0}
    best, bf16, single = (least_bytes(plan_of(n), 10_000, counts, camera) for n in ("best", "s06_bf16", "s01c"))
    assert best["project"] - bf16["project"] == 96 * 1_000
    assert best["project_backward"] - bf16["project_backward"] == 96 * (1_000 + 10_000)
    assert "depth_sort" not in single  # one sort of everything
    assert single["tile_sort"] == 6 * 2 * 12 * 5_000  # six digits of (8-byte key, slot), read and written
    assert best["tile_sort"] == 2 * 2 * 6 * 5_000


def test_the_table_shows_each_step_and_what_is_wrong_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    times = spread([1.0, 2.0, 3.0])
    assert (times["median"], times["min"], times["max"], times["runs"]) == (2.0, 1.0, 3.0, 3)
    row = dict.fromkeys(MODES, times) | {"visible": 7, "instances": 70, "stages": {"blend": times}}
    row |= {"wall_ms": {"forward_backward": 4.5}, "least_bytes": {"blend": 2_000_000_000}, "wrong": ["visible are 7"]}
    row |= {"kernels": {"blend<BlendPolicy{}>": {"registers": 40, "spill_bytes": 0, "occupancy": 0.75}}}
    result = {"name": "S9", "splats": 10, "width": 8, "height": 9, "steps": {"best": row}}
    print_scene(result, 1000.0)
    text = capsys.readouterr().out
    assert "10 splats at 8×9" in text
    assert "WRONG in S9, best: visible are 7." in text
    roofline = next(line for line in text.splitlines() if "0.75" in line)
    assert [cell.strip() for cell in roofline.strip("│").split("│")] == [
        "blend", "2.0000", "2000.0", "1,000", "100%", "40", "0", "0.75",
    ]  # fmt: skip
