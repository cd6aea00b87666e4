"""Tests the table of toggles: complete, consistent with its C++ form, and clear about which toggles need others."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

from splatscope.kernels.cuda.launch.compiler import CUDA_FOLDER
from splatscope.kernels.cuda.plan.passes import Pass, policy_fields
from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import STEPS, changed, step
from splatscope.kernels.policy import BinPolicy, Policy, Toggle, toggle_table
from splatscope.kernels.toggles import RENAMED, RENAMED_VALUES, in_present_names
from tests.support.random_policies import random_policy

TEXT = "\n".join(re.sub(r"//[^\n]*", "", path.read_text()) for path in sorted(CUDA_FOLDER.glob("*.cuh")))
AGGREGATES = {  # file and struct -> fields that the pipeline fills, not the user
    ("project.cuh", "ProjectPolicy"): {"primitive", "lazy_sh"},
    ("loss.cuh", "LossPolicy"): {"coverage", "weights"},
    ("sort.cuh", "HistogramPolicy"): {"key_bytes", "bins"},
    ("sort.cuh", "SortPolicy"): {"key_bytes", "bins", "threads", "items", "blocks", "window", "iota", "gathers"},
    ("bin.cuh", "OffsetsPolicy"): {"each"},
    ("bin.cuh", "EmitPolicy"): {"key_bytes"},
    ("ranges.cuh", "RangesPolicy"): {"key_bytes"},
    ("ranges.cuh", "RangesPlanPolicy"): {"key_bytes"},
    ("schedule.cuh", "PlanPolicy"): set(),
    ("dispatch.cuh", "DispatchPolicy"): {"part", "chunks", "chunks_last", "is_sorted", "records_work"},
    ("blend.cuh", "BlendPolicy"): {"primitive", "training", "wants_depth"},
    ("blend_backward.cuh", "BlendBackwardPolicy"): {"primitive", "absolute"},
    ("project_backward.cuh", "ProjectBackwardPolicy"): {"primitive", "deterministic", "absolute"},
}
CUDA = list(toggle_table("cuda"))
ABLATIONS = [row for row in toggle_table("cuda", ablations=True) if row.is_ablation]


def enumerators(name: str) -> list[str]:
    found = re.search(rf"enum class {name}\s*:\s*int\s*\{{(.*?)\}}", TEXT, re.DOTALL)
    assert found is not None, name
    return [word.strip() for word in found.group(1).split(",") if word.strip()]


@pytest.mark.parametrize("row", [row for row in CUDA + ABLATIONS if row.cpp], ids=lambda row: row.key)
def test_the_values_of_a_toggle_are_those_of_its_type_in_cpp(row: Toggle) -> None:
    kinds = {fields[row.name] for a in AGGREGATES if row.name in (fields := policy_fields(*a))}
    assert kinds == {row.cpp}
    assert row.cpp is not None
    expected = ["off", "on"] if row.cpp == "bool" else enumerators(row.cpp)
    assert sorted(row.values) == sorted(expected)


def test_every_field_in_cpp_is_a_toggle_or_the_pipelines_own() -> None:
    declared = set(re.findall(r"struct (\w+Policy) \{", TEXT))
    assert declared == {struct for _, struct in AGGREGATES}
    names = {row.name for row in CUDA + ABLATIONS if row.cpp}
    for (file, struct), own in AGGREGATES.items():
        assert set(policy_fields(file, struct)) - names == own, struct


def test_no_two_toggles_of_kernels_share_a_name() -> None:
    """Guards `passes.instantiation`: a kernel's policy finds its values by name alone, whatever the stage."""
    names = [row.name for row in CUDA + ABLATIONS]
    assert sorted(set(names)) == sorted(names)


def asserted(file: str, aggregate: str) -> list[str]:
    """Returns the assertions of a kernel's source that compare toggles with each other, as Python expressions."""
    text = re.sub(r"//[^\n]*", "", (CUDA_FOLDER / file).read_text())
    blocks = "\n".join(re.findall(rf"template <{aggregate} P.*?\n}}", text, re.DOTALL))
    found = []
    for condition in re.findall(r"static_assert\((.*?),\s*\"", blocks, re.DOTALL):
        names = set(re.findall(r"P\.(\w+)", condition))
        if len(names) < 2 or not names <= {row.name for row in CUDA}:
            continue
        words = re.sub(r"backward_map\(P\.map\) == Map::columns_8x8", "P.map != Map::columns_8x4", condition)
        words = re.sub(r"P\.(\w+) ([!=]=) \w+::(\w+)", r"\1 \2 '\3'", words)
        words = re.sub(r"!P\.(\w+)", r"\1 == 'off'", words)
        words = re.sub(r"P\.(\w+)", r"\1 == 'on'", words).replace("||", "or").replace("&&", "and")
        found.append(" ".join(words.split()))
    return found


