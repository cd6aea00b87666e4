"""Makes measurements that fail in a process of their own. Imports nothing slow, because each process loads it."""

from __future__ import annotations

import os
import signal

from splatscope.kernels.errors import InputError


def refused() -> None:
    """Raises the error of a request that cannot be met."""
    raise InputError("There is no training preset 'x'.")


def killed() -> None:
    """Ends the process as the system does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def crashed() -> None:
    """Raises an error of two lines that nobody expects."""
    raise RuntimeError("no picture\nand more")
