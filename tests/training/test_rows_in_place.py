"""Tests rows of splats that change in place: the same splats as by copies, at the same addresses, or no change."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.cuda.launch.buffers import TorchMemory
from splatscope.kernels.cuda.step.splats import KINDS, SplatBuffers
from splatscope.kernels.errors import NoRoomError
from splatscope.training.config import McmcConfig, RateConfig
from splatscope.training.splats import rows as ops
from splatscope.training.splats.rows import SplatState, SplatTensors
from splatscope.training.strategies.mcmc import Mcmc
from tests.support.small_scenes import random_camera, random_scene
from tests.training.test_training_strategies import state_of


class Live:
    """Runs `ops.InPlace` on buffers, without a training step."""

    def __init__(self, state: SplatState, rows: int, sh_dtype: str = "f32") -> None:
        self.moves = 0
        gaussians = ops.as_gaussians(state.raw, "3dgs")
        self.buffers = SplatBuffers(TorchMemory("cpu"), gaussians, rows, self._count_move, sh_dtype)
        groups = {kind: named(getattr(state, kind)) for kind in KINDS}
        self.buffers.assign(groups)

    def _count_move(self) -> None:
        self.moves += 1

    def state(self) -> SplatState:
        return SplatState(*(SplatTensors(**self.buffers.view(kind)) for kind in KINDS), live=self)

    def replace_rows(self, kept: Tensor, born: SplatTensors) -> SplatState:
        self.buffers.replace_rows(kept, named(born))
        return self.state()

    def written_rows(self, rows: Tensor, raw: SplatTensors, with_momentum: bool) -> SplatState:
        self.buffers.write_rows(rows, named(raw), with_momentum)
        return self.state()

    def with_room(self, count: int) -> SplatState:
        self.buffers.make_room(count)
        return self.state()

    def raise_sh_degree(self, degree: int) -> SplatState:
        self.buffers.raise_sh_rows((degree + 1) ** 2)
        return self.state()

    def reordered(self, order: Tensor) -> SplatState:
        self.buffers.reorder(order)
        return self.state()


def named(tensors: SplatTensors) -> dict[str, Tensor]:
    return {f.name: getattr(tensors, f.name) for f in fields(tensors)}


def numbers(state: SplatState) -> np.ndarray:
    """Returns [N, …] all numbers of each splat, moments too."""
    parts = [t.reshape(state.count, -1) for kind in KINDS for t in named(getattr(state, kind)).values()]
    return torch.cat(parts, 1).numpy().copy()


def in_bf16(state: SplatState) -> SplatState:
    """Returns the splats whose harmonics bf16 keeps to the bit."""
    return replace(state, raw=replace(state.raw, sh=state.raw.sh.bfloat16().float()))


def order_of(means: Tensor) -> Tensor:
    return torch.sort(ops.morton_codes(means), stable=True).indices


def sorted_rows(state: SplatState) -> np.ndarray:
    rows = numbers(state)
    return rows[np.lexsort(rows.T)]


@pytest.mark.parametrize("seed", range(12))
def test_rows_come_and_go_as_by_copies_and_no_address_changes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sh_dtype = ("f32", "split", "bf16")[seed % 3]
    rounded = in_bf16 if sh_dtype == "bf16" else lambda state: state
    state = rounded(state_of(300, None))
    live = Live(state, 5000, sh_dtype)
    place = live.buffers.array("raw", "sh").data_ptr()
    alive = live.state()
    for _ in range(6):
        share = rng.choice([0.0, 0.1, 0.6, 0.98])
        kept = torch.from_numpy(rng.random(state.count) >= share)
        fresh = state_of(int(rng.choice([0, 1, 40, 300])), None).map(lambda t: t + float(rng.normal()))
        born = rounded(fresh).raw
        if not kept.any() and born.count == 0:
            continue
        stayed = numbers(alive)
        order = np.lexsort(numbers(alive).T), np.lexsort(numbers(state).T)
        kept_alive = torch.empty_like(kept)  # the same splats, which lie elsewhere
        kept_alive[order[0]] = kept[order[1]]
        state, alive = ops.replace_rows(state, kept, born), ops.replace_rows(alive, kept_alive, born)
        np.testing.assert_array_equal(sorted_rows(alive), sorted_rows(state))
        both = min(len(stayed), alive.count)
        unmoved = (numbers(alive)[:both] == stayed[:both]).all(axis=1)
        assert unmoved[kept_alive[:both].numpy()].all()
    assert live.buffers.array("raw", "sh").data_ptr() == place
    assert live.moves == 0


def test_harmonics_of_new_rows_above_the_degree_in_use_are_zero() -> None:
    live = Live(state_of(50, None), 5000)
    for kind in KINDS:
        live.buffers.array(kind, "sh")[:] = 7.0
        live.buffers.array(kind, "sh")[:50, 4:] = 0.0
    alive = ops.replace_rows(live.state(), torch.arange(50) >= 20, state_of(60, None).raw)
    alive = ops.raise_sh_degree(alive, 3)
    assert alive.raw.sh.shape == (90, 16, 3)
    for kind in KINDS:
        assert not getattr(alive, kind).sh[:, 4:].any()


@pytest.mark.parametrize("sh_dtype", ["f32", "split"])
def test_more_splats_than_rows_move_once_with_all_they_have(sh_dtype: str) -> None:
    state = state_of(3000, None)
    live = Live(state, 100, sh_dtype)
    born = state_of(2000, None).raw
    kept = torch.ones(3000, dtype=torch.bool)
    alive = ops.replace_rows(live.state(), kept, born)
    assert (live.moves, live.buffers.count) == (1, 5000)
    np.testing.assert_array_equal(numbers(alive), numbers(ops.replace_rows(state, kept, born)))


def test_growth_without_room_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of(3000, None)
    live = Live(state, 100)
    memory, empty = live.buffers._memory, live.buffers._memory.empty

    def short(name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
        if name == "second sh":
            raise NoRoomError("The GPU has no room for second sh.")
        return empty(name, shape, dtype)

    monkeypatch.setattr(memory, "empty", short)
    before = numbers(live.state())
    with pytest.raises(NoRoomError):
        ops.replace_rows(live.state(), torch.arange(3000) > 5, state_of(2000, None).raw)
    assert (live.moves, live.buffers.count) == (0, 3000)
    np.testing.assert_array_equal(numbers(live.state()), before)
    strategy = Mcmc(McmcConfig(growth=0.9), RateConfig(), 1.0)
    with pytest.raises(NoRoomError):  # relocation has nothing to do, and growth looks for room first
        strategy.after_step(live.state(), 600, torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(numbers(live.state()), before)
    strategy.stop_growing(3000)
    after, report = strategy.after_step(live.state(), 700, torch.Generator().manual_seed(0))
    assert report is not None
    assert after.count == 3000


@pytest.mark.parametrize("sh_dtype", ["f32", "split"])
def test_relocation_and_growth_in_place_are_those_by_copies(sh_dtype: str) -> None:
    state = state_of(400, None)
    state.raw.logit_opacities[50:90] = -7.0
    live, strategy = Live(state, 5000, sh_dtype), Mcmc(McmcConfig(), RateConfig(), 1.0)
    found = [strategy.after_step(s, 600, torch.Generator().manual_seed(3)) for s in (state, live.state())]
    assert found[0][1] == found[1][1]
    assert found[0][1] is not None
    assert (found[0][1].moved, found[0][1].count) == (40, 420)
    np.testing.assert_array_equal(numbers(found[1][0]), numbers(found[0][0]))
    assert live.moves == 0


@pytest.mark.parametrize(("in_place", "sh_dtype"), [(False, "f32"), (True, "f32"), (True, "split"), (True, "bf16")])
def test_a_new_order_moves_all_that_belongs_to_a_splat(in_place: bool, sh_dtype: str) -> None:
    state = in_bf16(state_of(500, None)) if sh_dtype == "bf16" else state_of(500, None)
    live = Live(state, 5000, sh_dtype)
    live.buffers.pull[:] = state.raw.means[:, 0]
    live.buffers.seen[:] = torch.arange(500)
    order = order_of(state.raw.means)
    after = ops.in_order(live.state() if in_place else state, 0.1)
    np.testing.assert_array_equal(numbers(after), numbers(state)[order.numpy()])
    if in_place:
        assert torch.equal(live.buffers.pull, after.raw.means[:, 0])
        assert torch.equal(live.buffers.seen.long(), order)


def test_neighbours_along_the_curve_are_neighbours_in_space() -> None:
    means = torch.rand(4096, 3, generator=torch.Generator().manual_seed(1)) * torch.tensor([3.0, 1.0, 2.0])
    means[7] = torch.tensor([float("nan"), 0.0, 1.0])
    order = order_of(means)
    assert torch.equal(order.sort().values, torch.arange(4096))
    steps = (means[order].diff(dim=0)).norm(dim=1).nan_to_num(0)
    assert float(steps.mean()) < 0.2 * float(means.diff(dim=0).norm(dim=1).nan_to_num(0).mean())
    corner = torch.tensor([[1.0, 1, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert order_of(corner).tolist() == [1, 2, 3, 4, 0]
    assert order_of(torch.zeros(3, 3)).tolist() == [0, 1, 2]


def test_splats_are_reordered_once_enough_of_them_are_out_of_order() -> None:
    state = ops.in_order(state_of(4000, None), 0.1)
    assert ops.in_order(state, 0.1) is state
    random = torch.Generator().manual_seed(2)
    for moved, is_reordered in ((100, False), (2000, True)):  # appended in any order, as new ones are
        rows = torch.randperm(4000, generator=random)
        late, early = rows[:moved], rows[moved:].sort().values
        other = ops.reordered(state, torch.cat((early, late)))
        assert (ops.in_order(other, 0.1) is not other) == is_reordered
        assert ops.in_order(other, 1.0) is other
        assert torch.equal(ops.in_order(other, 0.0).raw.means, state.raw.means)


def test_the_order_of_splats_does_not_change_the_picture() -> None:
    camera = random_camera(64, 48)
    scene = random_scene(camera, 300, seed=5)
    backend, state = CpuBackend(), ops.from_gaussians(scene)
    order = order_of(state.raw.means)
    assert not torch.equal(order, torch.arange(300))
    other = ops.as_gaussians(ops.reordered(replace(state), order).raw, "3dgs")
    np.testing.assert_array_equal(backend.render(other, camera).image, backend.render(scene, camera).image)
