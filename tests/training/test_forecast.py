"""Tests the forecast before a run's first step: its range of splats holds for runs that were measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from splatscope.training.config import DensifyConfig, TrainConfig
from splatscope.training.forecast import expected_splats
from splatscope.training.recipes import preset
from tests.support.places import ROOT

RESULTS = ROOT / "benchmarks" / "results"
MEASURED = [
    (file.name, run)
    for file in sorted(RESULTS.glob("h200-train-*.json"))
    if "-step-" not in file.name
    for run in json.loads(file.read_text())["training_runs"]
    if run["trainer"] == "splatscope" and run["recipe"] in ("inria", "absgrad") and not run["settings"]
]


def test_measured_runs_without_a_cap_ended_in_the_range_that_is_foreseen() -> None:
    assert len({(run["capture"], run["recipe"]) for _, run in MEASURED}) >= 4
    for file, run in MEASURED:
        config = preset(run["recipe"], run["iterations"])
        pixels = run["width"] * run["height"]
        least, most = expected_splats(config, pixels, run["first_splats"], 0)
        assert least < run["splats"] < most, file


@pytest.mark.parametrize("iteration", [0, 3_000, 14_000])
def test_what_is_left_to_grow_shrinks_with_the_iterations_left(iteration: int) -> None:
    config, pixels = TrainConfig(), 1e6
    least, most = expected_splats(config, pixels, 50_000, iteration)
    assert 50_000 < least < most <= 6e6
    later = expected_splats(config, pixels, 50_000, iteration + 900)
    assert later <= (least, most)
    short = replace(config, iterations=iteration + 600)
    assert expected_splats(short, pixels, 50_000, iteration)[1] < most


def test_a_run_that_does_not_grow_keeps_what_it_has() -> None:
    for config, iteration in (
        (TrainConfig(densify=DensifyConfig(enabled=False)), 0),
        (TrainConfig(iterations=500), 0),
        (TrainConfig(), 15_000),
    ):
        assert expected_splats(config, 1e6, 1234, iteration) == (1234, 1234)
    assert expected_splats(TrainConfig(), 1e4, 10**6, 0) == (10**6, 10**6), "more than photographs ask for"
