"""Tests saving and photographs on a real GPU: copies made while steps run are exact, and steps do not wait for them."""

from __future__ import annotations

import gc
import importlib.util
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splatscope.assets.capture import Capture
from splatscope.kernels.backends import gpu_is_present, make_backend
from splatscope.kernels.cuda.launch import readback
from splatscope.kernels.cuda.launch.buffers import TorchMemory
from splatscope.kernels.cuda.launch.readback import CHUNK, Held, on_host
from splatscope.kernels.cuda.step.photographs import TargetStore
from splatscope.kernels.errors import NoRoomError
from splatscope.kernels.policy import Policy
from splatscope.training.config import CheckpointConfig, DensifyConfig
from splatscope.training.events import Stepped
from splatscope.training.files.checkpoint import checkpoint_path, read_checkpoint
from splatscope.training.trainer import Trainer
from tests.support.cuda_training import IN_ORDER, LAZY, kept_as
from tests.support.late_fetch import assert_same_run, run_with_files_held_back, settled_after
from tests.support.small_capture import SHORT, make_capture

pytestmark = pytest.mark.skipif(
    not gpu_is_present() or importlib.util.find_spec("cupy") is None, reason="needs an NVIDIA GPU and CuPy"
)

LONG_CYCLES = 3_000_000_000  # of the GPU's clock: more than a second


def some_tensors() -> dict[str, Any]:
    """Returns tensors of all kinds that a run has: larger than a chunk, strided, of one number, empty, and one on the
    host.
    """
    torch.manual_seed(4)
    return {
        "large": torch.rand(CHUNK // 4 + 12_345, 3, device="cuda"),
        "strided": torch.rand(50_001, 16, 3, device="cuda")[:, :4],
        "count": torch.arange(7, device="cuda", dtype=torch.int32),
        "number": torch.tensor(3, device="cuda"),
        "empty": torch.rand(0, 3, device="cuda"),
        "host": torch.arange(5),
    }


def busy_gpu() -> Any:
    """Gives the current stream more than a second's work; the event is behind it."""
    torch.cuda._sleep(LONG_CYCLES)
    event = torch.cuda.Event()
    event.record()
    return event


def test_copies_on_the_host_have_every_bit_and_no_strides() -> None:
    tensors = some_tensors()
    for copies in (on_host(tensors), Held(tensors).to_host()):
        assert copies.keys() == tensors.keys()
        for name, tensor in tensors.items():
            copy = copies[name]
            assert (copy.device.type, copy.dtype, copy.shape) == ("cpu", tensor.dtype, tensor.shape)
            assert copy.is_contiguous()
            assert torch.equal(copy, tensor.cpu()), name


def test_what_is_held_stays_as_it_was_and_is_fetched_while_later_work_runs() -> None:
    tensors = some_tensors()
    wanted = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
    Held(tensors).to_host()  # memory for it is there from now on
    before = busy_gpu()
    held = Held(tensors)
    assert not before.query(), "to hold waits for nothing"
    for name, tensor in tensors.items():
        if name != "host":
            tensor.zero_()
    after = busy_gpu()
    copies: dict[str, Any] = {}
    other = threading.Thread(target=lambda: copies.update(held.to_host()))
    other.start()
    other.join(60)
    assert not after.query(), "to fetch waits for nothing that was launched later"
    for name, tensor in wanted.items():
        assert torch.equal(copies[name], tensor), name
    torch.cuda.synchronize()


def test_memory_of_a_copy_is_had_again_and_only_where_much_more_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # what earlier tests left is not freed meanwhile
    tensors = some_tensors()
    Held(tensors).to_host()
    free = torch.cuda.memory_allocated()
    for _ in range(20):
        Held(tensors).to_host()
    assert torch.cuda.memory_allocated() == free
    monkeypatch.setattr(readback, "SPARE", 10**6)
    with pytest.raises(NoRoomError, match="no room"):
        Held(tensors)
    assert torch.cuda.memory_allocated() == free


def test_photographs_are_brought_while_the_gpu_works_and_overwrite_none_that_is_still_read() -> None:
    rng = np.random.default_rng(5)
    pictures = [rng.integers(0, 256, (301, 403, 3), dtype=np.uint8) for _ in range(24)]
    store = TargetStore(TorchMemory(), budget=12 * pictures[0].size, slots=4)
    warm = [store.add(picture) for picture in pictures]
    assert [target.is_on_gpu for target in warm] == [True] * 12 + [False] * 12
    assert all(np.array_equal(t.bytes.cpu().numpy(), p.ravel()) for p, t in zip(pictures, warm, strict=True))
    while warm:
        store.remove(warm.pop())
    first = store.add(pictures[0])
    busy = busy_gpu()
    first_bytes = first.bytes
    read = first_bytes.clone()  # what a step does, once the GPU comes to it
    assert not busy.query(), "a photograph comes while the GPU works"
    store.remove(first)
    del first, first_bytes
    others = [store.add(picture) for picture in pictures[1:]]  # one of them gets the memory of the first
    for picture, target in zip(pictures[1:], others, strict=True):
        assert np.array_equal(target.bytes.cpu().numpy(), picture.ravel())
    assert np.array_equal(read.cpu().numpy(), pictures[0].ravel())


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("capture"))


@pytest.mark.parametrize("policy", [IN_ORDER, LAZY, kept_as(IN_ORDER, "split"), kept_as(IN_ORDER, "bf16")])
def test_a_checkpoint_taken_while_steps_run_is_that_of_a_run_that_stood_still(
    capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    plain = replace(SHORT, iterations=400, sh_interval=20, test_interval=0, densify=DensifyConfig(enabled=False))
    saved = replace(plain, checkpoint=CheckpointConfig(seconds=0, interval=130, keep=9))
    backend = make_backend("cuda")
    trainer = Trainer(capture, saved, backend, tmp_path / "run")
    trainer.use(policy)
    events = run_with_files_held_back(trainer, 350, monkeypatch)  # steps change the splats 220 times meanwhile
    assert [event.iteration for event in events if isinstance(event, Stepped)] == list(range(1, 401))
    settled = Trainer(capture, plain, backend, tmp_path / "settled")
    settled.use(policy)
    wanted = settled_after(settled, 130)
    got = read_checkpoint(checkpoint_path(tmp_path / "run", 130))
    assert_same_run(got, wanted)
    last = read_checkpoint(checkpoint_path(tmp_path / "run", 400))
    assert not torch.equal(last.tensors["raw.means"], got.tensors["raw.means"])
