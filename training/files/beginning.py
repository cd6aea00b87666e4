"""Determines the first splats of a run: from a checkpoint, from a file of splats, or on a reconstruction's points.

`run_record.py` takes the rest of a checkpoint into a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from splatscope.assets.capture import NO_OFFSET, Capture, Offset, PointCloud
from splatscope.assets.geometry.recentre import rebased
from splatscope.assets.splats.usable import trainable_rows, unusable_in_words
from splatscope.kernels.constants import SH_COEFFICIENTS
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Filter
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.types import Gaussians
from splatscope.kernels.wording import counted
from splatscope.training.config import TrainConfig
from splatscope.training.data.dataset import Dataset
from splatscope.training.data.initial import initial_points, splats_from_points
from splatscope.training.files.checkpoint import Checkpoint
from splatscope.training.files.folder import newest_iteration, run_of
from splatscope.training.files.moved_cameras import moved_cameras
from splatscope.training.splats import rows as ops
from splatscope.training.splats.rows import SplatState, SplatTensors


@dataclass(frozen=True, eq=False)
class Beginning:
    """Holds what a run begins with: either a checkpoint or splats."""

    path: Path
    checkpoint: Checkpoint | None = None
    splats: Gaussians | None = None
    iteration: int = 0  # iteration of the splats, if their file states it
    offset: Offset = NO_OFFSET  # subtracted from the splats when they were read
    filter: Filter = "plain"  # the filter that the splats were trained with
    changes: tuple[str, ...] = ()  # the changes that `usable` made to the splats, a sentence each
    newest: int = field(default=0, kw_only=True)  # iteration of the newest checkpoint in its folder when it was read

    def __post_init__(self) -> None:
        if self.checkpoint is not None and not self.newest:
            run = run_of(self.path)
            stored = newest_iteration(run) if run else 0
            object.__setattr__(self, "newest", max(stored, self.checkpoint.iteration))

    def is_of(self, out_dir: Path) -> bool:
        """Returns True for a checkpoint of the run that writes to that folder."""
        return self.checkpoint is not None and run_of(self.path) == out_dir.absolute()

    def usable(self, sh_degree: int) -> Beginning:
        """Returns the beginning without splats that no step can use, and without harmonics above the degree. Raises
        InputError if no splat is left."""
        return self._without_rows()._without_bands((sh_degree + 1) ** 2)

    def _without_rows(self) -> Beginning:
        moments = () if self.checkpoint is None else (_part(self.checkpoint, name) for name in ("first", "second"))
        kept = _usable_rows(self._raw, *moments)
        unusable = unusable_in_words(self.path, _as_gaussians(self._raw), kept.numpy())
        if not unusable:
            return self
        if not kept.any():
            raise InputError(
                f"{unusable}, so none is left to continue with. Give an earlier checkpoint or another file."
            )
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
        """Applies a change to everything that has a row for each of `count` splats."""
        changes = (*self.changes, words)
        if self.splats is not None:
            names = [f.name for f in fields(SplatTensors)]
            arrays = {name: change(getattr(self._raw, name)).numpy() for name in names}
            return replace(self, splats=self.splats.with_arrays(arrays), changes=changes)
        assert self.checkpoint is not None
        tensors = {
            name: change(tensor) if name.startswith(_BY_ROW) and tensor.shape[:1] == (count,) else tensor
            for name, tensor in self.checkpoint.tensors.items()
        }
        return replace(self, checkpoint=replace(self.checkpoint, tensors=tensors), changes=changes)

    @property
    def primitive(self) -> Primitive:
        """Returns what the splats are."""
        if self.checkpoint is not None:
            return self.checkpoint.primitive
        assert self.splats is not None
        return self.splats.primitive

    @property
    def _raw(self) -> SplatTensors:
        if self.checkpoint is not None:
            return _part(self.checkpoint, "raw")
        assert self.splats is not None
        return SplatTensors(**{f.name: torch.from_numpy(getattr(self.splats, f.name)) for f in fields(SplatTensors)})

    def state(self, offset: Offset) -> SplatState:
        """Returns splats and moments for a capture whose positions had `offset` subtracted."""
        if self.checkpoint is None:
            assert self.splats is not None
            return ops.from_gaussians(rebased(self.splats, self.offset, offset))
        groups = (SplatTensors(**self.checkpoint.group(name)) for name in ("raw", "first", "second"))
        state, moved = SplatState(*groups), np.subtract(self.checkpoint.info["offset"], offset)
        if moved.any():  # the capture has changed, and so has its centre
            means = (state.raw.means + torch.from_numpy(moved)).float()
            state = replace(state, raw=replace(state.raw, means=means))
        return state

    def remark(self, lost: str, config: TrainConfig, set_aside: int) -> str:
        """Returns the remarks on a run that continues from here with `config`: parts of the state that were `lost`,
        settings that differ, and how many later checkpoints were set aside."""
        missing = "It holds no moments, so Adam's begin at zero." if self.splats is not None else ""
        other = config.other_filter(self.checkpoint.filter if self.checkpoint else self.filter)
        aside = f"Set aside as .pt.old: {counted(set_aside, 'later checkpoint')}." if set_aside else ""
        skipped = "" if self.checkpoint is None else self.checkpoint.passed_over
        return " ".join(part for part in (skipped, *self.changes, lost, missing, other, aside) if part)


@dataclass(frozen=True, eq=False)
class Start:
    """Holds what a run needs to know of its beginning until it is prepared."""

    begin: Beginning | None  # None: on points
    known: int  # iteration of the newest checkpoint in the run's folder that this run knows of
    moved: tuple[str, ...]  # the warning about cameras that have moved since `begin` was written

    @classmethod
    def of(cls, begin: Beginning | None, capture: Capture, config: TrainConfig, out_dir: Path) -> Start:
        """Looks at a beginning and at the run's folder, before anything is written there. Raises InputError if no splat
        is left to begin with."""
        if begin is None:
            return cls(None, newest_iteration(out_dir), ())
        begin = begin.usable(config.sh_degree)
        _check_primitive(begin, config)
        known = begin.newest if begin.is_of(out_dir) else newest_iteration(out_dir)
        return cls(begin, known, moved_cameras(begin.path, capture))

    @property
    def checkpoint(self) -> Checkpoint | None:
        return None if self.begin is None else self.begin.checkpoint

    @property
    def iteration(self) -> int:
        """Returns the iteration that the splats of a file are from; a checkpoint tells its own later."""
        return 0 if self.begin is None or self.begin.splats is None else self.begin.iteration


def _check_primitive(begin: Beginning, config: TrainConfig) -> None:
    """Raises InputError if a run of disks begins with Gaussians, or the other way round."""
    held, wanted = begin.primitive, config.primitive
    if (held == "2dgs") != (wanted == "2dgs"):
        raise InputError(
            f"{begin.path} holds {held} splats, and this run trains {wanted}, which have another number of scales; "
            f"train them as {held}, or begin with the points of the capture."
        )


def first_splats(
    begin: Beginning | None,
    capture: Capture,
    dataset: Dataset,
    config: TrainConfig,
    fewer: bool,
    rng: np.random.Generator,
) -> tuple[SplatState, PointCloud | None]:
    """Returns the splats of a checkpoint or file as they are, else splats placed on points, and the points. `fewer`:
    random points are as few as a CPU can train."""
    if begin is not None:
        return begin.state(capture.offset), None
    cameras = [view.camera for view in dataset.training_views]
    points = initial_points(capture, cameras, dataset.extent, config.initial, fewer, rng)
    return ops.from_gaussians(splats_from_points(points, dataset.extent, config.initial, config.primitive, rng)), points


def other_views(before: Sequence[str], dataset: Dataset) -> str:
    """Returns a clause or two about a run that continues with other training views than those named `before`."""
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
    """Returns one group of a checkpoint's tensors, without a copy."""
    return SplatTensors(**{f.name: checkpoint.tensors[f"{name}.{f.name}"] for f in fields(SplatTensors)})


def _as_gaussians(raw: SplatTensors) -> Gaussians:
    """Returns NumPy views on the tensors, without a copy."""
    return Gaussians(**{f.name: getattr(raw, f.name).numpy() for f in fields(raw)})


def _usable_rows(raw: SplatTensors, *moments: SplatTensors) -> Tensor:
    """Returns the mask [N] of splats that steps can change: usable, and without a NaN among their moments."""
    usable = torch.from_numpy(trainable_rows(_as_gaussians(raw)))
    for group in moments:
        for f in fields(group):
            usable &= ~getattr(group, f.name).isnan().reshape(raw.count, -1).any(dim=1)
    return usable
