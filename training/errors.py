"""What may go wrong in a step, light enough to be imported where torch is not."""

from __future__ import annotations

from splatscope.kernels.errors import InputError


class NotFiniteError(InputError):
    """A step was not taken: a number in it is NaN or infinite. The splats are those of the iteration before."""

    def __init__(self, tensor: str, view: str, iteration: int, detail: str = "") -> None:
        super().__init__(
            f"Training paused at iteration {iteration}: the {tensor} on {view} is not a finite number{detail}. "
            f"The splats of iteration {iteration - 1} are intact; training can go on with another photograph. If it "
            f"comes again, go back, and check {view} and its camera or lower the learning rates."
        )
        self.tensor, self.view, self.iteration = tensor, view, iteration
        self.reached = iteration - 1  # iteration whose splats there are
