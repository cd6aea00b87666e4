"""Decides how much the photographs are reduced at each iteration: small ones first, full size in the end.

`halving` doubles the size at regular intervals. `frequency` takes the pace from the photographs (Chen et al. 2025,
DashGaussian): early in training only low frequencies matter, and the number of pixels grows with the share of the
spectrum that should be seen by now. Read `dataset.py` for the reduced photographs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from splatscope.training.config import ResolutionConfig

LEVELS = 32  # equal parts of the visible share of the spectrum
FIRST_SHARE = 0.25  # share of the spectrum's magnitude that the smallest pictures still hold
SPECTRA = 16  # photographs whose spectra are looked at
BINS = 1024


class ResolutionSchedule:
    """Maps an iteration to the whole number that widths and heights are divided by."""

    def __init__(self, config: ResolutionConfig, photographs: Sequence[NDArray[np.uint8]]) -> None:
        """Takes photographs [H, W, 3] at full training size; only `frequency` looks at them."""
        self._config = config
        self._divisors: list[int] = []  # frequency: of iterations from 0 until they are 1
        if config.schedule == "frequency" and config.until > 0:
            some = photographs[:: max(1, len(photographs) // SPECTRA)][:SPECTRA]
            times, inverse_squares = _frequency_levels(some, config.until, config.most)
            exact = 1 / np.sqrt(np.interp(np.arange(config.until), times, inverse_squares))
            self._divisors = np.maximum(1, (exact + 1e-9).astype(int)).tolist()

    def divisor(self, iteration: int) -> int:
        """Returns the number that sizes are divided by in the step `iteration`, counted from 1."""
        c = self._config
        if c.schedule == "halving":
            return 2 ** max(c.num_downscales - (iteration - 1) // c.interval, 0)
        return self._divisors[iteration] if iteration < len(self._divisors) else 1

    def next_divisor(self, iteration: int) -> int:
        """Returns the divisor that follows the one of the step `iteration`; 1 if no other follows."""
        now, c = self.divisor(iteration), self._config
        if c.schedule == "halving":
            return max(now // 2, 1)
        return next((divisor for divisor in self._divisors[iteration:] if divisor != now), 1)


def _frequency_levels(
    photographs: Sequence[NDArray[np.uint8]], until: int, most: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns iterations at which levels begin, and 1 / divisor^2 there; between them it rises linearly."""
    sums = np.array([_visible_magnitude(picture) for picture in photographs])
    share = 1 / np.linspace(1 / BINS, 1, BINS)  # divisor that leaves each bin's frequencies and those below
    coarsest = [share[np.searchsorted(row, FIRST_SHARE * row[-1])] for row in sums]
    largest = float(np.clip(min(coarsest), 1, most))
    visible = sums.mean(axis=0)
    first = np.interp(1 / largest, 1 / share, visible)
    levels = np.linspace(first, visible[-1], LEVELS)
    divisors = 1 / np.interp(levels, visible, 1 / share)
    times = until * np.log(levels / first) / max(np.log(visible[-1] / first), 1e-9)
    return times, 1 / divisors**2


def _visible_magnitude(picture: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Returns the magnitude of the spectrum at and below each of `BINS` shares of the highest frequency, summed over
    channels."""
    spectrum = np.abs(np.fft.fft2(picture.astype(np.float32), axes=(0, 1))).sum(axis=2)
    rows = 2 * np.abs(np.fft.fftfreq(picture.shape[0]))
    columns = 2 * np.abs(np.fft.fftfreq(picture.shape[1]))
    frequency = np.maximum(rows[:, None], columns[None])
    sums, _ = np.histogram(frequency, BINS, (0, 1), weights=spectrum)
    return np.cumsum(sums)
