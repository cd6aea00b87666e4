"""Tests `bench schedule` on a GPU: a small scene under a few schedules, and the figures kept of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from splatscope.app.bench.measure.results import read_results
from splatscope.app.bench.schedule import run_schedule
from splatscope.app.options.bench import ScheduleOptions
from splatscope.kernels.backends import gpu_is_present
from tests.support.places import STILL_LIFE

pytestmark = pytest.mark.skipif(not gpu_is_present(), reason="needs a GPU")


def test_a_splat_file_is_timed_and_recorded_under_every_schedule_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = ("grid", "lpt", "chunk all, k = 4", "seed's policy", "policy")
    options = ScheduleOptions((str(STILL_LIFE),), variants, frames=2, repeat=2, out=tmp_path / "found.json")
    run_schedule(options)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("still_life.ply: imbalance", "seed's policy", "What was to be reached"))
    results = read_results(tmp_path / "found.json")
    frames = results["scenes"][0]["frames"]
    assert len(frames) == 2
    for frame in frames:
        assert set(frame["blend_ms"]) == set(variants)
        assert all(ms > 0 for ms in frame["blend_ms"].values())
        assert frame["psnr"]["lpt"] == frame["psnr"]["grid"] == 200
        assert min(frame["psnr"][name] for name in ("policy", "seed's policy")) >= 76
        assert 0 < frame["recorded"]["policy"]["sm_activity"] <= 1
        assert abs(frame["recorded"]["grid"]["simulator"]["durations"]["makespan"]) < 0.25
    assert frames[0]["ratio"] * frames[0]["instances"] == pytest.approx(
        frames[0]["heaviest"] * results["machine"]["workers"]
    )
