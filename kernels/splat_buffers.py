"""Splats under training in device memory: parameters, both moments, and what density control wants to know.

All arrays have room for `rows` splats, of which the first `count` exist, so that splats come and go without a new
address while the room lasts: captured graphs stay valid. Harmonics always have 16 rows; those above the degree in use
are zero. Rows are the first axis everywhere. What changes them: `training_step.py`, and between steps `assign` and the
methods after it, which move no more rows than they must and need no memory but for the rows they move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from splatscope.kernels.constants import SH_COEFFICIENTS
from splatscope.kernels.cuda_buffers import Memory
from splatscope.kernels.passes import SH_ROWS, Scene
from splatscope.kernels.types import Float32, Gaussians

SHAPES: dict[str, tuple[int, ...]] = {
    "means": (3,),
    "log_scales": (3,),
    "quats": (4,),
    "logit_opacities": (),
    "sh": (SH_ROWS, 3),
}
KINDS = ("raw", "first", "second")  # parameters, first and second moments
BESIDE = 256  # bytes a row, about, of a step's own buffers (cuda_buffers.py) in addition to these
ROOM_STEP = 4096  # rows are multiples
GROWTH = 1.3  # of what was asked for, when rows run out


class DeviceGaussians(Gaussians):
    """Splats on a GPU in the place of ones on the host. A CUDA backend draws `scene` as it is; whoever asks for an
    array gets a copy, made at that moment. Before either `before_read` is called."""

    def __init__(self, scene: Scene, sh_rows: int, before_read: Callable[[], None]) -> None:
        object.__setattr__(self, "_scene", scene)
        object.__setattr__(self, "_sh_rows", sh_rows)
        object.__setattr__(self, "_before_read", before_read)

    @property
    def scene(self) -> Scene:
        """The live tensors, up to date until the next step."""
        self._before_read()
        return self._scene

    @property
    def count(self) -> int:
        return self._scene.count

    @property
    def sh_degree(self) -> int:
        return SH_COEFFICIENTS[self._sh_rows]

    def __getattribute__(self, name: str) -> Any:
        if name in SHAPES:
            tensor = self.scene.sh["f32"][:, : self._sh_rows] if name == "sh" else getattr(self.scene, name)
            return _fetched(tensor)
        return super().__getattribute__(name)


def _fetched(tensor: Any) -> Float32:
    return np.ascontiguousarray(tensor.cpu().numpy()).copy()


class SplatBuffers:
    """`rows` splats' worth of memory. `before_move` is called before addresses change: let go of them."""

    def __init__(self, memory: Memory, gaussians: Gaussians, rows: int, before_move: Callable[[], None]) -> None:
        import torch

        self._memory, self._before_move = memory, before_move
        self._scene: Scene | None = None
        self.count = self.sh_rows = 0
        self.rows = _rounded(max(rows, gaussians.count))
        self._arrays = self._new_arrays(self.rows)
        self.forget()
        tensors = {name: torch.from_numpy(np.array(getattr(gaussians, name), np.float32)) for name in SHAPES}
        zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        self.assign({"raw": tensors, "first": zeros, "second": zeros})

    def array(self, kind: str, name: str) -> Any:
        """All rows of one array, those that do not exist included: what kernels are given."""
        return self._arrays[kind, name]

    def view(self, kind: str) -> dict[str, Any]:
        """The existing rows of one kind by parameter, `sh_rows` of harmonics: views that later steps change."""
        views = {name: self._arrays[kind, name][: self.count] for name in SHAPES}
        return views | {"sh": views["sh"][:, : self.sh_rows]}

    @property
    def pull(self) -> Any:
        """[N] summed length of dL/d(projected mean) in NDC units."""
        return self._arrays["statistics", "pull"][: self.count]

    @property
    def stepped(self) -> Any:
        """[rows] int32: the step after which the harmonics stand (cuda/lazy.cuh)."""
        return self._arrays["statistics", "stepped"]

    @property
    def seen(self) -> Any:
        """[N] int32: steps that saw the splat, since `forget`."""
        return self._arrays["statistics", "seen"][: self.count]

    def forget(self) -> None:
        """Begins the statistics anew."""
        for name in ("pull", "seen"):
            self._arrays["statistics", name].zero_()

    @property
    def scene(self) -> Scene:
        """The live parameters as the renderer takes them, no copies. The same object while count and place stay."""
        if self._scene is None:
            raw = {name: self._arrays["raw", name][: self.count] for name in SHAPES}
            self._scene = Scene(self.count, 3, sh={"f32": raw.pop("sh")}, **raw)
        return self._scene

    def holds(self, state: Mapping[str, Mapping[str, Any]], name: str) -> bool:
        """Whether all kinds of a parameter are these arrays' own."""
        own = [self.view(kind)[name] for kind in KINDS]
        given = [state[kind][name] for kind in KINDS]
        return all(a.data_ptr() == b.data_ptr() and a.shape == b.shape for a, b in zip(own, given, strict=True))

    def assign(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Other splats: kind -> parameter -> tensor [N, …] on any device, harmonics with as many rows as they have.

        Tensors that are views of these arrays stay as they are; others must not overlap them. Statistics begin anew
        if the number of splats changes. Raises NoRoomError where there is no room for more; then nothing has changed.
        """
        count, sh_rows = state["raw"]["sh"].shape[:2]
        own = {(kind, name): tensor for kind in KINDS for name, tensor in self.view(kind).items()}
        arrays, rows, moves = self._arrays, self.rows, count > self.rows
        if moves:  # what there is stays until the larger arrays have been had
            rows, own = _rounded(GROWTH * count), {}
            arrays = self._new_arrays(rows)
        for kind in KINDS:
            for name, tensor in state[kind].items():
                old = own.get((kind, name))
                if old is not None and tensor.data_ptr() == old.data_ptr() and tensor.shape == old.shape:
                    continue
                array = arrays[kind, name][:count]
                if name == "sh":
                    array[:, sh_rows:].zero_()
                    array = array[:, :sh_rows]
                array.copy_(tensor)
        if moves:
            self._before_move()
            self._arrays, self.rows, self._scene = arrays, rows, None
        self.sh_rows = sh_rows
        if count != self.count:
            self.count, self._scene = count, None
            self.forget()

    def make_room(self, count: int) -> None:
        """Room for so many splats and for what a step with them needs. Raises NoRoomError; then nothing has changed."""
        if count <= self.rows:
            return
        rows = _rounded(GROWTH * count)
        beside = self._memory.empty("training with more splats", (rows, BESIDE), "u1")
        arrays = self._new_arrays(rows)
        del beside  # a step finds that much
        for key, array in self._arrays.items():
            arrays[key][: self.count].copy_(array[: self.count])
        self._before_move()
        self._arrays, self.rows, self._scene = arrays, rows, None

    def replace_rows(self, kept: Any, born: Mapping[str, Any]) -> None:
        """Only the rows where the mask `kept` [N] is true, and those of `born` by parameter, with zero moments.

        What is born takes the places of rows that go; what places are left over then are filled from the end.
        Statistics begin anew if the number of splats changes. Raises NoRoomError; then nothing has changed.
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
        moved = {(kind, name): self._arrays[kind, name][sources] for kind in KINDS for name in SHAPES}
        for (kind, name), rows in moved.items():
            array = self._arrays[kind, name]
            array.index_copy_(0, targets, rows)
            array.index_fill_(0, places, 0)
        self._write("raw", places, born)
        if count != old:
            self.count, self._scene = count, None
            self.forget()

    def write_rows(self, rows: Any, raw: Mapping[str, Any], with_momentum: bool) -> None:
        """Other parameters in the given rows [M]; moments stay or are cleared."""
        self._write("raw", rows, raw)
        for kind in () if with_momentum else KINDS[1:]:
            for name in SHAPES:
                self._arrays[kind, name].index_fill_(0, rows, 0)

    def reorder(self, order: Any) -> None:
        """Row i from row order[i], statistics as well. Raises torch.OutOfMemoryError; then nothing has changed."""
        import torch

        widest = self._arrays["raw", "sh"][: self.count]
        scratch = torch.empty_like(widest).reshape(-1)
        for array in self._arrays.values():
            rows = array[: self.count]
            room = scratch if array.dtype == scratch.dtype else scratch.view(array.dtype)
            found = room[: rows.numel()].reshape(rows.shape)
            torch.index_select(rows, 0, order, out=found)
            rows.copy_(found)

    def raise_sh_rows(self, sh_rows: int) -> None:
        """Puts so many rows of harmonics in use at least; new ones are zero."""
        self.sh_rows = max(self.sh_rows, sh_rows)

    def _write(self, kind: str, rows: Any, values: Mapping[str, Any]) -> None:
        """Harmonics beyond those given stay."""
        for name, value in values.items():
            array = self._arrays[kind, name]
            (array if name != "sh" else array[:, : value.shape[1]]).index_copy_(0, rows, value)

    def gaussians(self) -> Gaussians:
        """Copies of the parameters on the host. Waits for the GPU."""
        return Gaussians(**{name: _fetched(tensor) for name, tensor in self.view("raw").items()})

    def _new_arrays(self, rows: int) -> dict[tuple[str, str], Any]:
        """Arrays of so many rows. Raises NoRoomError where there is no room."""
        arrays = {
            (kind, name): self._memory.empty(f"{kind} {name}", (rows, *shape), "f4")
            for kind in KINDS
            for name, shape in SHAPES.items()
        }
        for name, dtype in (("pull", "f4"), ("seen", "u4"), ("stepped", "u4")):
            arrays["statistics", name] = self._memory.empty(name, (rows,), dtype)
        return arrays


def _rounded(rows: float) -> int:
    return max(1, -(-int(rows) // ROOM_STEP)) * ROOM_STEP
