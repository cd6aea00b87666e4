"""Runs whole training steps of other rasterisers: `bench step --vs gsplat faster_gs`.

All draw the same splats from the same cameras against the same bytes, from raw parameters to parameters that Adam has
changed, and take turns repeat by repeat.

- The loss is ours for all (L1 and D-SSIM kernels, their gradient handed to autograd as it is) and, where asked for,
  `fused_ssim` too (`step_losses.py`), one row each. For our loss, pictures that lie in memory as planes are copied to
  rows, and their gradients back.
- Harmonics are one tensor where the rasteriser takes one. Adam is the rasteriser's own where it has one, else torch's
  fused form. Each is at least as fast as what the peer's own trainer does.
- Rates are zero, or too small to move a float, so that all steps do the same work; `moved` checks that.
- Statistics for density control are gathered where kernels of the rasteriser do that.
- Memory is that of one job alone while it steps, minus the memory used before the job was made.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch

from splatscope.app.bench.peers.rasterisers import (
    PARAMETERS,
    PEERS,
    Autograd,
    PeerInput,
    PeerKind,
    faster_gs_parameters,
    faster_gs_settings,
    find_peers,
    module_version,
)
from splatscope.app.bench.peers.step_losses import LossChoice, StepLoss, find_losses
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Gaussians

STILL_RATE = 1e-20  # a learning rate that moves no float
UNMOVED = 1e-12  # what numbers next to 0 may gather of that rate
GIB = 2**30
MakeLoss = Callable[[], StepLoss]


class StepPeer(Protocol):
    """Runs whole training steps of one rasteriser."""

    name: str
    version: str

    def prepare(self, given: PeerInput, cameras: list[Camera]) -> None:
        """Makes parameters of its own, Adam's moments, and its own description of each camera."""
        ...

    def step(self, view: int, target: Any, loss: StepLoss) -> Any:
        """Makes one step on camera number `view` against a target that `loss` made; returns the loss, on the device."""
        ...

    def moved_from(self, given: PeerInput) -> float:
        """Returns the distance of the parameter that moved furthest from its beginning."""
        ...

    def release(self) -> None:
        """Frees all of it."""
        ...


class AutogradSteps:
    """Steps with a rasteriser behind torch.autograd, with the activations that it leaves to others, and Adam."""

    def __init__(self, peer: Autograd) -> None:
        self.name, self.version = peer.name, peer.version
        self._peer, self._stored, self._views, self._optimizer = peer, (), [], None

    def prepare(self, given: PeerInput, cameras: list[Camera]) -> None:
        self._stored = tuple(leaf.detach().clone().requires_grad_() for leaf in self._peer.stored(given))
        self._views = [self._peer.view_of(replace(given, camera=camera)) for camera in cameras]
        self._optimizer: Any = self._peer.optimizer(self._stored)
        self._peer.keep_statistics(given)

    def step(self, view: int, target: Any, loss: StepLoss) -> Any:
        self._peer.leaves, self._peer.view = self._peer.used(self._stored), self._views[view]
        value = loss.backward(self._peer.forward(), target)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return value

    def moved_from(self, given: PeerInput) -> float:
        return largest_difference(self._stored, self._peer.stored(given))

    def release(self) -> None:
        self._peer.release()
        self._stored, self._views, self._optimizer = (), [], None


