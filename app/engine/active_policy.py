"""Chooses the policy that pictures are made with: the wanted one once it is compiled, until then the last that worked.

The engine asks often; the backend compiles on threads of its own. A policy that cannot be compiled or drawn with is
refused in one sentence, and the one before stays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from splatscope.kernels.backend import Backend, LiveBackend
from splatscope.kernels.cuda.launch.compiler import CompileError
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.types import Camera
from splatscope.viewer.messages.view import ViewRequest

_ANY_CAMERA = Camera.from_matrix(np.eye(4), 1280, 720, 1000, 1000, 640, 360)


class ActivePolicy:
    """Keeps the current policy and the newest refused one. Belongs to the engine's thread."""

    def __init__(self) -> None:
        self._backend: Backend | None = None  # nothing is taken or refused until there is one
        self.current: Policy | None = None  # None until the first one is compiled
        self.refused: Policy | None = None
        self.compiling: tuple[str, ...] = ()  # stages the wanted one waits for
        self._proven: Policy | None = None  # the newest one that drew a picture
        self._primitive: Primitive = "3dgs"  # of the splats that are drawn; each has kernels of its own

    def begin(self, backend: Backend, policy: Policy) -> None:
        """Begins to compile the first policy, before there is anything to draw. Raises InputError as `want` does."""
        self._backend = backend
        self.want(policy, _ANY_CAMERA)

    def want(self, policy: Policy, camera: Camera, primitive: Primitive | None = None) -> bool:
        """Takes the policy if nothing is left to compile; True if anything has changed. Call it often. `primitive`:
        what the splats of the scene are, None if there are none.

        Raises InputError if the policy cannot be compiled.
        """
        before = self.current, self.compiling, self.refused
        if primitive is not None and primitive != self._primitive:
            self._primitive, self.current, self.refused = primitive, None, None
        self._want(policy, camera)
        return before != (self.current, self.compiling, self.refused)

    def _want(self, policy: Policy, camera: Camera) -> None:
        if self._backend is None:
            return
        if policy in (self.current, self.refused):
            self.compiling = ()
            if policy == self.current:
                self.refused = None
            return
        self.refused = None
        if isinstance(self._backend, LiveBackend):
            try:
                self.compiling = self._backend.waiting_for(camera, policy, self._primitive)
            except InputError as error:
                raise self._refuse(policy, str(error)) from error
            if self.compiling:
                return
        self.current = policy

    def adapt(self, request: ViewRequest) -> ViewRequest:
        """Returns the request as it can be drawn now: with the current policy, if there is one."""
        return request if self.current is None else replace(request, policy=self.current)

    @contextmanager
    def on_trial(self) -> Iterator[None]:
        """Surrounds the drawing of a picture: if that fails and the policy may be the cause, refuses the policy."""
        try:
            yield
        except Exception as error:
            if refused := self._judge(error):
                raise refused from error
            raise

    def note_success(self) -> None:
        """Notes that a picture was made with the current policy."""
        self._proven = self.current

    def _judge(self, error: Exception) -> InputError | None:
        """Returns to the policy before, if there is one, and makes the error that says so.

        None if the picture did not fail by the policy's fault.
        """
        if self._proven is None or self.current is None or self.current == self._proven:
            return InputError(first_error(error)) if isinstance(error, CompileError) else None
        return self._refuse(self.current, first_error(error))

    def _refuse(self, policy: Policy, reason: str) -> InputError:
        self.refused, self.compiling = policy, ()
        self.current = self._proven
        return InputError(f"This setting cannot be used; the one before stays. {reason}")


def first_error(error: Exception) -> str:
    """Returns one sentence: the first line of an error, and of a compiler's many lines the first with an error.

    If there is more than one line, all of them go to the terminal.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) < 2:
        return str(error)
    print(error, file=sys.stderr)
    reason = next((line for line in lines[1:] if "error" in line), lines[1])
    return f"{lines[0].rstrip(':')}: {reason}"
