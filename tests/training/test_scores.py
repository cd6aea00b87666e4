"""Tests that scores are the same wherever they are computed, and that their cost does not count as training."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.progress import Progress

from splatscope.app.run.headless import _Line
from splatscope.app.terminal import Terminal
from splatscope.kernels.backends import make_backend
from splatscope.kernels.cpu import training
from splatscope.training import events, metrics
from splatscope.training.stopwatch import Stopwatch, process_seconds
from splatscope.training.trainer import Trainer
from tests.support.small_capture import SHORT, make_capture


@pytest.mark.parametrize("weighted", [False, True])
def test_tensors_are_scored_as_arrays_are(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    image = rng.uniform(-0.2, 1.2, (37, 53, 3)).astype(np.float32)
    target = np.clip(image + rng.normal(0, 0.1, image.shape), 0, 1).astype(np.float32)
    weights = rng.integers(0, 2, (37, 53, 1)).astype(np.float32) if weighted else None
    expected = metrics.score(image, target, training, weights)
    tensors = [None if array is None else torch.from_numpy(array) for array in (image, target, weights)]
    assert tensors[0] is not None
    assert tensors[1] is not None
    found = metrics.score_tensors(tensors[0], tensors[1], tensors[2])
    assert found[0] == pytest.approx(expected[0], abs=1e-4)
    assert found[1] == pytest.approx(expected[1], abs=1e-5)


def test_an_image_equal_to_its_photograph_scores_full_marks() -> None:
    image = torch.rand(20, 30, 3)
    assert metrics.score_tensors(image, image.clone()) == pytest.approx((100, 1))


class Clock:
    """Stands for time.perf_counter."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_happens_between_two_items_counts_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    watch = Stopwatch()

    def items() -> Iterator[int]:
        for i in range(3):
            clock.now += 1
            yield i

    for _ in watch.timed("training", items()):
        clock.now += 100
    with watch.on("saving"):
        clock.now += 5
    assert watch.seconds == {"loading": 0, "preparing": 0, "training": 3, "scoring": 0, "saving": 5}


def test_seconds_of_an_earlier_part_of_a_run_are_not_those_since_the_last_step() -> None:
    watch = Stopwatch()
    watch.restore({"saving": 7.0})
    watch.seconds["saving"] += 2
    assert watch.added("saving") == 2
    assert watch.added("saving") == 0
    assert watch.seconds["saving"] == 9


def test_a_run_says_what_its_seconds_went_to(tmp_path: Path) -> None:
    config = replace(SHORT, iterations=30, test_interval=10)
    trainer = Trainer(make_capture(tmp_path), config, make_backend("cpu"), tmp_path / "out")
    assert [type(event) for event in trainer.run()][-1] is events.Finished
    written = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert written["seconds"].keys() == {"loading", "preparing", "training", "scoring", "saving"}
    assert min(written["seconds"].values()) > 0
    assert written["training_seconds"] == written["seconds"]["training"]
    assert sum(written["seconds"].values()) < written["process_seconds"] < process_seconds()
    times = [row["training_seconds"] for row in written["scores"]]
    assert times == sorted(times)
    assert times[-1] <= written["training_seconds"]


def test_the_rate_in_the_terminal_is_that_of_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, clock, out = 0.0, Clock(), io.StringIO()
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(_Line, "PLAIN_SECONDS", 0.0)
    console = Terminal()
    console.file = out
    progress = Progress(console=console, disable=True)
    line = _Line(console, progress, progress.add_task("", total=3000), 0, lambda: trained, ())
    clock.now = 30  # reading and compiling
    for iteration in range(1, 3001):
        trained += 0.001
        clock.now += 0.001
        line.show(events.Stepped(iteration, 0.1, 500))
        if iteration % 500 == 0:  # more often than once a second
            clock.now += 20
            line.show(events.Evaluated(iteration, 30.0, 0.9, "held-out PSNR", 3))
    rates = {text.split(":")[1].split(" it/s")[0].strip() for text in out.getvalue().splitlines() if "it/s" in text}
    assert rates == {"1000.0"}, "the first lines come before there is a rate, and say none"
