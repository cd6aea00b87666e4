"""Tests --step and --toggle: their answers to mistakes, and that every subcommand obeys them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splatscope.app.bench.ladder import ladder_policies
from splatscope.app.main import main
from splatscope.app.options import subcommands
from splatscope.app.options.bench import LadderOptions
from splatscope.app.options.policy import choose_policy
from splatscope.app.options.subcommands import EvalOptions, RenderOptions, TrainOptions, ViewOptions
from splatscope.assets.splats.ply import read_ply, write_ply
from splatscope.assets.trained.cameras import write_camera
from splatscope.kernels.backends import make_backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import changed, step
from splatscope.kernels.policy import Policy, toggle_table
from splatscope.kernels.types import RenderSettings
from splatscope.viewer.state.presets import settle
from tests.support.display import Program
from tests.support.places import SUPPORT
from tests.support.small_capture import write_blender_set
from tests.support.small_scenes import random_camera, random_scene
from tests.support.window_hands import Hands

SCRIPT = SUPPORT / "command_window.py"
CAMERA = random_camera(64, 48)
SCENE = random_scene(CAMERA, 60, seed=3)


def splatscope(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


# ---- What is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["view", "train", "render", "eval", "bench ladder"])
def test_every_subcommand_takes_toggles_one_after_another_and_again(name: str) -> None:
    path = [] if name in ("bench ladder", "view") else ["x"]
    options = subcommands.parse(
        [*name.split(), *path, "--step", "s06", "--toggle", "a.b=c", "d.e=f", "--toggle", "g.h=i"]
    )
    assert isinstance(
        options,
        ViewOptions | TrainOptions | RenderOptions | EvalOptions | LadderOptions,
    )
    assert (options.step, options.toggle) == ("s06", ("a.b=c", "d.e=f", "g.h=i"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["scene.ply"], "takes STAGE.FIELD=VALUE, for example blend.map=columns_8x8, got 'scene.ply'"),
        (["blend=on"], "takes STAGE.FIELD=VALUE"),
        (["blnd.map=mixed"], "no stage 'blnd'; stages are bin, project, sort, schedule, blend, "),
        (["blend.mop=mixed"], "blend has no toggle 'mop'; it has map, subtile, "),
        (["blend_backward.ablate=no_atomics"], "no toggle 'ablate'"),
        (["blend.map=mxed"], "must be one of columns_8x4, columns_8x8, mixed, adaptive, got 'mxed'"),
        (["blend.map=mixed", "blend.map=adaptive"], "sets blend.map twice, to mixed and to adaptive"),
        (["blend.alpha_cap=none"], "set blend.stop to inclusive first"),
        (["blend.cmask=on", "blend.compaction=off"], "set blend.compaction to on first"),
        (["blend_backward.bwd_sync=warp", "blend.compaction=off"], "set blend.cmask to on first"),
    ],
)
def test_what_there_is_not_or_does_not_go_together_is_said_in_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        choose_policy("best", words)
    assert sentence in str(error.value)
    with pytest.raises(InputError, match="no step 's9'; steps are s00, "):
        choose_policy("s9")


def test_a_toggle_may_have_the_name_and_the_value_of_an_earlier_version() -> None:
    today = choose_policy("best", ["sort.scheme=single64", "launch.mode=direct", "schedule.cost_model=seed"])
    assert choose_policy("best", ["sort.sort=single64", "launch.launch=direct", "schedule.policy=seed"]) == today
    assert choose_policy("best", ["schedule.chunk=policy"]).policy == Policy()
    with pytest.raises(InputError, match=r"sort\.scheme must be one of single64, two_stage, got 'none'"):
        choose_policy("best", ["sort.sort=none"])


def test_a_toggle_comes_to_what_a_click_on_it_comes_to_and_their_order_does_not_count() -> None:
    rows = {row.key: row for row in toggle_table("cuda")}
    possible = [(k, v) for k, row in rows.items() for v in row.values if step("s06").unmet(row, v) is None]
    assert len(possible) > 60
    for key, value in possible:
        chosen = choose_policy("s06", [f"{key}={value}"])
        clicked = settle(changed(step("s06"), {key: value}), "cuda", keep=key)
        assert (chosen.policy, chosen.followed) == clicked, key
    words = ["blend.alpha_cap=none", "blend.stop=inclusive", "blend.compaction=off"]
    both = [choose_policy(toggles=given) for given in (words, words[::-1])]
    assert both[0].policy == both[1].policy
    assert "cmask = off" in both[0].followed


def test_what_a_backend_does_not_honour_is_said_and_a_preset_it_cannot_tell_apart() -> None:
    assert choose_policy("best").remarks("cpu") == choose_policy("s06").remarks("cuda") == []
    assert choose_policy("s06").remarks("cpu") == ["To the cpu backend, step s06 is the same as best."]
    chosen = choose_policy(toggles=["blend.map=columns_8x8", "project.filter=mip"])
    assert chosen.remarks("cuda") == []
    (remark,) = chosen.remarks("cpu")
    assert remark.startswith("The cpu backend does not honour blend.map and continues without; it honours bin.bounds, ")
    assert "Also set: cmask = off" in choose_policy(toggles=["blend.compaction=off"]).remarks("cuda")[0]


def test_a_toggle_that_means_nothing_for_the_splats_says_so() -> None:
    chosen = choose_policy(toggles=["blend_backward.row_combine=off", "project.filter=mip", "blend.map=columns_8x8"])
    assert chosen.remarks("cuda", "3dgs") == []
    sentences = [
        f"{key} means nothing for 2dgs splats, only for 3dgs."
        for key in ("project.filter", "blend_backward.row_combine")
    ]
    assert chosen.remarks("cuda", "2dgs") == sentences
    assert chosen.training_remarks("cuda", "mip", "2dgs") == sentences


def test_the_ladder_has_one_row_more_beside_the_preset_it_starts_from_and_says_how_to_get_it_again() -> None:
    toggles = ("project.sh_dtype=split", "blend.compaction=off")
    chosen = choose_policy("s06", toggles)
    rows = ladder_policies(LadderOptions(steps=("s00",), step="s06", toggle=toggles))
    first, preset, added = rows
    assert (first, preset) == ("s00", "s06")
    assert added.startswith("s06, project.sh_dtype = split, blend.compaction = off (also cmask = off, ")
    assert rows[added] == chosen.policy
    assert " ".join(chosen.options) == "--step s06 --toggle project.sh_dtype=split blend.compaction=off"
    assert list(ladder_policies(LadderOptions(steps=("s00",)))) == ["s00"]


# ---- What comes of it ------------------------------------------------------------------------------------------------


def test_render_draws_with_the_toggles_and_a_filter_that_is_asked_for_beats_the_files_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ply(tmp_path / "a.ply", SCENE)
    write_ply(tmp_path / "mip.ply", SCENE, comments=["SplatRenderMode: mip-0.1"])
    write_camera(tmp_path / "camera.json", CAMERA)

    def drawn(file: str, *toggles: str) -> tuple[np.ndarray, Policy]:
        given = ["--toggle", *toggles] if toggles else []
        files = "--camera", tmp_path / "camera.json", "--npy", tmp_path / "a.npy", "--stats", tmp_path / "a.json"
        splatscope("render", tmp_path / file, "--backend", "cpu", *files, *given)
        stored = json.loads((tmp_path / "a.json").read_text())["policy"]
        values = {f"{stage}.{name}": value for stage, fields in stored.items() for name, value in fields.items()}
        return np.load(tmp_path / "a.npy"), changed(Policy(), values)

    pictures = {}
    for words in (["project.filter=mip"], ["blend.stop=inclusive", "blend.alpha_cap=none"], []):
        wanted = changed(Policy(), dict(word.split("=") for word in words))
        image, policy = drawn("a.ply", *words)
        assert policy == wanted
        np.testing.assert_array_equal(image, make_backend("cpu").render(SCENE, CAMERA, RenderSettings(), wanted).image)
        pictures[" ".join(words)] = image
    assert len({image.tobytes() for image in pictures.values()}) == 3
    own, plain = drawn("mip.ply")[0], drawn("mip.ply", "project.filter=plain")[0]
    np.testing.assert_array_equal(own, pictures["project.filter=mip"])
    np.testing.assert_array_equal(plain, pictures[""])
    assert "Drawn with best, filter = mip." in capsys.readouterr().out
    drawn("a.ply", "blend.map=mixed")
    assert "does not honour blend.map and continues without" in capsys.readouterr().err


@pytest.fixture(scope="module")
def small_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toggles") / "set"
    write_blender_set(folder)
    return folder


def test_a_run_is_scored_as_drawn_with_the_toggles_but_trained_one_way_and_both_are_said(
    small_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uses the CPU, where all toggles but the recording change the picture."""
    trained = {}
    for name, given in {"plain": [], "mip": ["--toggle", "project.filter=mip", "blend.exp=expf"]}.items():
        options = ("--iterations", 8, "--init", "random", "--set", "initial.random_count=100", "--backend", "cpu")
        splatscope("train", small_set, "--headless", "--out", tmp_path / name, *options, *given)
        trained[name] = read_ply(tmp_path / name / "point_cloud" / "iteration_8" / "point_cloud.ply")
    told = capsys.readouterr()
    assert "Training keeps project.filter = plain: splats are trained for one way of drawing them" in told.err
    assert "can have another (--antialiasing mip trains for that filter)." in told.err
    assert "The cpu backend does not honour blend.exp" in told.err
    assert "Toggles: best\n" in told.out
    np.testing.assert_array_equal(trained["mip"].means, trained["plain"].means)
    scores = {}
    for name, given in {"plain": [], "mip": ["--toggle", "project.filter=mip"]}.items():
        splatscope("eval", tmp_path / "plain", "--out", tmp_path / f"eval {name}", "--backend", "cpu", *given)
        folder = tmp_path / f"eval {name}"
        scores[name] = json.loads((folder / "results.json").read_text())["ours_8"]["PSNR"]
        protocol = json.loads((folder / "test" / "ours_8" / "protocol.json").read_text())
        assert protocol["toggles"] == {"plain": "best", "mip": "best, filter = mip"}[name]
    assert scores["plain"] != scores["mip"]
    write_ply(tmp_path / "own.ply", trained["plain"], comments=["SplatRenderMode: mip-0.1"])
    splatscope("eval", tmp_path / "own.ply", "-s", small_set, "--out", tmp_path / "own", "--backend", "cpu")
    assert json.loads((tmp_path / "own" / "results.json").read_text())["own"]["PSNR"] == scores["mip"]


