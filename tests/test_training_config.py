"""Settings: they survive JSON, name what is wrong with a value, and the presets are the published recipes."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from splatscope.app.plan import settings_of
from splatscope.kernels.errors import InputError
from splatscope.training.config import (
    DensifyConfig,
    InitialConfig,
    TrainConfig,
    config_from_dict,
    config_to_dict,
)
from splatscope.training.recipes import PRESETS, preset, with_settings


def test_settings_survive_json() -> None:
    config = TrainConfig(
        iterations=123,
        save_iterations=(5, 50),
        initial=InitialConfig(random_count=77),
        densify=DensifyConfig(enabled=False, max_splats=10),
    )
    assert config_from_dict(json.loads(json.dumps(config_to_dict(config)))) == config


def test_missing_settings_keep_their_default_and_whole_numbers_stand_for_floats() -> None:
    config = config_from_dict({"rates": {"opacity": 1}, "seed": 4})
    assert config == replace(TrainConfig(), seed=4, rates=replace(TrainConfig().rates, opacity=1.0))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"iteration": 5}, "iteration"),
        ({"iterations": "many"}, "iterations"),
        ({"densify": {"interval": 2.5}}, "densify.interval"),
        ({"densify": 3}, "densify"),
        ({"densify": {"enabled": 1}}, "densify.enabled"),
        ({"save_iterations": [1, "x"]}, "save_iterations"),
    ],
)
def test_a_wrong_setting_is_named(values: dict, named: str) -> None:
    with pytest.raises(InputError, match=named):
        config_from_dict(values)


@pytest.mark.parametrize(
    "values",
    [
        {"iterations": 0},
        {"sh_degree": 4},
        {"dssim_weight": 1.5},
        {"data": {"resolution": 0}},
        {"data": {"resolution": -2}},
        {"data": {"resolution": 3}},  # meant as a divisor, it would train pictures of three pixels
        {"densify": {"interval": 0}},
        {"initial": {"random_count": 0}},
        {"iterations": 10**30},
        {"seed": 2**64},
        {"rates": {"means_end": 0}},
        {"rates": {"beta2": 1.0}},
        {"plateau": {"after": 10**30}},
    ],
)
def test_a_value_no_run_can_use_is_refused(values: dict) -> None:
    with pytest.raises(InputError):
        config_from_dict(values).check()


def test_every_number_has_bounds_that_hold_for_all_recipes_and_refuse_what_is_not_finite() -> None:
    numbers = [s for s in settings_of(TrainConfig()) if s.kind in ("whole", "number") and s.name != "data.resolution"]
    for setting in numbers:
        for value in ("NaN", "Infinity", "-Infinity", "-1e308", "1e308", "-1", str(10**30)):
            with pytest.raises(InputError, match=re.escape(setting.name)):
                with_settings(TrainConfig(), [f"{setting.name}={value}"]).check()
    for name in PRESETS:
        for iterations in (1, 100, 10**7):
            preset(name, iterations).check()


def test_presets_differ_in_the_opacity_rate() -> None:
    assert preset("inria").rates.opacity == 0.025
    assert preset("inria2023") == replace(preset("inria"), rates=replace(preset("inria").rates, opacity=0.05))
    with pytest.raises(InputError, match="inria2023"):
        preset("unknown")
