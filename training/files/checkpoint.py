"""Reads and writes checkpoints: everything a run needs to continue as if it had never stopped, in one file.

`checkpoints/iteration_N.pt` is a flat dictionary of tensors, the states of both random generators, and one JSON text
with the settings. Nothing in it is code, and it is read with weights_only. Files appear whole or not at all. Read
`run_record.py` for what is put in.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, get_args

import numpy as np
import torch
from torch import Tensor

from splatscope.assets.files.atomic import atomic_path
from splatscope.assets.trained.model_folder import iterations
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Filter
from splatscope.kernels.primitive import PRIMITIVES, Primitive
from splatscope.training.files.checkpoint_check import archive_is_whole, complete, mistake_in
from splatscope.training.files.folder import FOLDER, checkpoints, resume_line

_FAMILY = "splatscope checkpoint "
FORMAT = f"{_FAMILY}1"
_EARLIER = " Use an earlier checkpoint."


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Holds a run after `info["iteration"]` iterations."""

    tensors: dict[str, Tensor]  # "raw.means", "first.means", …, "strategy.pull", "random", …
    info: dict[str, Any]  # plain values, ready for JSON
    path: Path | None = None  # the file it was read from
    lacks: tuple[str, ...] = ()  # parts that an older version did not keep; see `checkpoint_check.EARLIER`
    passed_over: str = ""  # newer checkpoints that could not be read, and why

    @property
    def iteration(self) -> int:
        return int(self.info["iteration"])

    @property
    def filter(self) -> Filter:
        """Returns the filter of `ProjectPolicy` that its splats were trained with; "plain" in files without one."""
        named = self.info["settings"].get("antialiasing")
        return named if named in get_args(Filter) else "plain"

    @property
    def primitive(self) -> Primitive:
        """Returns what its splats are; "3dgs" in files that do not say."""
        named = self.info["settings"].get("primitive")
        return named if named in PRIMITIVES else "3dgs"

    def group(self, prefix: str) -> dict[str, Tensor]:
        """Returns copies of the tensors whose name begins with `prefix.`, by the rest of their name."""
        start = f"{prefix}."
        return {name.removeprefix(start): t.clone() for name, t in self.tensors.items() if name.startswith(start)}

    def group_like(self, prefix: str, fresh: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Returns `group` if it has the names of `fresh`, else None: the file is older than the part. Raises
        InputError if its types or shapes are not those of `fresh`."""
        found = self.group(prefix)
        if not fresh.keys() <= found.keys():
            return None
        if {name: (t.dtype, t.shape) for name, t in found.items()} != {n: (t.dtype, t.shape) for n, t in fresh.items()}:
            raise damaged(self.path, f"its {prefix} does not belong to its splats and views")
        return found

    def set_random(self, rng: np.random.Generator, random: torch.Generator) -> bool:
        """Sets both generators to continue where the run stopped. Returns False, and leaves `random` alone, if it is of
        another device. Raises InputError."""
        try:
            rng.bit_generator.state = self.info["random"]
            if len(self.tensors["random"]) != len(random.get_state()):
                return False
            random.set_state(self.tensors["random"])
        except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise damaged(self.path, "its random numbers cannot be continued") from error
        return True


def damaged(path: Path | None, mistake: str) -> InputError:
    """Returns the error about a checkpoint that has `mistake`."""
    return InputError(f"{path or 'The checkpoint'} is damaged: {mistake}.{_EARLIER}")


def checkpoint_path(out_dir: Path, iteration: int) -> Path:
    """Returns the path of an iteration's checkpoint below a run's folder."""
    return out_dir / FOLDER / f"iteration_{iteration}.pt"


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes the file whole, on disk before it gets its name. Raises InputError if it cannot be written."""
    content = {"format": FORMAT, "info": json.dumps(checkpoint.info), **checkpoint.tensors}
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        keeper = _ErrorKeeper(file)
        try:
            torch.save(content, keeper)  # pyright: ignore[reportArgumentType]
        except RuntimeError:
            if keeper.error is not None:
                raise keeper.error from None
            raise
        file.flush()
        os.fsync(file.fileno())


class _ErrorKeeper:
    """Wraps a file for torch and keeps its OSError: torch turns a full disk into a RuntimeError."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a file that `write_checkpoint` wrote; never runs code from it. Raises InputError."""
    if path.exists() and not path.is_file():  # a read from a pipe would never end
        raise InputError(f"{path} is not a regular file; give a run's folder or one of its checkpoints/iteration_N.pt.")
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on foreign pickles, which are refused below
            content = _load(path, file)
    except FileNotFoundError as error:
        raise InputError(
            f"{path} does not exist; give a run's folder or one of its checkpoints/iteration_N.pt."
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or 'the system refused it'}.") from error
    if not isinstance(content, Mapping) or not str(content.get("format")).startswith(_FAMILY):
        raise InputError(f"{path} is not a checkpoint of splatscope; give one of its checkpoints/iteration_N.pt.")
    if content["format"] != FORMAT:
        raise InputError(
            f"{path} was written by another version of splatscope: it is a {str(content['format'])[:40]!r}, and this "
            f"version reads {FORMAT!r}. Continue with that version, or begin with the run's .ply."
        )
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    try:
        info = json.loads(content["info"])
    except (KeyError, TypeError, ValueError, RecursionError):
        info = {}
    lacks = complete(tensors, info)
    mistake = mistake_in(tensors, info)
    if mistake:
        raise damaged(path, mistake)
    return Checkpoint(tensors, info, path, lacks)


def _load(path: Path, file: IO[bytes]) -> Any:
    if not archive_is_whole(file):
        raise InputError(f"{path} is damaged, or not a checkpoint of splatscope.{_EARLIER}")
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError as error:
        raise InputError(f"{path} does not fit in memory.") from error
    except Exception as error:  # torch: RuntimeError, UnpicklingError, KeyError, … by kind of damage
        raise InputError(f"{path} is damaged, or not a checkpoint of splatscope.{_EARLIER}") from error


def newest_checkpoint(out_dir: Path) -> tuple[Path, Checkpoint]:
    """Returns the newest checkpoint below a run's folder that can be read; its `passed_over` names newer ones that
    cannot. Raises InputError if there is none."""
    stored = checkpoints(out_dir)
    if not stored:
        raise InputError(
            f"{out_dir} holds no checkpoint ({FOLDER}/iteration_N.pt), so there is nothing to resume. A PLY can be "
            f"started from: --resume FILE.ply."
        )
    problems: list[str] = []
    for path in reversed(stored.values()):
        try:
            checkpoint = read_checkpoint(path)
        except InputError as error:
            problems.append(str(error).removesuffix(_EARLIER))
        else:
            passed_over = f"Passed over: {' '.join(problems)}" if problems else ""
            return path, replace(checkpoint, passed_over=passed_over)
    splats = iterations(out_dir)
    way_out = f"To begin with its splats: {resume_line(splats[max(splats)])}" if splats else "Begin a new run."
    raise InputError(f"{problems[0]} {_none_else(len(stored))} {way_out}")


def _none_else(count: int) -> str:
    """Returns the sentence about the other checkpoints where the newest cannot be used."""
    others = "The other one" if count == 2 else f"The other {count - 1}"
    return "It is the only one." if count == 1 else f"{others} cannot be read either."


def remove_old(out_dir: Path, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints."""
    for path in list(checkpoints(out_dir).values())[:-keep]:
        with suppress(OSError):  # the next call tries again
            path.unlink()


def set_aside_later(out_dir: Path, iteration: int) -> int:
    """Renames checkpoints after `iteration` to .pt.old, so that a later resume does not take them for those of the run
    that continues from there. Returns how many. Raises InputError if the folder cannot be written."""
    later = [path for number, path in checkpoints(out_dir).items() if number > iteration]
    for path in later:
        try:
            path.replace(path.with_name(f"{path.name}.old"))
        except OSError as error:
            raise InputError(f"{path} cannot be set aside: {error.strerror}. Give another --out.") from error
    return len(later)


def remove_half_written(out_dir: Path) -> None:
    """Removes the half-written files of a killed process. To be called only while nothing is being written."""
    for pattern in (".*", f"{FOLDER}/.*", "point_cloud/*/.*"):
        for path in out_dir.glob(pattern):
            if re.fullmatch(r"\..+\.[0-9a-f]{8}(\.\w+)?", path.name):  # as atomic_path names them
                with suppress(OSError):
                    path.unlink()
