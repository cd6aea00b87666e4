"""Tests whole training steps of other rasterisers: the gradients that Adam gets, memory and time, measured alike for
all."""

from __future__ import annotations

import sys
from collections import namedtuple
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from splatscope.app.bench.peers import steps as train_step_peers
from splatscope.app.bench.peers.rasterisers import PARAMETERS
from splatscope.app.bench.peers.step_losses import DSSIM_WEIGHT, FusedSsimLoss, GradientLoss
from splatscope.app.bench.peers.steps import (
    STEP_PEERS,
    STILL_RATE,
    PeerSteps,
    compare_steps,
    find_contenders,
    find_step_peers,
    print_rows,
)
from splatscope.app.bench.step import turned
from splatscope.kernels.errors import InputError
from tests.bench.test_bench_peers import (
    CAMERA,
    FAKES,
    FASTER_GS,
    SCENE,
    draw_faster_gs,
    given,
    picture,
    wanted_gradients,
)

PIXELS = np.random.default_rng(4).integers(0, 256, (24, 40, 3), np.uint8)
UPSTREAM = torch.from_numpy(np.random.default_rng(5).standard_normal((24, 40, 3)))


def loss_of(image: Any, pixels: Any) -> tuple[Any, Any]:
    """Returns a loss whose gradient is known; rasterisers that draw planes must give rows."""
    assert image.is_contiguous()
    assert pixels.dtype == torch.uint8
    return (image * UPSTREAM).sum(), UPSTREAM


LOSS = GradientLoss(loss_of)


def fake_fused_ssim() -> ModuleType:
    """Returns a module with the entry of fused_ssim: its likeness is a smooth function of the differences."""
    module: Any = ModuleType("fused_ssim")
    module.__version__ = "7"

    def fused_ssim(picture: Any, photograph: Any, padding: str = "same", train: bool = True) -> Any:
        assert picture.shape == photograph.shape == (1, 3, 24, 40)
        assert picture.is_contiguous()
        assert photograph.is_contiguous()
        assert photograph.dtype == torch.float32
        assert (padding, train) == ("same", True)
        return likeness(picture - photograph)

    module.fused_ssim = fused_ssim
    return module


def likeness(difference: Any) -> Any:
    planes = torch.arange(1, 4).reshape(3, 1, 1)  # tells planes apart
    return (planes / (1 + difference**2)).mean()


def fake_fused() -> ModuleType:
    """Imitates Faster-GS fused: its backward pass makes the step, of rate 1 along the gradient, and counts."""
    module: Any = ModuleType("FasterGSFusedCudaBackend")
    module.__version__ = "0"
    settings = f"{FASTER_GS} far_plane current_mean_lr adam_step_count"
    module.RasterizerSettings = namedtuple("RasterizerSettings", settings)
    module.calls = []

    class Step(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hook: Any, settings: Any, *stored: Any) -> Any:  # pyright: ignore
            with torch.enable_grad():
                leaves = [p.detach().requires_grad_() for p in stored]
                ctx.image, ctx.leaves, ctx.stored = draw_faster_gs(*leaves), leaves, stored
            return ctx.image.detach(), hook

        @staticmethod
        def backward(ctx: Any, upstream: Any, _: Any) -> Any:  # pyright: ignore
            for parameter, gradient in zip(
                ctx.stored, torch.autograd.grad(ctx.image, ctx.leaves, upstream), strict=True
            ):
                parameter -= gradient
            return (None,) * (2 + len(ctx.stored))

    def diff_rasterize(hook: Any, *rest: Any, **moments: Any) -> Any:
        *stored, statistics, settings = rest
        assert statistics.shape == (2, 6)
        assert [m.shape for m in moments.values()] == [(*p.shape, 2) for p in stored]
        assert list(moments)[-1] == "moments_sh_coefficients_rest"
        module.calls.append(settings)
        return Step.apply(hook, settings, *stored)

    module.diff_rasterize = diff_rasterize
    return module


def in_our_order(tensors: Any) -> dict[str, Any]:
    means, log_scales, quats, logits, *sh = tensors
    values = (means, log_scales, quats, logits.reshape(-1), torch.cat(sh, 1))
    return dict(zip(PARAMETERS, values, strict=True))


def picture_of_scene() -> Any:
    g = given()
    unit = torch.nn.functional.normalize(g.quats, dim=-1)
    return picture(g.means, unit, g.log_scales.exp(), torch.sigmoid(g.logit_opacities), g.sh)


class Notes(torch.optim.SGD):
    """Keeps the gradients that it is given."""

    def step(self) -> None:  # pyright: ignore
        self.seen = [group["params"][0].grad.clone() for group in self.param_groups]


