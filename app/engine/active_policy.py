"""Which policy pictures are made with: the wanted one once its kernels are there, until then the last that worked.

The engine polls this; compiling happens on the backend's own threads. A policy that cannot be compiled or drawn with
is refused in one sentence, and the one before stays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from splatscope.kernels.backend import Backend, LiveBackend
from splatscope.kernels.cuda.launch.compiler import CompileError
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Camera

_ANY_CAMERA = Camera.from_matrix(np.eye(4), 1280, 720, 1000, 1000, 640, 360)


class ActivePolicy:
    """Belongs to the engine's thread."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend if isinstance(backend, LiveBackend) else None
        self.current: Policy | None = None  # None until the first one is compiled
        self.refused: Policy | None = None
        self.compiling: tuple[str, ...] = ()  # stages the wanted one waits for
        self._proven: Policy | None = None  # the newest one that drew a picture

    def want(self, policy: Policy, camera: Camera) -> None:
        """Call it often: takes the policy if nothing is left to compile. Raises InputError if it cannot be had."""
        if policy in (self.current, self.refused):
            self.compiling = ()
            if policy == self.current:
                self.refused = None
            return
        self.refused = None
        if self._backend is not None:
            try:
                self.compiling = self._backend.waiting_for(camera, policy)
            except InputError as error:
                raise self._refuse(policy, str(error)) from error
            if self.compiling:
                return
        self.current = policy

    def prepare(self, policy: Policy) -> None:
        """Compiling begins before there is anything to see."""
        self.want(policy, _ANY_CAMERA)

    @contextmanager
    def on_trial(self) -> Iterator[None]:
        """A picture is made inside: what fails may be the current policy's fault, which is then refused."""
        try:
            yield
        except Exception as error:
            if refused := self._failed(error):
                raise refused from error
            raise

    def worked(self) -> None:
        """A picture was made with the current policy."""
        self._proven = self.current

    def _failed(self, error: Exception) -> InputError | None:
        """A picture could not be made: goes back to the policy before, if there is one, and says so.

        None if it was not the policy's fault.
        """
        if self._proven is None or self.current is None or self.current == self._proven:
            return InputError(one_sentence(error)) if isinstance(error, CompileError) else None
        return self._refuse(self.current, one_sentence(error))

    def _refuse(self, policy: Policy, reason: str) -> InputError:
        self.refused, self.compiling = policy, ()
        self.current = self._proven
        return InputError(f"This setting cannot be used; the one before stays. {reason}")


def one_sentence(error: Exception) -> str:
    """The first line of an error and, of a compiler's many, the first that is one; all of it goes to the terminal."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) < 2:
        return str(error)
    print(error, file=sys.stderr)
    reason = next((line for line in lines[1:] if "error" in line), lines[1])
    return f"{lines[0].rstrip(':')}: {reason}"
