"""Tests that nothing in a checkpoint is trusted: a fault becomes one sentence, and no run begins from half a file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from splatscope.assets.capture import Capture
from splatscope.kernels.backend import Backend
from splatscope.kernels.errors import InputError
from splatscope.training.config import ExposureConfig
from splatscope.training.events import Finished, Loading, Resumed
from splatscope.training.files.checkpoint import checkpoints, newest_checkpoint, read_checkpoint
from splatscope.training.trainer import Beginning, Trainer
from tests.support.small_capture import SHORT

TEN = replace(SHORT, iterations=10)
Content = dict[str, Any]


@pytest.fixture(scope="module")
def written(capture: Capture, backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the checkpoint of a run of ten iterations."""
    out = tmp_path_factory.mktemp("run")
    list(Trainer(capture, TEN, backend, out).run())
    return checkpoints(out)[10]


def changed(written: Path, path: Path, change: Callable[[Content, Content], Any]) -> Path:
    """Returns a copy of the checkpoint with `change` applied to its tensors and its settings."""
    content = torch.load(written, weights_only=True)
    info = json.loads(content["info"])
    change(content, info)
    torch.save({**content, "info": json.dumps(info)}, path)
    return path


# What files may lack because it was not kept when they were written.
EARLIER_PARTS = (
    "offset", "views", "moments_since", "random", "scores", "seconds", "settled", "epoch", "losses",
    "strategy.pull", "strategy.seen", "exposure.values", "exposure.first", "exposure.second", "exposure.steps",
)  # fmt: skip
WRONG: tuple[Any, ...] = (None, "x", -5, float("inf"), [], [None])