@pytest.mark.parametrize("name", FAKES)
def test_adam_gets_the_gradient_of_the_raw_parameters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for peer in STEP_PEERS[name].make(FAKES[name]()):
        made: list[Notes] = []
        monkeypatch.setattr(
            peer._peer,
            "optimizer",
            lambda stored, made=made: made.append(Notes([{"params": [leaf]} for leaf in stored], lr=0.0)) or made[0],
        )
        peer.prepare(given(), [CAMERA, turned(CAMERA, 0.5)])
        peer.step(1, torch.from_numpy(PIXELS), LOSS)
        wanted = wanted_gradients(UPSTREAM)
        for key, gradient in in_our_order(made[0].seen).items():
            torch.testing.assert_close(gradient, wanted[key], msg=f"{peer.name} {key}")
        assert all(group["params"][0].grad is None for group in made[0].param_groups)
        assert peer.moved_from(given()) == 0
        peer.release()


@pytest.mark.parametrize("name", [*FAKES, "faster_gs_fused"])
def test_with_fused_ssim_the_gradient_is_that_of_both_terms_whatever_the_pictures_layout(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = FusedSsimLoss(fake_fused_ssim().fused_ssim)
    target = loss.target(torch.from_numpy(PIXELS))
    for peer in STEP_PEERS[name].make((FAKES | {"faster_gs_fused": fake_fused})[name]()):
        notes: list[Notes] = []
        if name in FAKES:
            monkeypatch.setattr(
                peer._peer,
                "optimizer",
                lambda stored, notes=notes: notes.append(Notes([{"params": [p]} for p in stored], lr=0.0)) or notes[0],
            )
        peer.prepare(given(), [CAMERA])
        value = peer.step(0, target, loss)
        image = picture_of_scene().requires_grad_()
        difference = image.permute(2, 0, 1) - torch.from_numpy(PIXELS).permute(2, 0, 1) / 255
        wanted = (1 - DSSIM_WEIGHT) * difference.abs().mean() + DSSIM_WEIGHT * (1 - likeness(difference))
        assert float(value) == pytest.approx(float(wanted.detach()), rel=1e-6)
        assert not value.requires_grad
        (upstream,) = torch.autograd.grad(wanted, image)
        begun = {key: getattr(given(), key) for key in PARAMETERS}
        stepped = in_our_order(notes[0].seen if notes else peer._stored)
        for key, gradient in wanted_gradients(upstream).items():
            found = stepped[key] if notes else begun[key] - stepped[key]
            torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-9, msg=f"{peer.name} {key}")
        peer.release()


@pytest.mark.parametrize("name", FAKES)
def test_a_step_with_the_peers_own_adam_moves_nothing(name: str) -> None:
    for peer in STEP_PEERS[name].make(FAKES[name]()):
        peer.prepare(given(), [CAMERA])
        losses = [float(peer.step(0, torch.from_numpy(PIXELS), LOSS)) for _ in range(2)]
        assert losses[0] == losses[1]
        assert peer.moved_from(given()) == 0
        peer.release()


def test_each_step_sees_its_own_camera() -> None:
    module: Any = FAKES["faster_gs"]()
    (peer,) = STEP_PEERS["faster_gs"].make(module)
    cameras = [CAMERA, turned(CAMERA, 0.5)]
    peer.prepare(given(), cameras)
    for view in (1, 0, 1):
        peer.step(view, torch.from_numpy(PIXELS), LOSS)
        np.testing.assert_allclose(module.settings.w2c, cameras[view].matrix)
    assert module.statistics.shape == (2, 6)


def test_the_fused_steps_pass_moments_and_count_and_their_movement_is_seen() -> None:
    module: Any = fake_fused()
    (peer,) = STEP_PEERS["faster_gs_fused"].make(module)
    peer.prepare(given(), [CAMERA])
    peer.step(0, torch.from_numpy(PIXELS), LOSS)
    wanted = wanted_gradients(UPSTREAM)
    for key, now in in_our_order(peer._stored).items():
        torch.testing.assert_close(getattr(given(), key) - now, wanted[key], msg=key)
    assert peer.moved_from(given()) == pytest.approx(max(float(g.abs().max()) for g in wanted.values()))
    peer.step(0, torch.from_numpy(PIXELS), LOSS)
    assert [settings.adam_step_count for settings in module.calls] == [1, 2]
    assert module.calls[0].current_mean_lr == STILL_RATE
    peer.prepare(given(), [CAMERA])
    assert peer.moved_from(given()) == 0
    peer.step(0, torch.from_numpy(PIXELS), LOSS)
    assert module.calls[-1].adam_step_count == 1


def test_every_step_peer_is_named_and_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(STEP_PEERS) == {"gsplat", "inria", "faster_gs", "faster_gs_fused"}
    monkeypatch.setitem(sys.modules, "FasterGSFusedCudaBackend", fake_fused())
    monkeypatch.setitem(sys.modules, "gsplat", None)
    peers, absent = find_step_peers(("gsplat", "faster_gs_fused"))
    assert [peer.name for peer in peers] == ["faster_gs_fused"]
    assert absent[0].startswith("gsplat is not installed")
    with pytest.raises(InputError, match="all, gsplat, inria, faster_gs, faster_gs_fused; got 'other'"):
        find_step_peers(("other",))


