"""Measures the window's own time per frame and its frames per second. No GUI."""

from __future__ import annotations

from dataclasses import dataclass

SMOOTHING = 0.1  # weight of the newest frame
AWAKE_HZ = 60.0  # frames a second while somebody uses the window
MORE_FRAMES = 1.15  # times the pictures a second, so that no picture waits for long
LEAST_HZ = 24.0  # lowest rate, so that the mouse does not feel slow


def awake_hz(trains: bool, is_at_view: bool, pictures: float) -> float:
    """Returns the window's frames a second while somebody uses it; `pictures` is the most pictures a second.

    While a run is viewed, there are hardly more frames than pictures: a frame without a new picture shows nothing new,
    and takes Python's lock from the engine.
    """
    return min(AWAKE_HZ, max(LEAST_HZ, MORE_FRAMES * pictures)) if trains and is_at_view else AWAKE_HZ


@dataclass
class FrameRate:
    """Averages the main thread's times; the engine's rendering is not included."""

    ms: float = 0.0  # per frame: input, panels, upload, drawing
    seconds_apart: float = 0.0
    _began: float | None = None

    def note(self, seconds: float, began: float) -> None:
        """Adds a frame that took `seconds` and began at `began`, on any clock in seconds."""
        if self._began is None:
            self.ms = 1e3 * seconds
        else:
            apart = began - self._began
            self.seconds_apart += SMOOTHING * (apart - self.seconds_apart) if self.seconds_apart else apart
            self.ms += SMOOTHING * (1e3 * seconds - self.ms)
        self._began = began

    def __str__(self) -> str:
        rate = f", {1.0 / self.seconds_apart:.0f} fps" if self.seconds_apart else ""
        return f"UI: {self.ms:.0f} ms per frame{rate}"
