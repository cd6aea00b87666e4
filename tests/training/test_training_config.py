"""Tests settings: they survive JSON, errors name what is wrong with a value, and presets are the published recipes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest

from splatscope.app.options.subcommands import parse
from splatscope.app.options.train import TrainOptions, given_settings
from splatscope.app.run.recipe_form import settings_of
from splatscope.assets.capture import Capture
from splatscope.kernels.errors import InputError
from splatscope.training.config import (
    DensifyConfig,
    ExposureConfig,
    InitialConfig,
    RateConfig,
    TrainConfig,
    config_from_dict,
    config_to_dict,
)
from splatscope.training.data.dataset import training_size
from splatscope.training.files.output import cfg_args
from splatscope.training.recipes import PRESETS, PresetName, preset, with_settings
from splatscope.training.setting import setting_table
from splatscope.training.settings_page import settings_page
from splatscope.training.steps.exposure import Exposures
from tests.support.places import ROOT


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
        {"data": {"resolution": 9}},  # meant as a divisor, it would train pictures of nine pixels
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"rates.opacity=1{'0' * 400}", "rates.opacity must be a number, got a number of more than 60 digits"),
        (f"densify={'[' * 100_000}", "densify must be a group of settings, got '[[["),
        (f"save_iterations=[1{'0' * 400}]", "save_iterations must be numbers from 1 to 1000000000, got a number of"),
        ("test_iterations=[-1]", "test_iterations must be numbers from 1 to 1000000000, got -1"),
        ("data.background=red", "three numbers from 0 to 1, for example [1, 0, 0], or [] for the usual one, got 'red'"),
        ("save_iterations=7000", "a list of iterations, for example [7000, 30000], got 7000"),
        ('data.images="a\\u0000b"', "data.images must be a text"),
        ("=1", "--set takes NAME=VALUE"),
        (f"{'a' * 500}=1", "There is no training setting 'aaa"),
    ],
)
def test_whatever_text_a_setting_is_given_it_is_refused_in_a_sentence_that_is_short(text: str, words: str) -> None:
    with pytest.raises(InputError) as refusal:
        with_settings(TrainConfig(), [text]).check()
    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 700, "settings are listed, what was given is not"


def test_every_whole_divisor_to_eight_divides_the_size_and_other_tools_are_told_the_width(capture: Capture) -> None:
    width, height = capture.views[0].camera.width, capture.views[0].camera.height
    for divisor in range(1, 9):
        config = config_from_dict({"data": {"resolution": divisor}})
        config.check()
        size = training_size(width, height, divisor)
        assert size == (round(width / divisor), round(height / divisor))
        told = re.search(r"resolution=(\d+)", cfg_args(Path("out"), capture, config))
        assert told is not None
        assert int(told[1]) == (divisor if divisor in (1, 2, 4, 8) else size[0])


def test_every_number_has_bounds_that_hold_for_all_recipes_and_refuse_what_is_not_finite() -> None:
    numbers = [s for s in settings_of(TrainConfig()) if s.kind in ("whole", "number") and s.name != "data.resolution"]
    for setting in numbers:
        for value in ("NaN", "Infinity", "-Infinity", "-1e308", "1e308", "-1", str(10**30)):
            with pytest.raises(InputError, match=re.escape(setting.name)):
                with_settings(TrainConfig(), [f"{setting.name}={value}"]).check()
    for name in PRESETS:
        for iterations in (1, 100, 10**7):
            preset(name, iterations).check()


def test_every_setting_is_explained_in_a_sentence_of_its_own() -> None:
    settings = list(settings_of(TrainConfig()))
    for setting in settings:
        assert re.fullmatch(r"[A-Z0-9].{9,}\.", setting.help), setting.name
        words = {word.strip(".,").lower() for word in setting.help.split()}
        assert not words <= {*setting.label.lower().split(), setting.name}, "more than its name"


def test_the_page_of_settings_says_what_is_declared() -> None:
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    assert page == settings_page(), "write it again: python -m splatscope.training.settings_page > docs/settings.md"


def test_every_option_of_a_setting_reaches_it_from_the_command_line() -> None:
    for row in setting_table(TrainConfig):
        if (option := row.declared.option) is None:
            continue
        choices = get_args(row.kind) if get_origin(row.kind) is Literal else ()
        value = [] if row.kind is bool else [choices[-1] if choices else "name" if row.kind is str else "3"]
        for name in (*option.aliases, f"--{option.name}", f"--{option.name.replace('_', '-')}"):
            options = parse(["train", name, *value])
            assert isinstance(options, TrainOptions)
            config = config_from_dict(given_settings(options))
            assert str(row.value_in(config)) == {bool: "True", tuple: "(3,)"}.get(
                get_origin(row.kind) or row.kind, "".join(value)
            )
    assert given_settings(TrainOptions()) == {}, "an option that is left out sets nothing"
    halved = given_settings(TrainOptions(num_downscales=2))
    assert halved == {"resolution": {"num_downscales": 2, "schedule": "halving"}}


def test_every_preset_has_its_name_in_the_list_and_a_sentence_in_the_help_of_train() -> None:
    assert set(get_args(PresetName)) == set(PRESETS), "PresetName and PRESETS of training/recipes.py differ"
    text = (ROOT / "app/options/train.py").read_text(encoding="utf-8")
    missing = [name for name in PRESETS if f"{name}: " not in text]
    assert not missing, "say in the text below `preset` of app/options/train.py what the recipe does"


def test_presets_differ_in_the_opacity_rate() -> None:
    assert preset("inria").rates.opacity == 0.025
    assert preset("inria2023") == replace(preset("inria"), rates=replace(preset("inria").rates, opacity=0.05))
    with pytest.raises(InputError, match="inria2023"):
        preset("unknown")


def test_exposures_learn_at_the_published_rate_which_rises_late() -> None:
    exposures = Exposures(ExposureConfig(), RateConfig(), views=1, iterations=30_000)
    # .001 to .0001, times .001 + .999 sin(pi/2 t/5000) in the first 5,000 iterations
    for iteration, wanted in ((0, 1e-6), (2_500, 0.001 * 10 ** (-1 / 12) * 0.7073997), (15_000, 3.1622777e-4)):
        assert exposures.rate(iteration) == pytest.approx(wanted, rel=1e-5), iteration
    assert exposures.rate(30_000) == pytest.approx(1e-4)
    assert preset("fast", 1_800).exposure.delay_steps == 300  # a sixth of the run, as 5,000 is of 30,000
