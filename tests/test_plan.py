"""The recipe as the window's form sees it: every setting goes there and back, what no run can use is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from splatscope.app.plan import RunPlan, preset_of
from splatscope.kernels.errors import InputError
from splatscope.training.config import DataConfig, TrainConfig
from splatscope.training.recipes import PRESETS, preset
from splatscope.viewer.messages import SetRecipe
from splatscope.viewer.panels.recipe import shown, spelled


@pytest.mark.parametrize("name", PRESETS)
def test_every_setting_of_the_form_goes_there_and_back(name: str) -> None:
    plan = RunPlan(preset(name))
    recipe = plan.recipe()
    assert recipe.preset == name
    assert len(recipe.settings) > 60
    assert {s.name.rpartition(".")[2] for s in recipe.settings if s.is_main} >= {
        "iterations",
        "resolution",
        "max_splats",
    }
    changes = tuple((s.name, spelled(s, shown(s))) for s in recipe.settings)
    assert plan.changed(SetRecipe(changes=changes)).config == plan.config


def test_the_comments_of_the_settings_are_their_explanations() -> None:
    explained = {s.name: s.help for s in RunPlan(TrainConfig()).recipe().settings}
    assert "divide the size" in explained["data.resolution"]
    assert "Mip-Splatting" in explained["antialiasing"]
    assert sum(bool(text) for text in explained.values()) > 0.7 * len(explained)


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
        (("iterations", "many"), "must be int"),
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
    (tmp_path / "run" / "point_cloud").mkdir(parents=True)
    assert plan.again().out == tmp_path / "run-2"
    (tmp_path / "run-2" / "point_cloud").mkdir(parents=True)
    assert plan.again().out == tmp_path / "run-3"
    with pytest.raises(InputError, match="already holds"):
        plan.changed(SetRecipe(out=str(tmp_path / "run-2")))
    assert plan.changed(SetRecipe(out="")).out is None
