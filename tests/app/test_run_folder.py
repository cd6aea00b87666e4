"""Tests a run's own folder in the window: the run continues where its capture exists, else a sentence tells why not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from splatscope.app.engine.engine import Engine, EngineConfig
from splatscope.app.run.plan import RunPlan
from splatscope.app.run.resume import held_out, listed_held_out, run_settings, settings_in
from splatscope.assets.formats import open_capture
from splatscope.kernels.backends import make_backend
from splatscope.kernels.errors import InputError
from splatscope.training.config import CheckpointConfig, DataConfig, InitialConfig, TrainConfig
from splatscope.training.files.checkpoint import checkpoint_path, write_checkpoint
from splatscope.training.files.folder import resume_line
from splatscope.training.trainer import Trainer
from splatscope.viewer.messages import commands
from tests.app.test_engine import wait_until, write_capture
from tests.support.odd_captures import make_colmap

CONFIG = TrainConfig(
    iterations=30, save_iterations=(10,), test_interval=0, seed=4, data=DataConfig(eval=True),
    initial=InitialConfig(source="random", random_count=200), checkpoint=CheckpointConfig(enabled=False),
)  # fmt: skip


def leave_run(capture: Path, out: Path, reached: int = 25) -> Path:
    """Returns a run that has saved splats at iteration 10 and whose newest checkpoint is of iteration `reached`."""
    trainer = Trainer(open_capture(capture), CONFIG, make_backend("cpu"), out)
    for _ in trainer.run():
        if trainer.iteration == reached:
            break
    trainer.wait_for_files()
    write_checkpoint(checkpoint_path(out, reached), trainer.snapshot())
    return out


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return leave_run(write_capture(tmp_path / "ball"), tmp_path / "run")


@pytest.fixture
def opened() -> Iterator[Callable[[Path], Engine]]:
    """Yields an engine of a window that was opened without a run, once a path is open in it."""
    engine = Engine(EngineConfig(backend="cpu"), RunPlan(TrainConfig()))
    engine.start()

    def open_there(path: Path) -> Engine:
        before = (scene := engine.status().scene) and scene.generation
        engine.send(commands.OpenScene(path))
        wait_until(lambda: (now := engine.status().scene) and now.generation != before, "the scene")
        return engine

    yield open_there
    engine.close()


def marked(engine: Engine) -> list[str]:
    scene = engine.status().scene
    assert scene is not None
    return [camera.name for camera in scene.cameras if camera.is_test]


def test_the_folder_of_a_run_opens_at_its_newest_state_and_goes_on(run: Path, opened: Callable[[Path], Engine]) -> None:
    before = sorted(run.rglob("*"))
    engine = opened(run)
    status = engine.status()
    assert status.scene is not None
    assert (status.scene.path, status.scene.kind) == (run, "dataset"), "recent paths lead here again"
    assert (status.training.state, status.training.iteration, status.training.iterations) == ("ready", 25, 30)
    assert status.training.out_dir == run
    assert marked(engine) == ["test/r_6.png", "test/r_7.png"]
    assert sorted(run.rglob("*")) == before, "looking changes nothing"
    engine.send(commands.StartTraining())
    wait_until(lambda: engine.status().training.state == "finished", "the end")
    assert (run / "point_cloud" / "iteration_30" / "point_cloud.ply").is_file()
    assert opened(run.parent / "ball").status().training.out_dir != run, "what is opened next is no part of it"


def test_a_run_that_is_over_opens_as_such_and_can_be_made_longer(
    tmp_path: Path, opened: Callable[[Path], Engine]
) -> None:
    run = leave_run(write_capture(tmp_path / "ball"), tmp_path / "run", reached=30)
    engine = opened(run / "checkpoints")
    assert engine.status().training.state == "finished"
    engine.send(commands.StartTraining(until=32))
    wait_until(lambda: engine.status().training.iteration == 32, "two more")


def test_where_the_capture_is_gone_the_splats_open_with_their_held_out_views_and_the_reason(
    run: Path, opened: Callable[[Path], Engine]
) -> None:
    shutil.rmtree(run.parent / "ball")
    engine = opened(run)
    status = engine.status()
    assert status.scene is not None
    assert (status.scene.kind, status.scene.path.parent.name) == ("model", "iteration_10")
    assert status.training.state == "none"
    assert f"the capture of this run, {run.parent / 'ball'}, is not there any more" in status.training.note
    assert marked(engine) == ["test/r_6.png", "test/r_7.png"]
    engine.send(commands.StartTraining())
    wait_until(lambda: "is not there any more" in str(engine.status().log[-1:]), "the same reason")


def test_a_run_whose_splats_are_newer_than_its_checkpoints_shows_the_splats(
    run: Path, opened: Callable[[Path], Engine]
) -> None:
    shutil.rmtree(run / "checkpoints")
    note = opened(run).status().training.note
    assert (
        f"there is no checkpoint of these splats, iteration 10. A new run begins with them: {resume_line(run)}" in note
    )


def test_held_out_views_are_told_by_the_settings_also_by_those_from_before_they_were_listed(tmp_path: Path) -> None:
    run = leave_run(make_colmap(tmp_path / "set", tuple(f"{k}.jpg" for k in range(9))), tmp_path / "run", reached=10)
    names = [camera["img_name"] for camera in json.loads((run / "cameras.json").read_text())]
    assert held_out(run, names) == {"0.jpg", "8.jpg"}
    settings = json.loads((run / "settings.json").read_text())
    assert settings.pop("held_out") == ["0.jpg", "8.jpg"]
    (run / "settings.json").write_text(json.dumps(settings))
    assert held_out(run, names) == {"0.jpg", "8.jpg"}
    for damaged in ("{", "[]", '{"held_out": 3}', '{"training": {"data": {"holdout_interval": "8", "eval": true}}}'):
        (run / "settings.json").write_text(damaged)
        assert held_out(run, names) == frozenset()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 100_000, "nests brackets deeper than can be read"),
        ('{"source": "x", "training": {"seed": ' + "[" * 900 + "]" * 900 + "}}", "seed must be a whole number"),
        ('{"source": "x", "training": {"seed": 1e400}}', "seed must be a whole number"),
        ('{"source": "x", "training": {"\\u001b[31m": 1}}', r"There is no training setting '\x1b[31m'"),
        ('{"source": "a\\u0000b", "training": {}}', "source must be a path"),
        ('{"source": 3, "training": {}}', "source must be a path"),
        ('{"source": "x", "training": []}', "does not hold the settings of a run"),
        ("[]", "does not hold the settings of a run"),
        ("{", "is not valid JSON: line 1"),
    ],
)
def test_settings_that_cannot_be_used_are_one_sentence_wherever_they_are_read(
    tmp_path: Path, content: str, words: str
) -> None:
    file = tmp_path / "settings.json"
    file.write_text(content)
    with pytest.raises(InputError) as error:
        run_settings(tmp_path)
    assert words in str(error.value)
    assert str(error.value).startswith((f"{file} ", f"The settings in {file} "))
    assert str(error.value).endswith(" Give the capture: eval --dataset CAPTURE, train CAPTURE --preset NAME.")
    if "source must" not in words:
        with pytest.raises(InputError) as error:
            settings_in(tmp_path)
        assert words in str(error.value)
    assert listed_held_out(tmp_path) is None
    assert held_out(tmp_path, ["a", "b"]) == frozenset()
