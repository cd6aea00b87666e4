"""Finds the display before a window opens: its size and dots per inch. Watches it while the window is open.

Dear PyGui's window library ends the process if there is no display, so this module asks first. X11's library ends the
process if the display disappears while the window is open. Windows and macOS always have a display.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from splatscope.kernels.errors import InputError

STANDARD_DPI = 96.0
TRIES, TRY_SECONDS = 3, 0.1  # an X server that restarts (Xvfb after its last client) answers again within this time
SHARP_HEIGHT = 2000  # px; a screen this high that states no dots per inch counts as 4K: scale 2


@dataclass(frozen=True)
class Display:
    """Describes the screen that a window will open on; zeros where the system does not say."""

    width: int = 0  # px
    height: int = 0  # px
    dpi: float = 0.0

    @property
    def scale(self) -> float:
        """Returns the scale at which to draw text and controls, in steps of a quarter."""
        if self.dpi > 0.0:
            return min(max(round(4.0 * self.dpi / STANDARD_DPI) / 4.0, 1.0), 4.0)
        return 2.0 if self.height >= SHARP_HEIGHT else 1.0


def find_display() -> Display:
    """Returns the display. Raises InputError if no window can be opened."""
    if sys.platform == "win32":
        return _windows_display()
    if sys.platform == "darwin":
        return Display()
    return _x11_display(os.environ.get("DISPLAY", ""))


@contextmanager
def watch_display(gone: Callable[[], NoReturn]) -> Iterator[None]:
    """Calls `gone` if the X server ends or cuts a connection while the context is open.

    The call comes on the thread that noticed. `gone` must end the process, as Xlib would have: it cannot return.
    Raises InputError without X11's library."""
    if sys.platform in ("win32", "darwin"):
        yield
        return
    first = threading.Lock()

    def take(_display: int) -> int:
        first.acquire()  # never released: other threads that notice wait here until the process has ended
        gone()

    handler = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(take)  # must live as long as Xlib may call it
    set_handler = _x11_library().XSetIOErrorHandler
    set_handler.argtypes, set_handler.restype = [ctypes.c_void_p], ctypes.c_void_p
    before = set_handler(ctypes.cast(handler, ctypes.c_void_p))
    try:
        yield
    finally:
        set_handler(before)


def _x11_library() -> ctypes.CDLL:
    """Loads X11's library, the same that Dear PyGui's window library uses."""
    try:
        return ctypes.CDLL("libX11.so.6")
    except OSError as error:
        raise InputError("No window can be opened: the X11 library is not installed (Debian: libx11-6).") from error


@functools.cache
def _x11_display(name: str) -> Display:
    """Returns the X11 display of a name, and keeps the connection for the life of the process.

    If the connection were the only one, closing it would make an X server like Xvfb restart, and cut off the window
    that opens next."""
    x11 = _x11_library()
    x11.XOpenDisplay.restype = ctypes.c_void_p
    x11.XGetDefault.restype = ctypes.c_char_p
    connection = ctypes.c_void_p(x11.XOpenDisplay(None))
    for _ in range(TRIES if name else 0):
        if connection:
            break
        time.sleep(TRY_SECONDS)
        connection = ctypes.c_void_p(x11.XOpenDisplay(None))
    if not connection:
        raise InputError(
            "No window can be opened: there is no display, or DISPLAY names one that does not answer. "
            "Use `splatscope render` or `splatscope train --headless`, or start an X server (xvfb-run, for example)."
        )
    screen = x11.XDefaultScreen(connection)
    stated = x11.XGetDefault(connection, b"Xft", b"dpi")
    try:
        dpi = float(stated) if stated else 0.0
    except ValueError:
        dpi = 0.0
    return Display(x11.XDisplayWidth(connection, screen), x11.XDisplayHeight(connection, screen), dpi)


def _windows_display() -> Display:
    """Returns the display on Windows, and tells Windows not to scale the window, which would blur it."""
    windll = getattr(ctypes, "windll")  # noqa: B009 (absent from type stubs elsewhere)
    with contextlib.suppress(OSError):  # already set by the host program
        windll.shcore.SetProcessDpiAwareness(2)
    user = windll.user32
    return Display(user.GetSystemMetrics(0), user.GetSystemMetrics(1), float(user.GetDpiForSystem()))


def display_is_present() -> bool:
    """Returns True if a window can be opened here: there is a display and it answers."""
    try:
        find_display()
    except InputError:
        return False
    return True
