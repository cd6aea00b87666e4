"""What the display offers before a window opens: is there one, how large, how many dots an inch.

Dear PyGui's window library ends the process if there is no display, so this asks first. Only X11 needs
asking; Windows and macOS always have one.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from dataclasses import dataclass

from splatscope.kernels.errors import InputError

STANDARD_DPI = 96.0
SHARP_HEIGHT = 2000  # px; a screen this high that names no resolution is taken for a 4K one, drawn at twice the size


@dataclass(frozen=True)
class Display:
    """The screen a window will open on; zeros where the system does not say."""

    width: int = 0  # px
    height: int = 0  # px
    dpi: float = 0.0

    @property
    def scale(self) -> float:
        """How large text and controls should be drawn, in quarters."""
        if self.dpi > 0.0:
            return min(max(round(4.0 * self.dpi / STANDARD_DPI) / 4.0, 1.0), 4.0)
        return 2.0 if self.height >= SHARP_HEIGHT else 1.0


def find_display() -> Display:
    """The display of this session. Raises InputError if no window can be opened."""
    if sys.platform == "win32":
        return _windows_display()
    if sys.platform == "darwin":
        return Display()
    return _x11_display()


def _x11_display() -> Display:
    try:
        x11 = ctypes.CDLL("libX11.so.6")
    except OSError as error:
        raise InputError("No window can be opened: the X11 library is not installed (Debian: libx11-6).") from error
    x11.XOpenDisplay.restype = ctypes.c_void_p
    x11.XGetDefault.restype = ctypes.c_char_p
    connection = ctypes.c_void_p(x11.XOpenDisplay(None))
    if not connection:
        raise InputError(
            "No window can be opened: there is no display, or DISPLAY names one that does not answer. "
            "Use `splatscope render` or `splatscope train --headless`, or start an X server (xvfb-run, for example)."
        )
    try:
        screen = x11.XDefaultScreen(connection)
        stated = x11.XGetDefault(connection, b"Xft", b"dpi")
        try:
            dpi = float(stated) if stated else 0.0
        except ValueError:
            dpi = 0.0
        return Display(x11.XDisplayWidth(connection, screen), x11.XDisplayHeight(connection, screen), dpi)
    finally:
        x11.XCloseDisplay(connection)


def _windows_display() -> Display:
    """Also tells Windows that we scale ourselves, or it would blur the window."""
    windll = getattr(ctypes, "windll")  # noqa: B009 (absent from type stubs elsewhere)
    with contextlib.suppress(OSError):  # already set by the host program
        windll.shcore.SetProcessDpiAwareness(2)
    user = windll.user32
    return Display(user.GetSystemMetrics(0), user.GetSystemMetrics(1), float(user.GetDpiForSystem()))
