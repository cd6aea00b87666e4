"""Keeps splats under training in device memory: parameters, both moments, statistics for density control.

- All arrays have room for `rows` splats, of which the first `count` exist. So splats come and go without a new address
  while the room lasts, and captured graphs stay valid.
- Harmonics always have 16 rows; rows above the degree in use are zero. Raw harmonics are kept for one sh_dtype
  (`harmonics.py`) and are passed in and out as float32.
- Rows are the first axis everywhere.

Steps change the arrays (`cuda/training_step.py`), and between steps `assign` and the methods after it. These move no
more rows than they must, and need memory only for the rows they move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from splatscope.kernels.constants import SH_COEFFICIENTS
from splatscope.kernels.cuda.launch.buffers import DeviceArray, Memory
from splatscope.kernels.cuda.plan.passes import SH_ROWS, Scene
from splatscope.kernels.cuda.step.harmonics import KEYS, copy_harmonics, numbers_of, words_of
from splatscope.kernels.errors import NoRoomError
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.types import Float32, Gaussians

SHAPES: dict[str, tuple[int, ...]] = {
    "means": (3,),
    "log_scales": (3,),
    "quats": (4,),
    "logit_opacities": (),
    "sh": (SH_ROWS, 3),
}
KINDS = ("raw", "first", "second")  # parameters, first and second moments
SH_ARRAYS = ("sh", "sh lower")  # arrays of raw harmonics: the one kernels read, and with split the lower halves
BESIDE = 256  # bytes a row, about, of a step's own buffers (cuda/launch/buffers.py)
ROOM_STEP = 4096  # rows are multiples of this
ROW_GROWTH = 1.3  # rows allocated when they run out, times those asked for


class DeviceGaussians(Gaussians):
    """Stands for splats on the host while they are on a GPU.

    A CUDA backend draws `scene` as it is. Every access to an array makes a copy on the host. `before_read` is called
    before both.
    """

    def __init__(self, scene: Scene, sh_rows: int, before_read: Callable[[], None]) -> None:
        object.__setattr__(self, "_scene", scene)
        object.__setattr__(self, "_sh_rows", sh_rows)
        object.__setattr__(self, "_before_read", before_read)

    @property
    def scene(self) -> Scene:
        """Returns the live tensors, up to date until the next step."""
        self._before_read()
        return self._scene

    @property
    def count(self) -> int:
        return self._scene.count

    @property
    def sh_degree(self) -> int:
        return SH_COEFFICIENTS[self._sh_rows]

    @property
    def primitive(self) -> Primitive:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._scene.primitive

    def __getattribute__(self, name: str) -> Any:
        if name in SHAPES:
            scene = self.scene
            if name == "sh":
                return _fetched(numbers_of(scene.sh, scene.sh_dtype)[:, : self._sh_rows])
            return _fetched(getattr(scene, name))
        return super().__getattribute__(name)


def _fetched(tensor: DeviceArray) -> Float32:
    return np.ascontiguousarray(tensor.cpu().numpy()).copy()


class SplatBuffers:
    """Keeps memory for `rows` splats. `before_move` is called before addresses change: drop them then."""

    def __init__(
        self,
        memory: Memory,
        gaussians: Gaussians,
        rows: int,
        before_move: Callable[[], None],
        sh_dtype: str = "f32",
    ) -> None:
        import torch

        self._memory, self._before_move = memory, before_move
        self.sh_dtype = sh_dtype
        self.primitive: Primitive = gaussians.primitive
        self._scene: Scene | None = None
        self.count = self.sh_rows = 0
        self.rows = _rounded(max(rows, gaussians.count))
        self._arrays = self._new_arrays(self.rows)
        self.forget()
        tensors = {name: torch.from_numpy(np.array(getattr(gaussians, name), np.float32)) for name in SHAPES}
        zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        self.assign({"raw": tensors, "first": zeros, "second": zeros})

    def array(self, kind: str, name: str) -> DeviceArray:
        """Returns all rows of one array, unused rows included, as kernels take it."""
        return self._arrays[kind, name]

    def view(self, kind: str) -> dict[str, DeviceArray]:
        """Returns the existing rows of one kind by parameter, `sh_rows` of harmonics: views that later steps change.

        Raw harmonics that are kept in words are a copy.
        """
        if kind == "raw":
            sh = numbers_of(self._of_existing(self.harmonics), self.sh_dtype)
            return self.geometry() | {"sh": sh[:, : self.sh_rows]}
        views = {name: self._arrays[kind, name][: self.count] for name in SHAPES}
        return views | {"sh": views["sh"][:, : self.sh_rows]}

    def geometry(self) -> dict[str, DeviceArray]:
        """Returns the existing rows of all raw parameters but harmonics: views that later steps change."""
        return {name: self._arrays["raw", name][: self.count] for name in SHAPES if name != "sh"}

    @property
    def harmonics(self) -> dict[str, DeviceArray]:
        """Returns all rows of the raw harmonics as they are kept."""
        return self._harmonics_in(self._arrays)

    @property
    def lower_halves(self) -> DeviceArray | None:
        """Returns [rows, 16, 3] int16 that belong to `array("raw", "sh")`; None unless sh_dtype is split."""
        return self._arrays.get(("raw", "sh lower"))

    @property
    def pull(self) -> DeviceArray:
        """Returns [N] float32: summed length of dL/d(projected mean) in NDC units."""
        return self._arrays["statistics", "pull"][: self.count]

    @property
    def stepped(self) -> DeviceArray:
        """Returns [rows] int32: the step up to which each splat's harmonics are (cuda/source/lazy.cuh)."""
        return self._arrays["statistics", "stepped"]

    @property
    def seen(self) -> DeviceArray:
        """Returns [N] int32: steps that saw the splat, since `forget`."""
        return self._arrays["statistics", "seen"][: self.count]

    def forget(self) -> None:
        """Sets the statistics to zero."""
        for name in ("pull", "seen"):
            self._arrays["statistics", name].zero_()

    @property
    def scene(self) -> Scene:
        """Returns the live parameters as the renderer takes them: the same object while count and addresses stay."""
        if self._scene is None:
            sh = self._of_existing(self.harmonics)
            self._scene = Scene(
                self.count, 3, sh=sh, sh_dtype=self.sh_dtype, primitive=self.primitive, **self.geometry()
            )
        return self._scene

    def holds(self, state: Mapping[str, Mapping[str, DeviceArray]], name: str) -> bool:
        """Returns True if all kinds of a parameter are views of these arrays."""
        return all(self._is_own(kind, name, state[kind].get(name)) for kind in KINDS)

    def _is_own(self, kind: str, name: str, given: DeviceArray | None) -> bool:
        """Returns True for a view of these arrays, and for None: harmonics in words are left out if unchanged."""
        if given is None:
            return True
        own = self._arrays[kind, name][: self.count]
        own = own[:, : self.sh_rows] if name == "sh" else own
        return given.data_ptr() == own.data_ptr() and given.shape == own.shape and given.dtype == own.dtype

    def assign(self, state: Mapping[str, Mapping[str, DeviceArray]]) -> None:
        """Replaces the splats: kind -> parameter -> tensor [N, …] on any device, harmonics with any number of rows.

        Tensors that are views of these arrays stay as they are; other tensors must not overlap the arrays. Raw
        harmonics that are left out stay as well. Statistics become zero if the number of splats changes. Raises
        NoRoomError where there is no room for more; then nothing has changed.
        """
        count, sh_rows = state["first"]["sh"].shape[:2]
        arrays, rows, moves = self._arrays, self.rows, count > self.rows
        if moves:  # the old arrays stay until the larger ones are allocated
            rows = _rounded(ROW_GROWTH * count)
            arrays = self._new_arrays(rows)
        for kind in KINDS:
            for name, tensor in state[kind].items():
                if not moves and self._is_own(kind, name, tensor):
                    continue
                if name != "sh":
                    arrays[kind, name][:count].copy_(tensor)
                    continue
                targets, dtype = {"f32": arrays[kind, name]}, "f32"
                if kind == "raw":
                    targets, dtype = self._harmonics_in(arrays), self.sh_dtype
                for array in targets.values():
                    array[:count, sh_rows:].zero_()
                copy_harmonics({"f32": tensor}, "f32", {key: a[:count, :sh_rows] for key, a in targets.items()}, dtype)
        if moves:
            self._before_move()
            self._arrays, self.rows, self._scene = arrays, rows, None
        self.sh_rows = sh_rows
        if count != self.count:
            self.count, self._scene = count, None
            self.forget()

    def make_room(self, count: int) -> None:
        """Makes room for `count` splats and for the buffers of a step with them.

        Raises NoRoomError; then nothing has changed.
        """
        if count <= self.rows:
            return
        rows = _rounded(ROW_GROWTH * count)
        probe = self._memory.empty("training with more splats", (rows, BESIDE), "u1")
        arrays = self._new_arrays(rows)
        del probe  # a step finds at least this much
        for key, array in self._arrays.items():
            arrays[key][: self.count].copy_(array[: self.count])
        self._before_move()
        self._arrays, self.rows, self._scene = arrays, rows, None

    def keep_harmonics_as(self, sh_dtype: str) -> None:
        """Moves raw harmonics to arrays of another sh_dtype, to the bit, except that bf16 rounds to the nearest.

        Steps that were launched before may still run. Raises NoRoomError; then nothing has changed.
        """
        import torch

        if sh_dtype == self.sh_dtype:
            return
        new = self._new_harmonics(self.rows, sh_dtype)
        target = dict(zip(KEYS[sh_dtype], new.values(), strict=True))
        try:
            copy_harmonics(self._of_existing(self.harmonics), self.sh_dtype, self._of_existing(target), sh_dtype)
        except torch.OutOfMemoryError as error:
            raise NoRoomError(f"The GPU has no room to keep harmonics as {sh_dtype}.") from error
        self._before_move()
        others = {key: array for key, array in self._arrays.items() if key not in {("raw", name) for name in SH_ARRAYS}}
        self._arrays, self._scene, self.sh_dtype = others | new, None, sh_dtype

    def replace_rows(self, kept: DeviceArray, born: Mapping[str, DeviceArray]) -> None:
        """Keeps rows where the mask `kept` [N] is true, and adds the rows of `born` by parameter, with zero moments.

        New rows take the places of removed rows; remaining places are filled from the end. Statistics become zero if
        the number of splats changes. Raises NoRoomError; then nothing has changed.
        """
        import torch

        added, old = len(born["means"]), self.count
        gone = (~kept).nonzero()[:, 0]
        count = old - len(gone) + added
        self.make_room(count)
        appended = torch.arange(old, old + max(added - len(gone), 0), device=gone.device)
        places, left = torch.cat((gone[:added], appended)), gone[added:]
        targets = left[left < count]
        sources = kept[count:].nonzero()[:, 0] + count
        moved = {key: array[sources] for key, array in self._arrays.items() if key[0] in KINDS}
        for key, rows in moved.items():
            array = self._arrays[key]
            array.index_copy_(0, targets, rows)
            array.index_fill_(0, places, 0)
        self._write(places, born)
        if count != old:
            self.count, self._scene = count, None
            self.forget()

    def write_rows(self, rows: DeviceArray, raw: Mapping[str, DeviceArray], with_momentum: bool) -> None:
        """Writes parameters of the given rows [M]; their moments stay or are cleared."""
        self._write(rows, raw)
        for kind in () if with_momentum else KINDS[1:]:
            for name in SHAPES:
                self._arrays[kind, name].index_fill_(0, rows, 0)

    def reorder(self, order: DeviceArray) -> None:
        """Moves row order[i] to row i, statistics too. Raises torch.OutOfMemoryError; then nothing has changed."""
        import torch

        widest = self._arrays["first", "sh"][: self.count]
        scratch = torch.empty_like(widest).reshape(-1)
        for array in self._arrays.values():
            rows = array[: self.count]
            room = scratch if array.dtype == scratch.dtype else scratch.view(array.dtype)
            found = room[: rows.numel()].reshape(rows.shape)
            torch.index_select(rows, 0, order, out=found)
            rows.copy_(found)

    def raise_sh_rows(self, sh_rows: int) -> None:
        """Puts at least `sh_rows` rows of harmonics in use; new rows are zero."""
        self.sh_rows = max(self.sh_rows, sh_rows)

    def _write(self, rows: DeviceArray, values: Mapping[str, DeviceArray]) -> None:
        """Writes raw parameters. Rows of harmonics beyond those given stay."""
        for name, value in values.items():
            if name != "sh":
                self._arrays["raw", name].index_copy_(0, rows, value)
                continue
            for key, words in words_of(value, self.sh_dtype).items():
                self.harmonics[key][:, : value.shape[1]].index_copy_(0, rows, words)

    def gaussians(self) -> Gaussians:
        """Returns copies of the parameters on the host. Waits for the GPU."""
        return Gaussians(
            **{name: _fetched(tensor) for name, tensor in self.view("raw").items()}, primitive=self.primitive
        )

    def _new_arrays(self, rows: int) -> dict[tuple[str, str], DeviceArray]:
        """Returns new arrays of `rows` rows. Raises NoRoomError where there is no room."""
        arrays = {
            (kind, name): self._memory.empty(f"{kind} {name}", (rows, *shape), "f4")
            for kind in KINDS
            for name, shape in SHAPES.items()
            if (kind, name) != ("raw", "sh")
        }
        arrays |= self._new_harmonics(rows, self.sh_dtype)
        for name, dtype in (("pull", "f4"), ("seen", "u4"), ("stepped", "u4")):
            arrays["statistics", name] = self._memory.empty(name, (rows,), dtype)
        return arrays

    def _new_harmonics(self, rows: int, sh_dtype: str) -> dict[tuple[str, str], DeviceArray]:
        """Returns new arrays for raw harmonics."""
        names, dtype = SH_ARRAYS[: len(KEYS[sh_dtype])], "f4" if sh_dtype == "f32" else "u2"
        return {("raw", name): self._memory.empty(f"raw {name}", (rows, *SHAPES["sh"]), dtype) for name in names}

    def _of_existing(self, arrays: Mapping[str, DeviceArray]) -> dict[str, DeviceArray]:
        """Returns the existing rows of some arrays."""
        return {name: array[: self.count] for name, array in arrays.items()}

    def _harmonics_in(self, arrays: Mapping[tuple[str, str], DeviceArray]) -> dict[str, DeviceArray]:
        """Returns the raw harmonics among some arrays, by the names of `KEYS`."""
        keys = KEYS[self.sh_dtype]
        return {key: arrays["raw", name] for key, name in zip(keys, SH_ARRAYS[: len(keys)], strict=True)}


def _rounded(rows: float) -> int:
    return max(1, -(-int(rows) // ROOM_STEP)) * ROOM_STEP
