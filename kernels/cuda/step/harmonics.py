"""Harmonics as 16-bit words: what kernels read with sh_dtype = bf16 and split. Tensors of torch, on any device.

bf16 rounds to the nearest word, ties to even. split cuts a float32 in two that make it again bit for bit: the upper
word, rounded so that it is a bfloat16 of its own, and what that lost. Rounding to even could not be undone. Kernels
read upper words alone and write gradients as bfloat16; an optimiser that steps the whole numbers reads and writes both
words, as many bytes as float32. Harmonics are handed round as they are kept: a dictionary of arrays that has the names
of `KEYS`. Who reads them: `cuda/plan/passes.py` and sh.cuh; who steps them: sh_words.cuh.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# sh_dtype -> names of the arrays that harmonics are kept in, first the one that kernels read.
KEYS = {"f32": ("f32",), "bf16": ("bf16",), "split": ("split", "split lower")}
AT_ONCE = 1 << 18  # rows that are turned into another dtype, lest there be a third copy of all


def bf16_words(sh: Any) -> Any:
    """The nearest bfloat16 of each number, as int16."""
    import torch

    return sh.to(torch.bfloat16).view(torch.int16)


def split_words(sh: Any) -> tuple[Any, Any]:
    """(upper, lower) words of float32 numbers, each int16."""
    import torch

    bits = sh.contiguous().view(torch.int32)
    upper = ((bits + 0x8000) >> 16).to(torch.int16)
    return upper, (bits - (upper.to(torch.int32) << 16)).to(torch.int16)


def joined_words(upper: Any, lower: Any | None = None) -> Any:
    """The float32 numbers that were split; without lower words, those that the upper ones are."""
    import torch

    bits = upper.to(torch.int32)
    bits <<= 16
    if lower is not None:
        bits += lower
    return bits.view(torch.float32)


def words_of(sh: Any, dtype: str) -> dict[str, Any]:
    """Float32 harmonics as they are kept for an sh_dtype; the numbers themselves for f32."""
    if dtype == "f32":
        return {"f32": sh}
    if dtype == "bf16":
        return {"bf16": bf16_words(sh)}
    return dict(zip(KEYS["split"], split_words(sh), strict=True))


def numbers_of(kept: Mapping[str, Any], dtype: str) -> Any:
    """Harmonics that are kept for an sh_dtype as float32: for f32 the very array, else a new one."""
    return kept["f32"] if dtype == "f32" else joined_words(*(kept[name] for name in KEYS[dtype]))


def copy_harmonics(kept: Mapping[str, Any], dtype: str, target: Mapping[str, Any], target_dtype: str) -> None:
    """Brings harmonics that are kept for one sh_dtype into the arrays of another, which have as many rows."""
    for start in range(0, len(kept[KEYS[dtype][0]]), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        numbers = numbers_of({name: kept[name][rows] for name in KEYS[dtype]}, dtype)
        for name, words in words_of(numbers, target_dtype).items():
            target[name][rows].copy_(words)


def made_anew(kept: Mapping[str, Any], dtype: str, target_dtype: str) -> dict[str, Any]:
    """Harmonics that are kept for one sh_dtype as new arrays of another."""
    import torch

    shape, device = kept[KEYS[dtype][0]].shape, kept[KEYS[dtype][0]].device
    kind = torch.float32 if target_dtype == "f32" else torch.int16
    target = {name: torch.empty(shape, dtype=kind, device=device) for name in KEYS[target_dtype]}
    copy_harmonics(kept, dtype, target, target_dtype)
    return target