class FusedFasterGs:
    """Steps with the Faster-GS whose backward pass makes Adam's step: it stores no gradient of a parameter.

    Its rates are constants of its build, but for that of the means.
    """

    def __init__(self, module: ModuleType) -> None:
        self.name, self.version = "faster_gs_fused", module_version(module)
        self._module, self._stored, self._moments, self._views = module, (), (), []
        self._steps = 0

    def prepare(self, given: PeerInput, cameras: list[Camera]) -> None:
        self._stored = tuple(parameter.clone() for parameter in faster_gs_parameters(given))
        self._moments = tuple(parameter.new_zeros((*parameter.shape, 2)) for parameter in self._stored)
        own = {"current_mean_lr": STILL_RATE, "adam_step_count": 0}
        given_at = (replace(given, camera=camera) for camera in cameras)
        self._views = [faster_gs_settings(self._module, at, **own) for at in given_at]
        self._statistics = given.means.new_zeros((2, len(given.means)))
        self._hook = given.tensor([0.0]).requires_grad_()  # what makes autograd call the backward pass
        self._steps = 0

    def step(self, view: int, target: Any, loss: StepLoss) -> Any:
        self._steps += 1
        settings = self._views[view]._replace(adam_step_count=self._steps)
        names = ("means", "scales", "rotations", "opacities", "sh_coefficients_0", "sh_coefficients_rest")
        moments = {f"moments_{name}": value for name, value in zip(names, self._moments, strict=True)}
        image, _ = self._module.diff_rasterize(self._hook, *self._stored, self._statistics, settings, **moments)
        return loss.backward(image.permute(1, 2, 0), target)

    def moved_from(self, given: PeerInput) -> float:
        return largest_difference(self._stored, faster_gs_parameters(given))

    def release(self) -> None:
        self._stored, self._moments, self._views = (), (), []
        self._statistics = self._hook = None


def _autograd_kind(kind: PeerKind) -> PeerKind:
    return replace(kind, make=lambda module: [AutogradSteps(peer) for peer in kind.make(module)])


def largest_difference(tensors: Iterable[Any], others: Iterable[Any]) -> float:
    """Returns the largest difference between numbers in the same place."""
    return max(float((a.detach() - b).abs().max()) for a, b in zip(tensors, others, strict=True))


STEP_PEERS = {name: _autograd_kind(kind) for name, kind in PEERS.items()} | {
    "faster_gs_fused": PeerKind(
        ("FasterGSFusedCudaBackend",), lambda module: [FusedFasterGs(module)], PEERS["faster_gs"].home
    )
}


def find_step_peers(names: tuple[str, ...]) -> tuple[list[StepPeer], list[str]]:
    """Finds rasterisers as `find_peers` does."""
    return find_peers(names, STEP_PEERS)


def find_contenders(
    names: tuple[str, ...], losses: tuple[str, ...]
) -> tuple[list[tuple[StepPeer, LossChoice]], list[str]]:
    """Returns (each installed rasteriser of these names with each installed loss, a sentence for each missing one).

    Raises InputError as `find_peers` does, and for losses that no rasteriser would be timed with.
    """
    choices, without = find_losses(losses)
    if not names:
        if losses != ("ours",):
            raise InputError("--losses says what other rasterisers are timed with, so it needs --vs with their names.")
        return [], []
    _, absent = find_step_peers(names)
    sets = [find_step_peers(names)[0] for _ in choices]  # what steps keeps its own parameters
    pairs = [(peer, choice) for same in zip(*sets, strict=True) for peer, choice in zip(same, choices, strict=True)]
    return pairs, absent + without


# ---- Measuring -------------------------------------------------------------------------------------------------------


class Job(Protocol):
    """Takes turns with others: our steps, or the steps of a peer."""

    name: str
    version: str

    def start(self) -> None:
        """Makes all of it."""
        ...

    def run(self, number: int) -> None:
        """Starts step number `number` and does not wait for it."""
        ...

    def finish(self) -> float:
        """Waits for the steps; returns the newest loss."""
        ...

    def moved(self) -> float:
        """Returns the distance of the parameter that moved furthest from its beginning."""
        ...

    def stop(self) -> None:
        """Frees it."""
        ...