def test_the_panel_greys_a_toggle_that_means_nothing_for_the_splats(display: str, tmp_path: Path) -> None:
    write_ply(tmp_path / "a.ply", replace(SCENE, primitive="2dgs"))
    words = ["view", str(tmp_path / "a.ply"), "--backend", "cpu", "--size", "1000x700", "--ui-scale", "1"]
    program = Program(display, SCRIPT, [str(tmp_path), *words])
    try:
        facts = program.wait_for("the panel", lambda facts: facts["shown"] and facts["places"]["project.filter"])
        hands = Hands(program)
        for key, row in (("project.filter", 3), ("blend.stop", 2)):
            left, top, _, height = facts["places"][key]
            hands.click(left + 20, top + height // 2)
            hands.click(left + 20, top + height + 8 + round((row - 0.5) * 23))
        wanted = choose_policy("best", ["blend.stop=inclusive"]).policy
        program.wait_for("the other one", lambda facts: facts["policy"] == repr(wanted))
    finally:
        program.end()


def test_the_window_opens_with_the_toggles_in_its_panel_and_a_preset_there_sets_all_but_the_filter(
    display: str, tmp_path: Path
) -> None:
    write_ply(tmp_path / "a.ply", SCENE)
    toggles = ["bin.bounds=aabb_o", "project.filter=mip", "blend.stop=inclusive", "blend.exp=expf"]
    words = ["view", str(tmp_path / "a.ply"), "--backend", "cpu", "--size", "1000x700", "--ui-scale", "1"]
    program = Program(display, SCRIPT, [str(tmp_path), *words, "--toggle", *toggles])
    try:
        wanted = choose_policy("best", toggles).policy
        facts = program.wait_for("its picture", lambda facts: facts["policy"] == repr(wanted), seconds=90)
        facts = program.wait_for("the panel", lambda facts: facts["shown"] and facts["places"]["preset"])
        shown = {"bin.bounds": "aabb_o", "project.filter": "mip", "blend.stop": "inclusive", "preset": "custom"}
        assert shown.items() <= facts["shown"].items()
        assert len(facts["warnings"]) == 1
        assert "does not honour blend.exp" in facts["warnings"][0]
        left, top, _, height = facts["places"]["preset"]
        hands = Hands(program)
        hands.click(left + 20, top + height // 2)
        hands.click(left + 20, top + height + 20)  # the first of the list
        wanted = step("s00").with_value("project", "filter", "mip")
        program.wait_for("the preset", lambda facts: facts["policy"] == repr(wanted))
        program.wait_for("it in the panel", lambda facts: facts["shown"]["preset"] == "s00")
    finally:
        program.end()