@pytest.mark.parametrize("aggregate", [a for a in AGGREGATES if asserted(*a)], ids=lambda a: a[1])
def test_kernels_refuse_just_what_needs_of_toggles_refuse(aggregate: tuple[str, str]) -> None:
    """Compares both places that state the needs: `kernels/policy.py` for people, and assertions in the kernels for
    their authors."""
    rows = {row.name: row for row in CUDA if row.cpp and row.name in policy_fields(*aggregate)}
    needs = [(row.name, need) for row in rows.values() for need in row.needs if need.name in rows]
    conditions = [compile(words, words, "eval") for words in asserted(*aggregate)]
    names = sorted({name for condition in conditions for name in condition.co_names} | {name for name, _ in needs})
    for values in product(*(rows[name].values for name in names)):
        chosen = dict(zip(names, values, strict=True))
        met = all(chosen[name] != need.value or chosen[need.name] in need.allowed for name, need in needs)
        assert met == all(eval(condition, {}, chosen) for condition in conditions), chosen


def test_every_toggle_says_what_it_does_in_a_sentence_and_where_it_comes_from() -> None:
    for row in CUDA:
        assert row.sentence.endswith("."), row.key
        assert row.default in row.values
        assert row.step in {*STEPS, "own"}
        assert (row.identity == "Q") == (row.tolerance is not None)
        assert row.class_sentence.startswith(f"{row.identity}: ")
        for need in row.needs:
            assert need.value in row.values
            other = next(t for t in CUDA if (t.stage, t.name) == (need.stage, need.name))
            assert set(need.allowed) < set(other.values)


def test_no_table_lists_what_only_an_ablation_sets() -> None:
    assert [row.key for row in ABLATIONS] == ["blend_backward.ablate"]
    assert ABLATIONS[0].default == "off"
    assert not {row.key for row in CUDA} & {row.key for row in ABLATIONS}
    with_it = changed(Policy(), {"blend_backward.ablate": "no_atomics"})
    name = Pass(with_it, training=True, wants_depth=False, tiles=1).kernels()["blend_backward"][1]
    assert ".ablate = Ablate::no_atomics" in name


def test_a_window_on_the_cpu_shows_what_the_cpu_honours() -> None:
    on_both = {"bin.bounds", "project.filter", "schedule.record", "blend.alpha_cap", "blend.stop"}
    assert {row.key for row in toggle_table()} == on_both
    assert {"bin.bounds", "blend.subtile", "launch.mode"} <= {row.key for row in CUDA}
    assert Policy() == Policy(bin=BinPolicy("row_span"))


def test_a_toggle_whose_need_is_off_says_what_to_set_first() -> None:
    policy = changed(step("s01"), {"blend.cmask": "on"})
    row = next(row for row in CUDA if row.key == "blend.cmask")
    sentence = step("s01").unmet(row, "on")
    assert sentence is not None
    assert "set blend.compaction to on first" in sentence
    assert policy.problems() == [sentence]
    with pytest.raises(InputError, match=r"set blend\.compaction to on first"):
        policy.check()
    assert policy.problems("cpu") == []
    assert changed(policy, {"blend.compaction": "on"}).problems() == []


def test_unknown_names_and_values_are_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"no toggle blend\.speed"):
        Policy().with_value("blend", "speed", "on")
    with pytest.raises(ValueError, match="one of off, on, got 'yes'"):
        Policy().with_value("blend", "cmask", "yes")
    with pytest.raises(InputError, match="steps are s00, s01a"):
        step("s07")


def test_the_ladder_climbs_one_change_at_a_time_to_the_default() -> None:
    for name, rung in STEPS.items():
        assert rung.policy.problems() == [], name
        assert rung.sentence.endswith(".")
    policies = [rung.policy for name, rung in STEPS.items() if name != "s01"]
    assert len(set(policies)) == len(policies)
    assert step("s01") == step("s01e")
    assert step("best") == Policy()
    quality = [row for row in CUDA if row.identity == "Q" and row.key != "bin.bounds"]
    assert all(step("best").value(row.stage, row.name) == row.default for row in quality)
    assert step("best").project.sh_dtype == "f32"


def test_the_ladder_begins_with_the_oldest_value_of_each_toggle() -> None:
    """Keeps a new value out of every rung before its own, even if its author forgets to."""
    climbed = [row for row in CUDA if row.stage not in ("schedule", "launch") and row.key != "sort.sorter"]
    assert all(step("s00").value(row.stage, row.name) == row.values[0] for row in climbed)
    assert (step("s00").schedule.sched, step("s00").schedule.chunk) == ("grid", "off")
    assert not Pass(step("s00"), training=True, wants_depth=True, tiles=100).is_scheduled, "what else it has is moot"
    # What these are by default the 2023 rasteriser has, too; any other default is newer, and no toggle's first value.
    old = {"project.filter", "project.sh_dtype", "blend.splat_fetch", "blend.alpha_cap", "blend.stop", "blend.sign_T"}
    assert {row.key for row in climbed if row.default == row.values[0]} == old | {"project_backward.by_slot"}


