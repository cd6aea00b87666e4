"""What may go wrong in a step, light enough to be imported where torch is not."""

from __future__ import annotations

from splatscope.kernels.errors import InputError


class NotFiniteError(InputError):
    """A step was not taken: a number in it is NaN or infinite. The splats are those of the iteration before."""

    def __init__(self, tensor: str, view: str, iteration: int, detail: str = "") -> None:
        super().__init__(
            f"Training paused at iteration {iteration}: the {tensor} on {view} is not a finite number{detail}. "
            f"The splats of iteration {iteration - 1} are intact. Start goes on with another photograph; if it comes "
            f"again, check {view} and its camera, lower the learning rates, or resume an earlier checkpoint."
        )
        self.tensor, self.view, self.iteration = tensor, view, iteration
        self.reached = iteration - 1  # iteration whose splats there are
