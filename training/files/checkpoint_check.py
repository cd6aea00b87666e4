"""Checks that a checkpoint holds what a run needs, before anything of it is used.

Nothing in the file is trusted: neither that its bytes are those written, nor a length, a shape, a type or a name.
`run_record.py` compares the parts that depend on the run: the statistics of its strategy, its views. Read
`checkpoint.py` for what the parts are.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Mapping
from typing import IO, Any, get_args

import torch
from torch import Tensor

from splatscope.kernels.constants import SH_COEFFICIENTS
from splatscope.kernels.wording import counted
from splatscope.training.stopwatch import Activity

_SPLATS = {"means": (3,), "log_scales": (3,), "quats": (4,), "logit_opacities": (), "sh": (None, 3)}  # shapes after [N]
_MOST_ITERATIONS = 10**12
# Values for the parts that a file from an earlier version lacks: parts of the information, and tensors.
EARLIER: dict[str, Any] = {"offset": [0, 0, 0], "views": [], "moments_since": 0, "random": {}, "scores": []}
EARLIER |= {"seconds": {}}
EARLIER_TENSORS = {"epoch": torch.int64, "losses": torch.float32, "random": torch.uint8}  # empty ones


def archive_is_whole(file: IO[bytes]) -> bool:
    """Returns True if the file is the archive that torch writes, uncompressed, and every byte of it is as written.

    torch itself would trust the size that a compressed entry claims, and would read flipped bits as numbers.
    """
    size = file.seek(0, 2)
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
            return stored and sum(entry.file_size for entry in entries) <= size and archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError, NotImplementedError):
        return False
    finally:
        file.seek(0)


def complete(tensors: dict[str, Tensor], info: Any) -> tuple[str, ...]:
    """Fills in the parts that older versions did not keep, and returns their names. The archive is whole, so no part
    was lost. Missing settings get their defaults elsewhere (`config.config_from_dict`)."""
    if not isinstance(info, dict):
        return ()
    if "training_seconds" in info:  # the only seconds that earlier versions kept
        info.setdefault("seconds", {"training": info.pop("training_seconds")})
    filled = {**EARLIER, "settled": info.get("iteration")}
    lacks = [name for name in filled if name not in info]
    info |= {name: filled[name] for name in lacks}
    if "views" in lacks:  # the epoch's numbers mean nothing without the names of the views
        tensors.pop("epoch", None)
    for name, kind in EARLIER_TENSORS.items():
        if name not in tensors:
            tensors[name] = torch.zeros(0, dtype=kind)
            lacks.append(name)
    return tuple(dict.fromkeys(lacks))


def mistake_in(tensors: Mapping[str, Tensor], info: Any) -> str | None:
    """Returns what is wrong with the content of a checkpoint, in a few words; None if nothing is."""
    return _mistake_in_info(info) or _mistake_in_tensors(tensors, info)


def _mistake_in_info(info: Any) -> str | None:
    if not isinstance(info, Mapping):
        return "it has no settings"
    for name, is_right in _INFO.items():
        if name not in info or not is_right(info[name]):
            return f"its {name} is missing or makes no sense"
    if max(info["settled"], info["moments_since"]) > info["iteration"]:
        return "its iterations contradict each other"
    return None


def _mistake_in_tensors(tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> str | None:
    for name, tensor in tensors.items():
        plain = type(tensor) is Tensor and tensor.layout == torch.strided and tensor.device.type == "cpu"
        # A stride of zero makes a tensor of any size out of one number.
        if not plain or tensor.requires_grad or tensor.nbytes > tensor.untyped_storage().nbytes():
            return f"{name} is not plain numbers"
    means = tensors.get("raw.means")
    count = len(means) if means is not None and means.dim() else 0
    if count == 0:
        return "it has no splats"
    rows = None
    for group in ("raw", "first", "second"):
        for part, shape in _SPLATS.items():
            tensor = tensors.get(f"{group}.{part}")
            if part == "sh" and rows is None and tensor is not None and tensor.dim() == 3:
                rows = tensor.shape[1] if tensor.shape[1] in SH_COEFFICIENTS else None
            wanted = (count, *(rows if side is None else side for side in shape))
            if tensor is None:
                return f"{group}.{part} is missing"
            if tensor.dtype != torch.float32 or tuple(tensor.shape) != wanted:
                return f"{group}.{part} does not belong to its {counted(count, 'splat')}"
    for name, kind in (("epoch", torch.int64), ("losses", torch.float32), ("random", torch.uint8)):
        tensor = tensors.get(name)
        if tensor is None or tensor.dtype != kind or tensor.dim() != 1:
            return f"its {name} is missing or makes no sense"
    epoch = tensors["epoch"]
    if len(epoch) and not 0 <= int(epoch.min()) <= int(epoch.max()) < len(info["views"]):
        return "its epoch names views that do not exist"
    return None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_ITERATIONS


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_time(entry: tuple[Any, Any]) -> bool:
    return entry[0] in get_args(Activity) and _is_number(entry[1]) and entry[1] >= 0


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_place(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(_is_number(item) for item in value)


def _are_scores(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, Mapping) and _is_whole(row.get("iteration")) and _is_number(row.get("psnr"))
        and _is_number(row.get("ssim")) and _is_whole(row.get("splats", 0))
        for row in value
    )  # fmt: skip


_INFO: dict[str, Callable[[Any], bool]] = {
    "iteration": _is_whole,
    "settings": lambda value: isinstance(value, Mapping),
    "source": lambda value: isinstance(value, str),
    "offset": _is_place,
    "views": _are_texts,
    "settled": _is_whole,
    "moments_since": _is_whole,
    "random": lambda value: isinstance(value, Mapping),
    "scores": _are_scores,
    "seconds": lambda value: isinstance(value, Mapping) and all(map(_is_time, value.items())),
}
