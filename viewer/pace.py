"""What the window itself costs: its own time a frame, and its frames a second. No GUI."""

from __future__ import annotations

from dataclasses import dataclass

SMOOTHING = 0.1  # weight of the newest frame


@dataclass
class Pace:
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
        rate = f", {1.0 / self.seconds_apart:.0f} a second" if self.seconds_apart else ""
        return f"Window {self.ms:.1f} ms a frame{rate}"