def test_each_rasteriser_is_timed_with_each_loss_on_parameters_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gsplat", FAKES["gsplat"]())
    monkeypatch.setitem(sys.modules, "fused_ssim", fake_fused_ssim())
    contenders, absent = find_contenders(("gsplat",), ("ours", "fused_ssim", "ours"))
    assert absent == []
    assert len({id(peer) for peer, _ in contenders}) == 4
    jobs = [
        PeerSteps(peer, SCENE, [CAMERA], PIXELS, lambda: LOSS, loss.label, loss.version) for peer, loss in contenders
    ]
    assert {job.name: job.version for job in jobs} == {
        "gsplat, unpacked": "9.9",
        "gsplat, unpacked, fused-ssim": "9.9, 7",
        "gsplat, packed": "9.9",
        "gsplat, packed, fused-ssim": "9.9, 7",
    }
    assert isinstance(contenders[1][1].make(CAMERA, None), FusedSsimLoss)
    alone, _ = find_contenders(("gsplat",), ("ours",))
    assert [loss.label for _, loss in alone] == ["", ""]
    assert find_contenders((), ("ours",)) == ([], [])


def test_a_loss_that_is_missing_or_has_nobody_to_be_timed_with_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gsplat", FAKES["gsplat"]())
    monkeypatch.setitem(sys.modules, "fused_ssim", None)
    contenders, absent = find_contenders(("gsplat",), ("ours", "fused_ssim"))
    assert [loss.label for _, loss in contenders] == ["", ""]
    (sentence,) = absent
    assert sentence.startswith("fused_ssim is not installed")
    assert sentence.endswith("https://github.com/rahul-goel/fused-ssim.")
    with pytest.raises(InputError, match="fused_ssim is not installed"):
        find_contenders(("gsplat",), ("fused_ssim",))
    with pytest.raises(InputError, match="--losses must be of all, ours, fused_ssim; got 'l2'"):
        find_contenders(("gsplat",), ("l2",))
    with pytest.raises(InputError, match="--losses needs a name"):
        find_contenders(("gsplat",), ())
    with pytest.raises(InputError, match="so it needs --vs"):
        find_contenders((), ("ours", "fused_ssim"))


def test_jobs_are_weighed_alone_and_then_take_turns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    class Told:
        version = "1"

        def __init__(self, name: str, moved: float) -> None:
            self.name, self._moved = name, moved

        def start(self) -> None:
            told.append(f"{self.name} starts")

        def run(self, number: int) -> None:
            told.append(f"{self.name} {number}")

        def finish(self) -> float:
            return 0.25

        def moved(self) -> float:
            return self._moved

        def stop(self) -> None:
            told.append(f"{self.name} stops")

    def weigh(job: Any, steps: int) -> dict[str, float]:
        told.append(f"{job.name} weighed over {steps}")
        return {"peak_gib": 1.0, "driver_gib": 2.0}

    def timed(job: Any, steps: int) -> tuple[float, float]:
        told.append(f"{job.name} timed over {steps}")
        return {"ours": (1.0, 2.0), "theirs": (3.0, 6.0)}[job.name]

    monkeypatch.setattr(train_step_peers, "_memory", weigh)
    monkeypatch.setattr(train_step_peers, "_timed", timed)
    rows = compare_steps([Told("ours", 0.0), Told("theirs", 0.5)], steps=7, repeats=2, warm_up=3)
    assert told[:4] == [f"{name} weighed over {steps}" for name in ("ours", "theirs") for steps in (1, 3)]
    turns = ["ours timed over 7", "theirs timed over 7"]
    begun = [f"{name} {what}" for name in ("ours", "theirs") for what in ("starts", 0, 1, 2)]
    assert told[4:] == [*begun, *turns, *turns, "ours stops", "theirs stops"]
    assert rows["theirs"] == {
        "version": "1",
        "peak_gib": 1.0,
        "driver_gib": 2.0,
        "loss": 0.25,
        "gpu_ms": 3.0,
        "wall_ms": 6.0,
        "gpu_spread": [3.0, 3.0],
        "moved": 0.5,
    }
    print_rows(rows)
    printed = capsys.readouterr().out.splitlines()
    assert "3.00" in printed[2]
    assert printed[3].endswith("moved by up to 0.5: its steps did not all do the same work")
    assert len(printed) == 4


def test_a_peers_job_goes_round_the_cameras_and_makes_its_loss_anew() -> None:
    module: Any = FAKES["faster_gs"]()
    (peer,) = STEP_PEERS["faster_gs"].make(module)
    made: list[int] = []

    def make_loss() -> Any:
        made.append(1)
        return GradientLoss(lambda image, pixels: (image.sum(), torch.ones_like(image)))

    cameras = [CAMERA, turned(CAMERA, 0.5)]
    job = PeerSteps(peer, SCENE, cameras, PIXELS, make_loss)
    for _ in range(2):
        job.start()
        for number in range(3):
            job.run(number)
            np.testing.assert_allclose(module.settings.w2c, cameras[number % 2].matrix, rtol=1e-6)
        assert np.isfinite(job.finish())
        assert job.moved() == 0
        job.stop()
    assert len(made) == 2