class PeerSteps:
    """Runs the steps of a peer on a scene, round its cameras."""

    def __init__(
        self,
        peer: StepPeer,
        gaussians: Gaussians,
        cameras: list[Camera],
        pixels: np.ndarray,
        make_loss: MakeLoss,
        loss_label: str = "",
        loss_version: str = "",
    ) -> None:
        """Prepares the steps. `make_loss` is called again at each start, so that the buffers of the loss count as
        memory.
        """
        self.name = ", ".join(filter(None, (peer.name, loss_label)))
        self.version = ", ".join(filter(None, (peer.version, loss_version)))
        self._peer, self._gaussians, self._cameras, self._pixels = peer, gaussians, cameras, pixels
        self._make_loss = make_loss
        self._loss: Any = None
        self._target: Any = None
        self._value: Any = None

    def start(self) -> None:
        given = self._given()
        self._peer.prepare(given, self._cameras)
        self._loss = self._make_loss()
        self._target = self._loss.target(torch.from_numpy(self._pixels).to(given.means.device))

    def run(self, number: int) -> None:
        self._value = self._peer.step(number % len(self._cameras), self._target, self._loss)

    def finish(self) -> float:
        return float(self._value)

    def moved(self) -> float:
        return self._peer.moved_from(self._given())

    def _given(self) -> PeerInput:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        arrays = {name: torch.from_numpy(getattr(self._gaussians, name)).to(device) for name in PARAMETERS}
        return PeerInput(**arrays, camera=self._cameras[0])

    def stop(self) -> None:
        self._peer.release()
        self._target = self._value = self._loss = None


def compare_steps(jobs: list[Job], steps: int, repeats: int, warm_up: int) -> dict[str, dict[str, Any]]:
    """Measures the memory of each job by itself, then times all of them in turns; returns name -> a row."""
    rows: dict[str, dict[str, Any]] = {}
    for job in jobs:
        _memory(job, 1)  # loads its kernels, which then do not count
        rows[job.name] = {"version": job.version, **_memory(job, warm_up)}
    for job in jobs:
        job.start()
        for number in range(warm_up):
            job.run(number)
        rows[job.name]["loss"] = job.finish()
    times: dict[str, list[tuple[float, float]]] = {job.name: [] for job in jobs}
    for _ in range(repeats):
        for job in jobs:
            times[job.name].append(_timed(job, steps))
    for job in jobs:
        gpu, wall = zip(*times[job.name], strict=True)
        rows[job.name] |= {
            "gpu_ms": round(float(np.median(gpu)), 4),
            "wall_ms": round(float(np.median(wall)), 4),
            "gpu_spread": [round(min(gpu), 4), round(max(gpu), 4)],
            "moved": job.moved(),
        }
        job.stop()
    torch.cuda.empty_cache()
    return rows


def _memory(job: Job, steps: int) -> dict[str, float]:
    """Returns the GiB of a job on an otherwise idle device: the peak of tensors, and as the driver counts."""
    _settle()
    held, (free, _) = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()
    job.start()
    for _ in range(2):  # buffers grow in the first of them
        _settle()
        torch.cuda.reset_peak_memory_stats()
        for number in range(steps):
            job.run(number)
        job.finish()
    torch.cuda.synchronize()
    taken = {
        "peak_gib": round((torch.cuda.max_memory_allocated() - held) / GIB, 3),
        "driver_gib": round((free - torch.cuda.mem_get_info()[0]) / GIB, 3),
    }
    job.stop()
    _settle()
    return taken


def _settle() -> None:
    """Waits for the device, frees what the job before left, and returns unused memory to the driver."""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()


def _timed(job: Job, steps: int) -> tuple[float, float]:
    """Returns the milliseconds of a step: between events around all steps, and by the host's clock."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begun = perf_counter()
    start.record()
    for number in range(steps):
        job.run(number)
    end.record()
    job.finish()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / steps, 1e3 * (perf_counter() - begun) / steps


def print_rows(rows: dict[str, dict[str, Any]]) -> None:
    """Prints a line for each job, ours first, and a warning where parameters moved."""
    ours = next(iter(rows.values()))
    width = max(18, *map(len, rows)) + 2
    print(f"  {'':<{width}}{'GPU':>9} {'wall':>9} {'times ours':>11} {'peak':>9} {'driver':>10}  loss")
    for name, row in rows.items():
        print(
            f"  {name:<{width}}{row['gpu_ms']:6.3f} ms{row['wall_ms']:7.3f} ms{row['wall_ms'] / ours['wall_ms']:11.2f} "
            f"{row['peak_gib']:6.2f} GiB{row['driver_gib']:7.2f} GiB  {row['loss']:.6f}",
            flush=True,
        )
        if row["moved"] > UNMOVED:
            print(f"    its parameters moved by up to {row['moved']:.3g}: its steps did not all do the same work")
