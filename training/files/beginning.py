"""Where a run begins if not with a reconstruction's points: at a checkpoint, or with splats from a file.

What of a checkpoint is not splats the trainer takes over itself (`trainer.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from splatscope.assets.capture import NO_OFFSET, Offset
from splatscope.assets.geometry.recentre import rebased
from splatscope.assets.splats.usable import trainable_rows, unusable_in_words
from splatscope.kernels.constants import SH_COEFFICIENTS
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Filter
from splatscope.kernels.types import Gaussians
from splatscope.kernels.wording import counted
from splatscope.training.config import TrainConfig
from splatscope.training.data.dataset import Dataset
from splatscope.training.files.checkpoint import Checkpoint
from splatscope.training.files.folder import newest_iteration, run_of
from splatscope.training.splats import rows as ops
from splatscope.training.splats.rows import SplatState, SplatTensors


@dataclass(frozen=True, eq=False)
class Beginning:
    """A checkpoint or splats, one of them."""

    path: Path
    checkpoint: Checkpoint | None = None
    splats: Gaussians | None = None
    iteration: int = 0  # of the splats, if their file says
    offset: Offset = NO_OFFSET  # that was taken off the splats as they were read
    filter: Filter = "plain"  # that the splats were trained with
    changes: tuple[str, ...] = ()  # what `usable` did to the splats, a sentence each
    newest: int = field(default=0, kw_only=True)  # of its folder's checkpoints when it was read; itself at least

    def __post_init__(self) -> None:
        if self.checkpoint is not None and not self.newest:
            run = run_of(self.path)
            stored = newest_iteration(run) if run else 0
            object.__setattr__(self, "newest", max(stored, self.checkpoint.iteration))

    def is_of(self, out_dir: Path) -> bool:
        """Whether it is a checkpoint of the run that writes to that folder."""
        return self.checkpoint is not None and run_of(self.path) == out_dir.absolute()

    def usable(self, sh_degree: int) -> Beginning:
        """The same without splats that no step can use, and without harmonics above the degree. Raises InputError if no
        splat is left."""
        return self._without_rows()._without_bands((sh_degree + 1) ** 2)

    def _without_rows(self) -> Beginning:
        moments = () if self.checkpoint is None else (_part(self.checkpoint, name) for name in ("first", "second"))
        kept = _usable_rows(self._raw, *moments)
        unusable = unusable_in_words(self.path, _as_gaussians(self._raw), kept.numpy())
        if not unusable:
            return self
        if not kept.any():
            raise InputError(f"{unusable}, so none is left to go on with. Give an earlier checkpoint or another file.")
        rows = kept.nonzero()[:, 0]
        return self._changed(lambda tensor: tensor[rows], len(kept), f"Left out: {unusable}.")

    def _without_bands(self, bands: int) -> Beginning:
        has = self._raw.sh.shape[1]
        if has <= bands:
            return self
        words = f"Its harmonics are cut from degree {SH_COEFFICIENTS[has]} to {SH_COEFFICIENTS[bands]}, the run's."
        if self.splats is not None:
            splats = replace(self.splats, sh=np.ascontiguousarray(self.splats.sh[:, :bands]))
            return replace(self, splats=splats, changes=(*self.changes, words))
        assert self.checkpoint is not None
        tensors = {
            name: tensor[:, :bands].contiguous() if name.endswith(".sh") else tensor
            for name, tensor in self.checkpoint.tensors.items()
        }
        return replace(self, checkpoint=replace(self.checkpoint, tensors=tensors), changes=(*self.changes, words))

    def _changed(self, change: Callable[[Tensor], Tensor], count: int, words: str) -> Beginning:
        """With a change to everything that has a row for each of `count` splats."""
        changes = (*self.changes, words)
        if self.splats is not None:
            names = [f.name for f in fields(SplatTensors)]
            arrays = {name: change(getattr(self._raw, name)).numpy() for name in names}
            return replace(self, splats=Gaussians(**arrays), changes=changes)
        assert self.checkpoint is not None
        tensors = {
            name: change(tensor) if name.startswith(_BY_ROW) and tensor.shape[:1] == (count,) else tensor
            for name, tensor in self.checkpoint.tensors.items()
        }
        return replace(self, checkpoint=replace(self.checkpoint, tensors=tensors), changes=changes)

    @property
    def _raw(self) -> SplatTensors:
        if self.checkpoint is not None:
            return _part(self.checkpoint, "raw")
        assert self.splats is not None
        return SplatTensors(**{f.name: torch.from_numpy(getattr(self.splats, f.name)) for f in fields(SplatTensors)})

    def state(self, offset: Offset) -> SplatState:
        """Splats and moments, for a capture that `offset` was taken off."""
        if self.checkpoint is None:
            assert self.splats is not None
            return ops.from_gaussians(rebased(self.splats, self.offset, offset))
        groups = (SplatTensors(**self.checkpoint.group(name)) for name in ("raw", "first", "second"))
        state, moved = SplatState(*groups), np.subtract(self.checkpoint.info["offset"], offset)
        if moved.any():  # the capture has changed, and another place was taken for its middle
            means = (state.raw.means + torch.from_numpy(moved)).float()
            state = replace(state, raw=replace(state.raw, means=means))
        return state

    def remark(self, lost: str, config: TrainConfig, set_aside: int) -> str:
        """What a run that goes on from here with `config` is told: what was `lost`, and how many later checkpoints were
        set aside."""
        missing = "It holds no moments, so Adam begins anew." if self.splats is not None else ""
        other = config.other_filter(self.checkpoint.filter if self.checkpoint else self.filter)
        aside = f"Set aside as .pt.old: {counted(set_aside, 'later checkpoint')}." if set_aside else ""
        skipped = "" if self.checkpoint is None else self.checkpoint.passed_over
        return " ".join(part for part in (skipped, *self.changes, lost, missing, other, aside) if part)


def other_views(before: Sequence[str], dataset: Dataset) -> str:
    """What is told of a run that goes on with other training views than those named `before`, a clause or two."""
    known, held_out = set(before), dataset.held_out_views
    seen = sum(view.name in known for view in held_out)
    words = "the training views are others, so a new epoch begins"
    if not seen and not any(view.name in known for view in dataset.training_views):
        return f"{words}, and not one of them is among those it was trained on, as if this were another capture"
    if not seen:
        return words
    return f"{words}, and {seen} of {counted(len(held_out), 'held-out view')} were trained on before: scores flatter"


_BY_ROW = ("raw.", "first.", "second.", "strategy.")  # groups of a checkpoint with a row for each splat


def _part(checkpoint: Checkpoint, name: str) -> SplatTensors:
    """Without a copy."""
    return SplatTensors(**{f.name: checkpoint.tensors[f"{name}.{f.name}"] for f in fields(SplatTensors)})


def _as_gaussians(raw: SplatTensors) -> Gaussians:
    """Without a copy."""
    return Gaussians(**{f.name: getattr(raw, f.name).numpy() for f in fields(raw)})


def _usable_rows(raw: SplatTensors, *moments: SplatTensors) -> Tensor:
    """Mask [N] of splats that steps can change: usable, and no NaN among their moments."""
    usable = torch.from_numpy(trainable_rows(_as_gaussians(raw)))
    for group in moments:
        for f in fields(group):
            usable &= ~getattr(group, f.name).isnan().reshape(raw.count, -1).any(dim=1)
    return usable
