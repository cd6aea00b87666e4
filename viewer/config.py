"""Lists the settings that a window opens with, and their defaults.

`state/` keeps what the user changes while the window is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.viewer.messages.view import OverlayName


@dataclass(frozen=True)
class WindowConfig:
    """Holds how the window opens and how fast the view moves."""

    title: str = "splatscope"
    width: int = 1440  # px at UI scale 1; less on a smaller display
    height: int = 900  # px at UI scale 1
    ui_scale: float = 0.0  # size of text and controls; 0 takes the display's scale
    fov_y: float = 60.0  # degrees, vertical
    orbit_speed: float = 0.3  # degrees a pixel of drag
    look_speed: float = 0.12  # degrees a pixel of drag
    fly_speed: float = 0.35  # scene extents a second
    fast: float = 4.0  # Shift multiplies the fly speed by this
    slow: float = 0.1  # Alt multiplies the fly speed by this
    zoom_step: float = 0.12  # share of the distance to the pivot that a wheel notch covers
    moving_fps: float = 18.0  # pictures a second aimed at while the view moves, at a lower resolution if needed
    view_share: float = 0.1  # while training: largest share of the time for pictures of a still view
    view_rate: float = 32.0  # while training: most pictures a second; at most 10 while the view is still
    training_fps: float = 4.0  # pictures a second aimed at while training runs and the view is still
    still_fps: float = 1.0  # pictures a second aimed at while the view is still and nothing trains
    overlay: OverlayName = "none"
    overlay_opacity: float = 0.65
    policy: Policy = Policy()  # toggles at the start
    keeps_filter: bool = False  # True: the policy's filter also holds for a scene that was trained with another filter
    screenshot_dir: Path = Path("screenshots")
    measurement_dir: Path = Path("measurements")  # timings, traces, recorded frames, tables of views
    preferences_file: Path | None = (
        None  # recent paths, home views and up axes; None forgets them when the window closes
    )

    def __post_init__(self) -> None:
        if self.ui_scale != 0.0 and not 0.5 <= self.ui_scale <= 4.0:
            raise InputError(
                f"The UI scale must lie between 0.5 and 4, or be 0 to ask the display, got {self.ui_scale}."
            )
