"""Reads a clock inside kernels: nanoseconds from the operating system, the same on all threads.

`HAS_CLOCK` is false where kernels cannot call a clock; `now_ns` then returns 0. `blend.py` uses both.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

HAS_CLOCK = sys.platform in ("linux", "darwin")
_MONOTONIC = 6 if sys.platform == "darwin" else 1  # CLOCK_MONOTONIC
_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _now_ns(typing_context: Any) -> Any:
    """Emits a call that returns nanoseconds since a fixed moment."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not HAS_CLOCK:
            return _I64(0)
        time = cgutils.alloca_once(builder, ir.LiteralStructType([_I64, _I64]))
        kind = ir.FunctionType(_I32, [_I32, time.type])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "clock_gettime"), [_I32(_MONOTONIC), time])
        seconds, rest = (builder.load(cgutils.gep_inbounds(builder, time, 0, i)) for i in range(2))
        return builder.add(builder.mul(seconds, _I64(1_000_000_000)), rest)

    return types.int64(), emit


now_ns: Any = intrinsic(_now_ns)  # kernels call it without arguments
