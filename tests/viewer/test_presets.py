"""Tests policies as a person chooses them: presets by backend, their names, and what follows from one click."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from splatscope.kernels.ladder import STEPS, step
from splatscope.kernels.policy import Policy, toggle_table
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.messages import commands
from splatscope.viewer.state.measurements import PREVIOUS
from splatscope.viewer.state.presets import describe, preset_of, presets, settle
from splatscope.viewer.state.session import Session
from tests.support.fake_engine import SCENE, FakeEngine
from tests.support.random_policies import random_policy

ROWS = {row.key: row for row in toggle_table("cuda")}


def test_every_step_has_its_name_and_the_cpu_offers_only_those_it_can_tell_apart() -> None:
    assert list(presets("cuda")) == [name for name in STEPS if preset_of(step(name), "cuda") == name]
    assert {"s00", "s02", "s06", "best"} <= set(presets("cuda"))
    offered = presets("cpu")
    assert {"s00", "best"} <= set(offered)
    assert len(offered) < len(presets("cuda"))
    assert all(preset_of(s.policy, "cpu") in offered for s in STEPS.values())


def test_a_policy_is_told_by_the_preset_it_is_near_to() -> None:
    best = step("best")
    assert describe(best, "cuda") == "best"
    assert preset_of(best.with_value("launch", "mode", "direct"), "cuda") is None
    assert describe(best.with_value("launch", "mode", "direct"), "cuda") == "best, mode = direct"
    far = best
    for row in list(ROWS.values())[:6]:
        far = far.with_value(row.stage, row.name, row.values[-1] if row.values[-1] != row.default else row.values[0])
    assert describe(far, "cuda").startswith("best with ")


def test_switching_off_what_others_need_switches_them_off_too_and_says_so() -> None:
    policy, followed = settle(step("s06").with_value("blend", "compaction", "off"), "cuda", keep="blend.compaction")
    assert policy.blend.compaction == "off"
    assert {"cmask = off", "touched = off", "bwd sync = block"} <= set(followed)
    assert not policy.problems("cuda")


def test_any_click_from_any_valid_setting_ends_in_a_valid_setting_that_honours_it() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        policy = random_policy(rng)
        assert not policy.problems("cuda")
        row = list(ROWS.values())[rng.integers(len(ROWS))]
        choices = [value for value in row.values if policy.unmet(row, value) is None]
        value = choices[rng.integers(len(choices))]
        settled, _ = settle(policy.with_value(row.stage, row.name, value), "cuda", keep=row.key)
        assert not settled.problems("cuda")
        assert settled.value(row.stage, row.name) == value


@pytest.fixture
def session() -> Session:
    engine = FakeEngine(backend="cuda")
    engine.close()
    session = Session(engine, WindowConfig())
    session.view.size = (320, 240)
    session.poll()
    return session


def test_the_setting_before_a_change_can_be_measured_against(session: Session) -> None:
    session.toggles.set(ROWS["blend.subtile"], "aabb")
    session.toggles.set(ROWS["blend.exp"], "expf")
    assert "log2 opacity = off" in session.toggles.note
    session.measurements.compare(PREVIOUS)
    session.measurements.compare("s00")
    assert isinstance(session.engine.client, FakeEngine)
    first, second = session.engine.client.commands
    assert isinstance(first, commands.Compare)
    assert isinstance(second, commands.Compare)
    assert first.before == Policy().with_value("blend", "subtile", "aabb")
    assert first.names[0] == "best, subtile = aabb"
    assert first.request.policy == second.request.policy == session.toggles.policy
    assert second.before == step("s00")


def test_a_preset_leaves_the_filter_to_the_scene_and_to_who_asks_for_another(session: Session) -> None:
    engine = session.engine.client
    assert isinstance(engine, FakeEngine)
    for filter in ("mip", "compensated"):
        engine._status = replace(session.engine.status, scene=replace(SCENE, filter=filter))
        session.poll()
        for name in presets("cuda"):
            session.toggles.set_preset(name)
            assert session.toggles.policy == step(name).with_value("project", "filter", filter)
            assert preset_of(session.toggles.policy, "cuda") == name
            session.measurements.compare("s00")
            measured = engine.commands[-1]
            assert isinstance(measured, commands.Compare)
            assert measured.before == step("s00").with_value("project", "filter", filter), "kernels, not filters"
    session.toggles.set(ROWS["project.filter"], "plain")
    session.toggles.set_preset("s00")
    assert session.toggles.policy == step("s00")


def test_what_was_set_before_comes_back_under_the_filter_of_the_scene_that_is_open_now(session: Session) -> None:
    engine = session.engine.client
    assert isinstance(engine, FakeEngine)
    session.toggles.set_preset("s00")
    mip = Policy().with_value("project", "filter", "mip")
    refused = step("s00").with_value("project", "filter", "mip")
    engine._status = replace(session.engine.status, scene=replace(SCENE, filter="mip"))
    session.poll()
    assert (session.toggles.policy, session.toggles.previous) == (refused, mip)
    engine._status = replace(session.engine.status, refused=refused, policy=Policy())  # still that of the scene before
    session.poll()
    assert session.toggles.policy == mip
    engine._status = replace(session.engine.status, refused=mip)
    session.poll()
    assert session.toggles.policy == Policy(), "the filter itself is what cannot be had"


def test_a_refused_setting_goes_back_to_what_is_shown(session: Session) -> None:
    session.toggles.set_policy(step("s00"))
    assert isinstance(session.engine.client, FakeEngine)
    session.engine.client._status = replace(session.engine.status, refused=step("s00"), policy=Policy())
    session.poll()
    assert session.toggles.policy == Policy()
