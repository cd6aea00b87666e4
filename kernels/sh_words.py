"""Harmonics as 16-bit words: what kernels read with sh_dtype = bf16 and split. Tensors of torch, on any device.

bf16 rounds to the nearest word, ties to even. split cuts a float32 in two that make it again bit for bit: the upper
word, rounded so that it is a bfloat16 of its own, and what that lost. Rounding to even could not be undone. Kernels
read upper words alone and write gradients as bfloat16; an optimiser that steps the whole numbers reads and writes both
words, as many bytes as float32. Who reads them: `passes.py` and sh.cuh.
"""

from __future__ import annotations

from typing import Any


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


def joined_words(upper: Any, lower: Any) -> Any:
    """The float32 numbers that were split."""
    import torch

    return ((upper.to(torch.int32) << 16) + lower.to(torch.int32)).view(torch.float32)


def words_of(sh: Any, dtype: str) -> dict[str, Any]:
    """What a scene of float32 harmonics keeps for an sh_dtype: {its key: what kernels read, and the rest}."""
    if dtype == "bf16":
        return {"bf16": bf16_words(sh)}
    upper, lower = split_words(sh)
    return {"split": upper, "split lower": lower}
