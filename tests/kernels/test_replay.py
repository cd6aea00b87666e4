"""Tests that plans are kept, dropped and replayed as graphs, as a renderer and a training step rely on."""

from __future__ import annotations

from collections.abc import Callable

from splatscope.kernels.cuda.launch.buffers import Capacity
from splatscope.kernels.cuda.plan.operations import Call
from splatscope.kernels.cuda.replay import PlanCache, Replay
from tests.support.cuda_pipeline import EmulatedLauncher


def test_operations_are_launched_once_then_captured_once_and_replayed() -> None:
    launcher, calls = EmulatedLauncher(), []
    replay = Replay([Call("a stage", lambda: calls.append("a")), Call("a stage", lambda: calls.append("b"))])
    results = [replay.run(launcher, direct=False) for _ in range(3)]
    assert [result is not None for result in results] == [False, True, True]
    assert (launcher.captured, launcher.replayed) == (1, 2)
    assert calls == ["a", "b"] * 3


def test_with_direct_nothing_is_captured_and_timed_runs_have_a_graph_of_their_own() -> None:
    launcher = EmulatedLauncher()
    replay = Replay([])
    assert [replay.run(launcher, direct=True) for _ in range(3)] == [None] * 3
    assert launcher.captured == 0
    for timed in (False, True, False, True):
        assert replay.run(launcher, direct=False, timed=timed) is not None
    assert (launcher.captured, launcher.replayed, sorted(replay.graphs)) == (2, 4, [False, True])


def test_the_plans_used_last_are_kept_and_the_gpu_is_waited_for_before_one_is_dropped() -> None:
    waits: list[int] = []
    plans: PlanCache[str] = PlanCache(2, lambda: waits.append(len(plans)))
    for key in ("a", "b", "a", "c"):
        assert plans.find(key, made(key)) == key
    assert list(plans.values()) == ["a", "c"]
    assert (plans.newest, len(plans), waits) == ("c", 2, [3])


def test_more_room_drops_all_plans_and_less_changes_nothing() -> None:
    plans: PlanCache[str] = PlanCache(8)
    plans.make_room(Capacity(10, 100))
    plans.find("a", made("a"))
    plans.make_room(Capacity(5, 100))
    assert (len(plans), plans.newest, plans.capacity) == (1, "a", Capacity(10, 100))
    plans.make_room(Capacity(5, 200))
    assert (len(plans), plans.newest, plans.capacity) == (0, None, Capacity(10, 200))


def test_a_plan_stays_when_making_it_drops_the_others() -> None:
    plans: PlanCache[str] = PlanCache(8)
    plans.find("a", made("a"))

    def grows() -> str:
        plans.forget()  # as buffers do that grow
        return "b"

    assert plans.find("b", grows) == "b"
    assert list(plans.values()) == ["b"]


def made(value: str) -> Callable[[], str]:
    return lambda: value
