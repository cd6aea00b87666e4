"""Declares the errors of a run, in a module light enough to be imported where torch is not."""

from __future__ import annotations

from pathlib import Path

from splatscope.kernels.errors import InputError


class StandstillError(InputError):
    """Tells that a run cannot continue as it is. Its splats, of iteration `reached`, are whole and can be saved."""

    reached: int
    remedy: tuple[str, ...] = ()  # settings (NAME=VALUE) with which it can continue from there


class NotFiniteError(StandstillError):
    """Tells that a step was not taken, because a number in it is NaN or infinite. The splats are those of the iteration
    before.
    """

    def __init__(self, tensor: str, view: str, iteration: int, detail: str = "") -> None:
        super().__init__(
            f"Training paused at iteration {iteration}: the {tensor} on {view} is not a finite number{detail}. "
            f"The splats of iteration {iteration - 1} are intact; training can continue with another photograph. If "
            f"it comes again, go back, and check {view} and its camera or lower the learning rates."
        )
        self.tensor, self.view, self.iteration = tensor, view, iteration
        self.reached = iteration - 1  # iteration of the present splats


class NoSplatsLeftError(StandstillError):
    """Tells that a refine would have removed every splat, so it was not carried out."""

    def __init__(self, sentence: str, iteration: int, remedy: tuple[str, ...]) -> None:
        super().__init__(sentence)
        self.reached, self.remedy = iteration, remedy


class NotSavedError(InputError):
    """Tells that part of a state could not be written; every other part was written."""

    def __init__(self, sentence: str, what: tuple[str, ...], path: Path | None) -> None:
        """Keeps `what` could not be written, and the `path` of the splats; None if they were not written."""
        super().__init__(sentence)
        self.what, self.path = what, path
