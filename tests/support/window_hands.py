"""Moves, clicks and types in a real window in front of `fake_engine.py`, as a person would."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from splatscope.viewer.drawing.style import MENU_HEIGHT
from splatscope.viewer.panels.status_bar import HEIGHT as STATUS_HEIGHT
from splatscope.viewer.window import DOCK_SHARE, DOCK_WIDTH
from tests.support.display import Program
from tests.support.fake_engine import SCENE

SCRIPT = Path(__file__).with_name("fake_engine.py")
SIZE = (960, 640)
SCENE_HEADER = (760, 22 + MENU_HEIGHT)  # px in the window; folds and unfolds the scene's section


class Hands:
    """Uses a window that is open, as a person would."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.window = program.find_window("splatscope")
        self.start: dict[str, Any] = {}
        program.wait_for("a picture is asked for", lambda facts: facts["requests"] > 0)

    def keys(self, *names: str) -> None:
        self.program.xdotool("key", "--delay", 60, *names)

    def rest(self, seconds: float) -> None:
        """Waits `seconds`, and until what was done before is on the screen."""
        self.program.rest(seconds)

    def move(self, x: int, y: int) -> None:
        for nudge in (2, 0):  # X tells of no movement if the mouse is where it is sent
            self.program.xdotool("mousemove", "--window", self.window, x + nudge, y)
        self.rest(0.05)

    def click(self, x: int, y: int) -> None:
        self.move(x, y)
        self.program.xdotool("click", 1)
        self.rest(0.05)

    def drag(self, button: int, dx: int, dy: int, steps: int = 5) -> None:
        """Presses at the middle of the viewport and moves in steps."""
        self.move(300, 300)
        self.program.xdotool("mousedown", button)
        self.rest(0.05)
        for _ in range(steps):
            self.program.xdotool("mousemove_relative", "--", dx // steps, dy // steps)
            time.sleep(0.03)
        self.program.xdotool("mouseup", button)

    def home(self) -> dict[str, Any]:
        """Goes back to the view the window opened with, nothing over the picture, the mouse over it."""
        self.click(300, 300)
        self.keys("Escape", "Escape", "Home")
        self.start = self.settled(lambda facts: near(facts["eye"], SCENE.cameras[0].camera.position))
        return self.start

    def settled(self, holds: Any = lambda facts: True) -> dict[str, Any]:
        """Returns the facts once they satisfy `holds`, the view is still and its picture has full resolution."""
        full = self.full_size()
        self.program.wait_for(f"a still view of {full} px", lambda facts: holds(facts) and facts["size"] == full)
        while True:
            before = self.program.facts["requests"]
            self.rest(0.35)
            if self.program.facts["requests"] == before:
                self.program.wait_for("its picture", lambda facts: facts["answered"])
                return self.program.facts

    def full_size(self) -> list[int]:
        """Returns [width, height] of the viewport: the window without dock, menu and status bar."""
        words = self.program.xdotool("getwindowgeometry", "--shell", self.window).splitlines()
        size = dict(word.split("=") for word in words)
        width, height = int(size["WIDTH"]), int(size["HEIGHT"])
        return [width - min(DOCK_WIDTH, int(DOCK_SHARE * width)), height - STATUS_HEIGHT - MENU_HEIGHT]

    def picture(self) -> np.ndarray:
        """Returns the window on the screen as uint8 [H, W, 3]."""
        return np.asarray(self.program.screenshot(self.window).convert("RGB"))


def near(a: Any, b: Any, within: float = 1e-3) -> bool:
    return bool(np.allclose(a, b, atol=within))
