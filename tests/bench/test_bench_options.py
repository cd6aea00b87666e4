"""Tests the options of the benchmarks, and the translation of command lines from before there were subcommands."""

from __future__ import annotations

import shlex
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import get_origin, get_type_hints

import pytest

from splatscope.app.commands.dispatch import MODULES
from splatscope.app.options.bench import SUBCOMMANDS, AblateOptions, RunsOptions, ShowOptions
from splatscope.app.options.former_bench import new_spelling, spelled_now
from splatscope.app.options.subcommands import parse
from splatscope.kernels.errors import InputError

POSITIONAL = {"train": ["x"], "runs": ["x"], "window": ["x"], "show": ["x"]}
VALUES = {
    "vs": ["inria", "all"],
    "primitive": ["2dgs", "3dgut"],
    "losses": ["ours", "fused_ssim"],
}  # of options that do not take any word


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_benchmark_is_a_module_named_like_it_and_its_repeated_options_add_up(name: str) -> None:
    kind = SUBCOMMANDS[name]
    assert find_spec(f"splatscope.app.{MODULES[kind]}") is not None
    assert MODULES[kind] == f"bench.{name}"
    several = [field for field, hint in get_type_hints(kind).items() if get_origin(hint) is tuple]
    for field in (field for field in several if field not in ("parts", "files")):
        first, second = VALUES.get(field, ["7", "8"])
        words = ["bench", name, *POSITIONAL.get(name, []), f"--{field}", first, first, f"--{field}"]
        assert [str(value) for value in getattr(parse([*words, second]), field)] == [first, first, second]
        with pytest.raises(InputError, match=f"--{field} needs a value"):
            parse(words)


def test_what_a_benchmark_works_on_needs_no_flag() -> None:
    assert parse(["bench", "ablate", "sort"]) == AblateOptions(parts=("sort",))
    assert parse(["bench", "ablate"]) == AblateOptions(parts=("blend_backward", "sort"))
    assert parse(["bench", "show", "a", "b"]) == ShowOptions((Path("a"), Path("b")))
    assert parse(["bench", "runs", "lego", "--recipe", "fast", "--seeds", "0", "1", "-r", "-1"]) == RunsOptions(
        Path("lego"), recipe=("fast",), seeds=(0, 1)
    )


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("--ladder --vs all --out results", "ladder --vs all --out results"),
        (
            "--ladder --scenes a.ply --size 640x480 --steps s06 best",
            "ladder --scenes a.ply --size 640x480 --steps s06 best",
        ),
        ("--ablate blend_backward sort --scenes S1", "ablate blend_backward sort --scenes S1"),
        ("--kernels --steps s06", "kernels --steps s06"),
        ("--calibrate", "calibrate"),
        ("--schedule --scenes S3 crowded:20", "schedule --scenes S3 crowded:20"),
        ("--train lego --recipe fast --seeds 0 1 2", "runs lego --recipe fast --seeds 0 1 2"),
        ("--recipe fast --train=lego --set seed=5", "runs lego --recipe fast --set seed=5"),
        ("--train lego --resume a.ply -n 500 --runs 3", "train lego --resume a.ply -n 500 --runs 3"),
        ("--cpu --train lego -r -1 --train_steps 9", "cpu --train lego -r -1 --train-steps 9"),
        ("--scenes small --no-compile", "cpu --scenes small --no-compile"),
        ("--from-json a.json b.json --readme c.md", "show a.json b.json --readme c.md"),
        ("--schedule --from-json a.json --out b", "show a.json --figures b"),
        ("--schedule --from-json a.json --out b/c.json", "show a.json --figures b"),
        ("--train 'my capture'", "train 'my capture'"),
        ("--cpu --train lego --resume a.ply", "train lego --resume a.ply"),
        ("--train lego --no-compile --scenes S4 --repeat 3", "train lego"),
        ("--ladder -r 4 --threads 2 --repeat 3", "ladder --repeat 3"),
        ("--cpu --train lego --num-downscales 1", "cpu --train lego"),
        ("--kernels --out o", "kernels"),
    ],
)
def test_a_former_command_line_is_refused_with_the_new_one_that_means_the_same(former: str, now: str) -> None:
    arguments = shlex.split(former)
    with pytest.raises(InputError) as error:
        parse(["bench", *arguments])
    assert str(error.value).startswith("`bench -")
    assert str(error.value).endswith(f" is now `splatscope bench {now}`.")
    parse(["bench", *shlex.split(now)])  # which is understood
    assert spelled_now(f"splatscope bench {former}") == f"splatscope bench {now}"
    assert spelled_now(f"splatscope bench {now}") == f"splatscope bench {now}"


@pytest.mark.parametrize("former", ["--schedule --ladder", "--cpu --ablate sort", "--kernels --calibrate"])
def test_two_benchmarks_at_once_are_refused_without_dropping_one_of_them(former: str) -> None:
    with pytest.raises(InputError, match="asks for several benchmarks; ask for one at a time"):
        parse(["bench", *former.split()])


def test_a_refused_command_line_names_the_flag_that_chose_the_benchmark() -> None:
    for words in ("--train x --recipe fast", "--recipe fast --train x"):
        with pytest.raises(InputError, match=f"^`bench {words.split()[0]}` is now"):
            parse(["bench", *words.split()])
    both = new_spelling(["--calibrate", "--schedule", "--scenes", "S1"])
    assert both == "splatscope bench calibrate && splatscope bench schedule --scenes S1"
    with pytest.raises(InputError, match="needs the name of a benchmark: ladder, ablate, "):
        parse(["bench"])


def test_every_option_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    for name, kind in SUBCOMMANDS.items():
        with pytest.raises(SystemExit):
            parse(["bench", name, "--help"])
        text = capsys.readouterr().out
        assert all(f"--{field.name.replace('_', '-')}" in text for field in fields(kind) if field.name not in {
            "capture", "files", "parts", "compile",
        })  # fmt: skip
