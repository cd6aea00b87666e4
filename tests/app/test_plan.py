"""Tests the recipe as the window's form sees it: every setting survives both ways, and values that no run can use are
refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from splatscope.app.run.plan import RunPlan, preset_of
from splatscope.kernels.errors import InputError
from splatscope.training.config import DataConfig, TrainConfig
from splatscope.training.recipes import PRESETS, preset
from splatscope.viewer.messages.commands import SetRecipe
from splatscope.viewer.panels.recipe import command_text, differs, input_value, value_text


@pytest.mark.parametrize("name", PRESETS)
def test_every_setting_of_the_form_goes_there_and_back(name: str) -> None:
    plan = RunPlan(preset(name))
    recipe = plan.recipe()
    assert recipe.preset == name
    assert len(recipe.settings) > 60
    main = {s.name.rpartition(".")[2] for s in recipe.settings if s.rank == "main" and s.counts}
    assert main >= {"iterations", "resolution", "max_splats"}
    changes = tuple((s.name, command_text(s, input_value(s))) for s in recipe.settings)
    assert plan.changed(SetRecipe(changes=changes)).config == plan.config


def test_the_form_explains_every_setting_with_its_declared_sentence() -> None:
    explained = {s.name: s.help for s in RunPlan(TrainConfig()).recipe().settings}
    assert "divide the size" in explained["data.resolution"]
    assert "Mip-Splatting" in explained["antialiasing"]
    assert all(explained.values())


def test_a_form_marks_what_differs_from_the_nearest_recipe_and_shows_what_the_strategy_reads() -> None:
    plan = RunPlan(preset("fast")).changed(SetRecipe(changes=(("iterations", "3000"),)))
    recipe = plan.recipe()
    assert [s.name for s in recipe.settings if differs(s)] == ["iterations"], "the rest follows the length"
    changed = plan.changed(SetRecipe(changes=(("budget.split", "false"), ("data.alpha", "mask")))).recipe()
    assert (changed.preset, changed.base) == ("", "fast")
    there = {s.name: s for s in changed.settings}
    assert [s.name for s in changed.settings if differs(s)] == ["iterations", "data.alpha", "budget.split"]
    back = [(s.name, command_text(s, value_text(s, s.usual))) for s in changed.settings if differs(s)]
    assert plan.changed(SetRecipe(changes=tuple(back))).config == preset("fast"), "the way back"
    assert there["budget.interval"].counts
    assert not there["mcmc.noise"].counts
    assert not there["densify.interval"].counts
    assert there["densify.enabled"].counts, "no strategy touches splats without it"


def test_lists_and_the_resolution_are_written_as_people_do() -> None:
    plan = RunPlan(preset("inria"))
    there = {s.name: s for s in plan.recipe().settings}
    assert input_value(there["save_iterations"]) == "7000, 30000"
    assert input_value(there["data.resolution"]) == "", "the hint tells what that means"
    for name, text, value in (
        ("save_iterations", " 500,1000 ", (500, 1000)),
        ("save_iterations", "[500]", (500,)),
        ("save_iterations", "", ()),
    ):
        changed = plan.changed(SetRecipe(changes=((name, command_text(there[name], text)),)))
        assert changed.config.save_iterations == value
    narrow = plan.changed(SetRecipe(changes=(("data.resolution", "800"),)))
    empty = command_text(there["data.resolution"], "")
    assert narrow.changed(SetRecipe(changes=(("data.resolution", empty),))).config.data.resolution == -1


def test_a_preset_keeps_what_was_said_of_the_photographs_and_a_length_of_ones_own_is_still_the_preset() -> None:
    plan = RunPlan(TrainConfig(data=DataConfig(resolution=4, eval=True)))
    fast = plan.changed(SetRecipe("fast"))
    assert fast.config.data == plan.config.data
    assert fast.recipe().preset == "fast"
    shorter = fast.changed(SetRecipe(changes=(("iterations", "3000"),)))
    assert shorter.config.budget.stop == preset("fast", 3000).budget.stop, "the rest follows the length"
    assert shorter.recipe().preset == "fast"
    own = shorter.changed(SetRecipe(changes=(("budget.max_splats", "5000"),)))
    assert preset_of(own.config) == ""
    assert own.changed(SetRecipe(changes=(("iterations", "2000"),))).config.budget.max_splats == 5000


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("iterations", "0"), "at least 1"),
        (("iterations", "many"), "must be a whole number"),
        (("data.resolution", "0"), "resolution"),
        (("densify.max_splats", "-4"), "at least 1"),
        (("strategy", "magic"), "one of adaptive"),
        (("nonsense", "1"), "no training setting"),
    ],
)
def test_a_value_no_run_can_use_is_refused_in_a_sentence(change: tuple[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        RunPlan(TrainConfig()).changed(SetRecipe(changes=(change,)))


def test_a_run_that_begins_again_writes_into_a_folder_of_its_own(tmp_path: Path) -> None:
    plan = RunPlan(TrainConfig(), tmp_path / "run")
    assert plan.again() == plan, "nothing was written yet"
    (tmp_path / "run" / "point_cloud" / "iteration_7").mkdir(parents=True)
    assert plan.again() == plan, "an empty folder is no model"
    (tmp_path / "run" / "point_cloud" / "iteration_7" / "point_cloud.ply").touch()
    assert plan.again().out == tmp_path / "run-2"
    (tmp_path / "run-2" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run-2" / "checkpoints" / "iteration_9.pt").touch()
    assert plan.again().out == tmp_path / "run-3"
    with pytest.raises(InputError, match="already holds checkpoints up to iteration 9;"):
        plan.changed(SetRecipe(out=str(tmp_path / "run-2")))
    with pytest.raises(InputError, match="already holds a trained model;"):
        plan.changed(SetRecipe(out=str(tmp_path / "run")))
    with pytest.raises(InputError, match="character zero"):
        plan.changed(SetRecipe(out="a\0b"))
    assert plan.changed(SetRecipe(out="")).out is None