def test_a_policy_becomes_kernels_as_cpp_spells_them() -> None:
    kernels = Pass(step("s05"), training=True, wants_depth=False, tiles=100).kernels()
    assert kernels["blend"] == (
        "blend.cuh",
        "blend<BlendPolicy{.layout = Layout::packed48, .map = Map::columns_8x4, .subtile = Subtile::ellipse, "
        ".splat_fetch = Fetch::shared, .subtile_list = SubtileList::ballot, .exp = Exponential::ex2, "
        ".alpha_cap = AlphaCap::cap99, .stop = Stop::exclusive, .log2_opacity = false, .branchless = true, "
        ".sign_T = false, .running_T = false, .training = true, .compaction = true, .cmask = true, "
        ".wants_depth = false}>",
    )
    viewing = Pass(step("s05"), training=False, wants_depth=True, tiles=100).kernels()
    assert ".compaction = false" in viewing["blend"][1]
    assert "blend_backward" not in viewing


@pytest.mark.parametrize(
    ("sort", "tiles", "key_bytes", "bits"),
    [("two_stage", 1, 2, 1), ("two_stage", 65536, 2, 16), ("two_stage", 65537, 4, 17), ("single64", 6370, 8, 45)],
)
def test_sort_keys_are_as_wide_as_tiles_need(sort: str, tiles: int, key_bytes: int, bits: int) -> None:
    made_for = Pass(changed(Policy(), {"sort.scheme": sort}), False, False, tiles)
    assert (made_for.key_bytes, made_for.key_bits) == (key_bytes, bits)


def test_a_toggle_changes_only_the_kernels_of_its_stage() -> None:
    def changed_roles(key: str, value: str) -> set[str]:
        before, after = (Pass(p, True, False, 100).kernels() for p in (step("s01"), changed(step("s01"), {key: value})))
        return {role for role in before if before[role] != after.get(role)}

    assert changed_roles("blend_backward.reduce", "scatter") == {"blend_backward"}
    assert changed_roles("project.sh_load", "scalar") == {"project"}
    assert changed_roles("blend.subtile", "aabb") == {"blend", "blend_backward"}
    assert changed_roles("bin.bounds", "aabb_o") == {"project", "emit"}
    assert changed_roles("launch.mode", "direct") == set()


def test_random_policies_go_together_and_reach_every_value() -> None:
    random, unseen = np.random.default_rng(0), {(row.key, value) for row in CUDA for value in row.values}
    for draws in range(6_000):
        if draws >= 600 and not unseen:
            break
        policy = random_policy(random)
        assert policy.problems() == []
        unseen -= {(row.key, policy.value(row.stage, row.name)) for row in CUDA}
    assert not unseen, "no random policy has these values: their needs exclude each other, or are too many"


def test_adam_left_to_itself_leaves_harmonics_alone_wherever_the_other_toggles_allow_it() -> None:
    def comes_to(**changes: str) -> str:
        policy = changed(step("best"), {key.replace("__", "."): value for key, value in changes.items()})
        assert policy.problems() == []
        return policy.adam

    assert comes_to() == "lazy_sh"
    assert comes_to(project__sh_dtype="split") == comes_to(project__sh_load="float4") == "fused"
    assert comes_to(project_backward__sh_bwd="stream4") == "separate"
    assert comes_to(optimizer__adam="fused") == "fused"
    assert {name: row.policy.adam for name, row in STEPS.items() if name != "best"} == dict.fromkeys(
        [name for name in STEPS if name != "best"], "separate"
    )


EARLIER = {"sort.sort": "single64", "launch.launch": "direct", "schedule.policy": "seed", "schedule.chunk": "policy"}


def test_earlier_names_of_toggles_set_the_toggles_of_today() -> None:
    expected = {"sort.scheme": "single64", "launch.mode": "direct", "schedule.cost_model": "seed"}
    assert changed(step("s00"), EARLIER) == changed(step("s00"), expected | {"schedule.chunk": "modelled"})


def test_earlier_names_are_no_names_of_today_and_become_such() -> None:
    values = {row.key: row.values for row in CUDA}
    assert not RENAMED.keys() & values.keys()
    assert set(RENAMED.values()) <= values.keys()
    for (key, before), value in RENAMED_VALUES.items():
        assert value in values[key]
        assert before not in values[key]


def test_words_that_set_toggles_are_translated_wherever_they_stand_in_a_text() -> None:
    text = "best, sort.sort = single64 (also schedule.chunk = policy), launch.launch=direct --set a.sort=sort.sort"
    today = "best, sort.scheme = single64 (also schedule.chunk = modelled), launch.mode=direct --set a.sort=sort.sort"
    assert in_present_names(text) == in_present_names(today) == today
