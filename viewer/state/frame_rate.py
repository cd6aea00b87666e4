"""What the window itself costs: its own time a frame, and its frames a second. No GUI."""

from __future__ import annotations

from dataclasses import dataclass

SMOOTHING = 0.1  # weight of the newest frame
AWAKE_HZ = 60.0  # frames a second while somebody uses the window
MORE_FRAMES, LEAST_HZ = 1.15, 24.0  # than pictures, so that none waits for long; and at least, for the hand


def awake_hz(trains: bool, is_at_view: bool, pictures: float) -> float:
    """Frames a second while somebody uses the window, who may have so many `pictures` a second.

    At the view of a run, hardly more: a frame without a new picture shows nothing new there, and takes Python's lock
    from the engine.
    """
    return min(AWAKE_HZ, max(LEAST_HZ, MORE_FRAMES * pictures)) if trains and is_at_view else AWAKE_HZ


@dataclass
class FrameRate:
    """Of the main thread; the engine's pictures are not in it."""

    ms: float = 0.0  # a frame: input, panels, upload, drawing
    seconds_apart: float = 0.0
    _began: float | None = None

    def note(self, seconds: float, began: float) -> None:
        """A frame took so long; `began` is when, on any clock in seconds."""
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
