"""Gives each step its photographs, reduced to the size of that iteration. Read `sizes.py` for which size that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from splatscope.training.config import ResolutionConfig
from splatscope.training.data.dataset import Dataset, Photograph
from splatscope.training.data.sizes import ResolutionSchedule


class StepViews:
    """Holds the training views of a loaded dataset at the size of the newest iteration asked for."""

    def __init__(
        self, dataset: Dataset, config: ResolutionConfig, expect: Callable[[Sequence[Photograph]], None]
    ) -> None:
        """Prepares the views. `expect` is called with the views of each new size before steps read them."""
        self._dataset, self._expect = dataset, expect
        self._sizes = ResolutionSchedule(config, [view.pixels for view in dataset.training])
        self._newest: list[Photograph] | None = None  # views that `expect` was called with

    def divisor(self, iteration: int) -> int:
        """Returns the number that the sides of photographs are divided by in the step of this iteration."""
        return self._sizes.divisor(iteration)

    def is_resized_after(self, iteration: int) -> bool:
        """Returns True if the next iteration has photographs of another size."""
        return self.divisor(iteration) != self.divisor(iteration + 1)

    def at(self, iteration: int) -> list[Photograph]:
        """Returns the training views at the size of this iteration, and starts to make those of the next size."""
        views = self._dataset.training_at(self.divisor(iteration))
        if views is not self._newest:
            self._newest = views
            self._expect(views)
            self._dataset.reduce_ahead(self._sizes.next_divisor(iteration))
        return views