def test_every_part_that_is_missing_or_no_longer_fits_is_refused(
    written: Path, capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    content = torch.load(written, weights_only=True)
    info = json.loads(content["info"])
    tensors = [name for name, value in content.items() if isinstance(value, torch.Tensor)]

    def begun(path: Path) -> None:
        Trainer(capture, SHORT, backend, tmp_path / "out", Beginning(path, read_checkpoint(path)))

    begun(changed(written, tmp_path / "fine.pt", lambda tensors, info: None))
    bad: dict[str, Callable[[Content, Content], Any]] = {}
    for name in tensors:
        bad[f"no {name}"] = lambda tensors, info, name=name: tensors.pop(name)
        if name != "random":
            bad[f"{name} of another type"] = lambda t, info, name=name: t.update({name: t[name].to(torch.float64)})
        many = torch.zeros(1).expand(10**9, 3)  # twelve gigabytes, says the file of one number
        bad[f"{name} without end"] = lambda t, info, name=name, many=many: t.update({name: many})
        if name not in ("losses", "random"):
            bad[f"{name} one short"] = lambda t, info, name=name: t.update({name: t[name][1:] if len(t[name]) else -1})
    for name in info:
        bad[f"no {name}"] = lambda tensors, info, name=name: info.pop(name)
        for value in WRONG:
            bad[f"{name} {value}"] = lambda t, info, name=name, value=value: info.update({name: value})
    for harmless in ("epoch one short", "source x", "scores []"):
        del bad[harmless]
    for name in EARLIER_PARTS:
        bad.pop(f"no {name}", None)
    for what, change in bad.items():
        path = changed(written, tmp_path / "bad.pt", change)
        with pytest.raises(InputError) as refusal:
            begun(path)
        assert str(refusal.value).startswith(str(path)), what


def test_a_checkpoint_from_before_something_was_kept_goes_on_with_its_default_and_says_so(
    written: Path, capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    def resumed(change: Callable[[Content, Content], Any]) -> tuple[Trainer, str]:
        path = changed(written, tmp_path / "old.pt", change)
        begin = Beginning(path, read_checkpoint(path), iteration=10)
        trainer = Trainer(capture, SHORT, backend, tmp_path / "out", begin)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        events = list(trainer.run())
        assert events[-1] == Finished(40)
        return trainer, next(event.remark for event in events if isinstance(event, Resumed))

    def without(name: str) -> Callable[[Content, Content], Any]:
        return lambda tensors, info: (tensors.pop(name, None), info.pop(name, None))

    unchanged, remark = resumed(lambda tensors, info: None)
    assert remark == ""
    for name in EARLIER_PARTS:
        trainer, remark = resumed(without(name))
        assert trainer.gaussians.count > 0
        if name.startswith("exposure"):
            assert remark == "", "exposures were not asked for"
        else:
            assert ("statistics of its strategy" if "." in name else name) in remark, name
    trainer, remark = resumed(lambda tensors, info: (info.pop("seconds"), info.update(training_seconds=12.5)))
    assert (trainer.seconds["training"] > 12.5, remark) == (True, ""), "the old name"
    groups = ("exposure", "mcmc", "budget", "resolution", "plateau", "checkpoint", "initial", "rates", "densify")
    for group in (*groups, "antialiasing"):
        _, remark = resumed(lambda tensors, info, group=group: info["settings"].pop(group))
        assert remark == "", group
    for setting in (("densify", "absgrad"), ("mcmc", "noise"), ("data", "alpha")):
        resumed(lambda tensors, info, setting=setting: info["settings"][setting[0]].pop(setting[1]))
    shared = ("iteration", "settings", "source", "format")

    def oldest(tensors: Content, info: Content) -> None:
        for name in [name for name in tensors if name.partition(".")[0] not in ("raw", "first", "second", *shared)]:
            del tensors[name]
        for name in [name for name in info if name not in shared]:
            del info[name]
        info["settings"] = {"iterations": 10}

    trainer, remark = resumed(oldest)
    assert remark.count("is from before its") == 9
    losses = [row["psnr"] for row in trainer.scores], [row["psnr"] for row in unchanged.scores]
    assert losses[0][-1] == pytest.approx(losses[1][-1], abs=1.0), "it is the same run all the same"


def test_exposures_that_an_older_checkpoint_lacks_begin_anew(
    written: Path, capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    old = changed(written, tmp_path / "a.pt", lambda tensors, info: tensors.pop("exposure.values"))
    config = replace(SHORT, exposure=ExposureConfig(enabled=True))
    events = list(Trainer(capture, config, backend, tmp_path / "out", Beginning(old, read_checkpoint(old))).run())
    assert "exposures begin without a correction" in next(
        event.remark for event in events if isinstance(event, Resumed)
    )
    assert events[-1] == Finished(40)


def test_flipped_bits_and_compressed_archives_are_not_believed(written: Path, tmp_path: Path) -> None:
    data = bytearray(written.read_bytes())
    data[len(data) // 2] ^= 4  # inside a tensor: still a number
    (tmp_path / "flipped.pt").write_bytes(data)
    with zipfile.ZipFile(written) as whole, zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb:
        for name in whole.namelist():
            bomb.writestr(name, bytes(10**7) if name.endswith("/data/0") else whole.read(name))
    os.mkfifo(tmp_path / "pipe.pt")
    for name, words in (("flipped", "damaged"), ("bomb", "damaged"), ("pipe", "not a regular file")):
        with pytest.raises(InputError, match=words):
            read_checkpoint(tmp_path / f"{name}.pt")


def test_a_checkpoint_of_another_version_is_called_that(written: Path, tmp_path: Path) -> None:
    torch.save({**torch.load(written, weights_only=True), "format": "splatscope checkpoint 2"}, tmp_path / "a.pt")
    with pytest.raises(InputError, match=r"another version .* 'splatscope checkpoint 2'.*\.ply"):
        read_checkpoint(tmp_path / "a.pt")


def test_a_run_goes_on_when_photographs_are_damaged_and_the_scene_was_moved_since(
    written: Path, capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(capture.views[1].image_path.read_bytes()[:200])
    views = (capture.views[0], replace(capture.views[1], image_path=broken), *capture.views[2:])
    moved = replace(capture, views=views, offset=(100.0, -20.0, 3.0))
    begin = Beginning(written, read_checkpoint(written), iteration=10)
    trainer = Trainer(moved, SHORT, backend, tmp_path / "out", begin)
    there = begin.checkpoint.tensors["raw.means"] - torch.tensor(moved.offset) if begin.checkpoint else None
    assert there is not None
    assert torch.allclose(trainer.snapshot().tensors["raw.means"], there, atol=1e-4)
    assert list(trainer.run())[-1] == Finished(40)


def test_two_runs_cannot_write_to_one_folder(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    first, second = (Trainer(capture, TEN, backend, tmp_path / "out") for _ in range(2))
    running = first.run()
    assert isinstance(next(running), Loading)
    with pytest.raises(InputError, match=r"Another run is writing to .*out; give another --out"):
        next(second.run())
    child = "import sys; from pathlib import Path; from splatscope.training.files.folder import only_writer as hold\n"
    child += "with hold(Path(sys.argv[1])): pass"
    other = subprocess.run([sys.executable, "-c", child, tmp_path / "out"], capture_output=True, text=True)
    assert "Another run is writing" in other.stderr
    assert list(running)[-1] == Finished(10)
    assert list(
        Trainer(capture, SHORT, backend, tmp_path / "out", Beginning(*newest_checkpoint(tmp_path / "out"))).run()
    )
