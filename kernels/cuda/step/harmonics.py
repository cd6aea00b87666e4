"""Keeps harmonics as 16-bit words, which kernels read with sh_dtype = bf16 and split. Tensors of torch, on any device.

- bf16 rounds to the nearest word, ties to even.
- split cuts a float32 in two words that make the number again bit for bit: the upper word, rounded to a bfloat16, and
  the difference. Rounding to even could not be undone. Kernels read upper words alone and write gradients as bfloat16.
  An optimiser that steps the whole numbers reads and writes both words, as many bytes as float32.

Harmonics are passed on as they are kept: a dictionary of arrays with the names of `KEYS`. Readers:
`cuda/plan/passes.py` and sh.cuh; the optimiser's part: sh_words.cuh.
"""

from __future__ import annotations

from collections.abc import Mapping

from splatscope.kernels.cuda.launch.buffers import DeviceArray

# sh_dtype -> names of the arrays that harmonics are kept in; kernels read the first array.
KEYS = {"f32": ("f32",), "bf16": ("bf16",), "split": ("split", "split lower")}
AT_ONCE = 1 << 18  # rows converted at a time, so that there is no third copy of all rows


def bf16_words(sh: DeviceArray) -> DeviceArray:
    """Returns the nearest bfloat16 of each number, as int16."""
    import torch

    return sh.to(torch.bfloat16).view(torch.int16)


def split_words(sh: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """Returns (upper, lower) words of float32 numbers, each int16."""
    import torch

    bits = sh.contiguous().view(torch.int32)
    upper = ((bits + 0x8000) >> 16).to(torch.int16)
    return upper, (bits - (upper.to(torch.int32) << 16)).to(torch.int16)


def joined_words(upper: DeviceArray, lower: DeviceArray | None = None) -> DeviceArray:
    """Returns the float32 numbers that were split, or without lower words the numbers that the upper words are."""
    import torch

    bits = upper.to(torch.int32)
    bits <<= 16
    if lower is not None:
        bits += lower
    return bits.view(torch.float32)


def words_of(sh: DeviceArray, dtype: str) -> dict[str, DeviceArray]:
    """Returns float32 harmonics as they are kept for an sh_dtype: for f32 the very array, else new arrays."""
    if dtype == "f32":
        return {"f32": sh}
    if dtype == "bf16":
        return {"bf16": bf16_words(sh)}
    return dict(zip(KEYS["split"], split_words(sh), strict=True))


def numbers_of(kept: Mapping[str, DeviceArray], dtype: str) -> DeviceArray:
    """Returns harmonics that are kept for an sh_dtype as float32: for f32 the very array, else a new array."""
    return kept["f32"] if dtype == "f32" else joined_words(*(kept[name] for name in KEYS[dtype]))


def copy_harmonics(
    kept: Mapping[str, DeviceArray], dtype: str, target: Mapping[str, DeviceArray], target_dtype: str
) -> None:
    """Copies harmonics that are kept for one sh_dtype to the arrays of another sh_dtype, which have as many rows."""
    for start in range(0, len(kept[KEYS[dtype][0]]), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        numbers = numbers_of({name: kept[name][rows] for name in KEYS[dtype]}, dtype)
        for name, words in words_of(numbers, target_dtype).items():
            target[name][rows].copy_(words)


def convert_harmonics(kept: Mapping[str, DeviceArray], dtype: str, target_dtype: str) -> dict[str, DeviceArray]:
    """Returns harmonics that are kept for one sh_dtype as new arrays of another sh_dtype."""
    import torch

    shape, device = kept[KEYS[dtype][0]].shape, kept[KEYS[dtype][0]].device
    kind = torch.float32 if target_dtype == "f32" else torch.int16
    target = {name: torch.empty(shape, dtype=kind, device=device) for name in KEYS[target_dtype]}
    copy_harmonics(kept, dtype, target, target_dtype)
    return target
