"""Keys and mouse to navigation and commands. The tables below are all there is: F1 lists just these.

Everything is polled once a frame, so a key cannot stick: Dear PyGui's own state forgets keys when the window
loses the focus, and a button counts as released wherever it goes up. Only the wheel comes as an event.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import Item
from splatscope.viewer.drawing.viewport import Viewport
from splatscope.viewer.drawing.widgets import Ui
from splatscope.viewer.state.session import Session

LONGEST_STEP = 0.1  # s of flight a frame; a stalled frame must not throw the viewer across the scene
FRAMES_OF_TAB = 3  # that Tab may need to go from a field to the next one
CLICK = 4.0  # px; a press that moves less is a click
AWAKE_SECONDS = 0.5  # the window keeps its full rate this long after the last touch

LEFT, RIGHT, MIDDLE = dpg.mvMouseButton_Left, dpg.mvMouseButton_Right, dpg.mvMouseButton_Middle
CTRL = (dpg.mvKey_LControl, dpg.mvKey_RControl)
SHIFT = (dpg.mvKey_LShift, dpg.mvKey_RShift)
ALT = (dpg.mvKey_LAlt, dpg.mvKey_RAlt)

Move = Literal["orbit", "look", "pan"]


@dataclass(frozen=True)
class Key:
    """A key that does something once when pressed, or again and again while held if it repeats."""

    name: str
    codes: tuple[int, ...]
    does: str
    action: Callable[[Input], None]
    ctrl: bool = False
    repeats: bool = False
    closes: bool = False  # works while a file is being chosen, whose name other keys could be meant for


@dataclass(frozen=True)
class FlyKey:
    """A key that moves the eye while it is held."""

    name: str
    code: int
    does: str
    direction: tuple[float, float, float]  # right, up, forward


@dataclass(frozen=True)
class Drag:
    """A movement while a mouse button is held; the first entry whose conditions hold when it goes down is taken."""

    name: str
    buttons: tuple[int, ...]
    does: str
    move: Move
    flying: Move | None = None  # what it is while a fly key is held, if something else
    ctrl: bool = False


DRAGS = (
    Drag("Ctrl + left drag", (LEFT,), "look around", "look", ctrl=True),
    Drag("Left drag", (LEFT,), "orbit; look around while flying", "orbit", flying="look"),
    Drag("Right or middle drag", (RIGHT, MIDDLE), "pan", "pan"),
)
MOUSE_ROWS = (
    ("Wheel", "move to or from the cursor"),
    ("Double click", "orbit about this point"),
    ("Drag on the line", "move it over the photograph"),
    ("Click on a camera", "go there"),
)
FLY_KEYS = (
    FlyKey("W", dpg.mvKey_W, "fly forward", (0, 0, 1)),
    FlyKey("S", dpg.mvKey_S, "fly back", (0, 0, -1)),
    FlyKey("A", dpg.mvKey_A, "fly left", (-1, 0, 0)),
    FlyKey("D", dpg.mvKey_D, "fly right", (1, 0, 0)),
    FlyKey("Q", dpg.mvKey_Q, "fly down", (0, -1, 0)),
    FlyKey("E", dpg.mvKey_E, "fly up", (0, 1, 0)),
)
SPEED_ROWS = (("Shift", "fly faster"), ("Alt", "fly slower"))
KEYS = (
    Key("F", (dpg.mvKey_F,), "frame the scene", lambda i: i.session.frame_scene()),
    Key("H or Home", (dpg.mvKey_H, dpg.mvKey_Home), "home view", lambda i: i.session.go_home()),
    Key("Left", (dpg.mvKey_Left,), "previous training camera", lambda i: i.session.step_camera(-1), repeats=True),
    Key("Right", (dpg.mvKey_Right,), "next training camera", lambda i: i.session.step_camera(1), repeats=True),
    Key("G", (dpg.mvKey_G,), "photograph over the picture", lambda i: i.session.compare_photograph("overlay")),
    Key("V", (dpg.mvKey_V,), "wipe between photograph and picture", lambda i: i.session.compare_photograph("wipe")),
    Key("M", (dpg.mvKey_M,), "map of the errors", lambda i: i.session.compare_photograph("error")),
    Key("C", (dpg.mvKey_C,), "choose a photograph", lambda i: i.session.toggle_thumbnails()),
    Key("K", (dpg.mvKey_K,), "cameras over the picture", lambda i: i.session.toggle_frustums()),
    Key("Tab", (dpg.mvKey_Tab,), "tile heatmap on or off", lambda i: i.session.toggle_heatmap()),
    Key("P", (dpg.mvKey_P,), "screenshot", lambda i: i.session.screenshot()),
    Key("Space", (dpg.mvKey_Spacebar,), "start or pause training", lambda i: i.session.toggle_training()),
    Key("N", (dpg.mvKey_N,), "one training iteration", lambda i: i.session.step_training()),
    Key("Ctrl + O", (dpg.mvKey_O,), "open a file or a folder", lambda i: i.session.browse("open"), ctrl=True),
    Key("Ctrl + S", (dpg.mvKey_S,), "save the splats as…", lambda i: i.session.browse("save"), ctrl=True),
    Key("F1", (dpg.mvKey_F1,), "this list", lambda i: i.session.toggle_help()),
    Key("F10", (dpg.mvKey_F10,), "stage times on the picture", lambda i: i.session.toggle_stats()),
    Key("F11", (dpg.mvKey_F11,), "full screen", lambda i: dpg.toggle_viewport_fullscreen()),
    Key("Esc", (dpg.mvKey_Escape,), "close a menu, a list or a message", lambda i: i.close(), closes=True),
)


def help_rows() -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """(heading, rows of key and meaning) of everything that works."""
    yield "Mouse", (*((drag.name, drag.does) for drag in DRAGS), *MOUSE_ROWS)
    yield "Flying", (*((key.name, key.does) for key in FLY_KEYS), *SPEED_ROWS)
    yield "Keys", tuple((key.name, key.does) for key in KEYS)


class Input:
    """Reads the devices once a frame and moves the view."""

    def __init__(self, ui: Ui, viewport: Viewport, dock: Item) -> None:
        self.session: Session = ui.session
        self._ui = ui
        self._viewport = viewport
        self._dock = dock
        self._down: set[int] = set()  # keys and buttons that were down a frame ago
        self._was_typing = False
        self._tab_frames = 0  # in which the next field may still come into use
        self._had_ctrl = False  # at the frame before
        self._ctrl = False  # now or then: a quick hand lets go of it in the frame that brings the other key
        self._alt = False
        self._lost_alt: set[int] = set()  # keys whose release the window manager kept, as it does that of Alt + F4
        self._not_flying: set[FlyKey] = set()  # keys held that are meant otherwise
        self._drag: tuple[Drag, int] | None = None  # and the button that holds it
        self._mouse = (0.0, 0.0)
        self._moved = 0.0  # px since the drag began
        self._pulling = False  # the line between photograph and picture
        self._wheel = 0
        self._awake_until = 0.0
        self.handlers = dpg.add_handler_registry()
        dpg.add_mouse_wheel_handler(parent=self.handlers, callback=lambda _, notches: self._turn_wheel(notches))

    @property
    def awake(self) -> bool:
        """True while somebody is using the window."""
        return time.perf_counter() < self._awake_until

    def stay_awake(self) -> None:
        """Notes that somebody has just used the window."""
        self._awake_until = time.perf_counter() + AWAKE_SECONDS

    def update(self, seconds: float) -> None:
        """Applies what happened since the last frame, `seconds` ago."""
        # A field in use keeps the window awake, and comes into use by a click or a key.
        used = self.awake or dpg.is_mouse_button_down(LEFT)
        typing = used and self._ui.typing
        self._take_keyboard(typing)
        ctrl = _any_down(CTRL)
        self._ctrl, self._had_ctrl = ctrl or self._had_ctrl, ctrl
        alt = {code for code in ALT if dpg.is_key_down(code)}
        self._lost_alt = alt if self.session.closing else self._lost_alt & alt
        self._alt = bool(alt - self._lost_alt)
        mouse = dpg.get_mouse_pos(local=False)
        dx, dy = mouse[0] - self._mouse[0], mouse[1] - self._mouse[1]
        self._mouse = (mouse[0], mouse[1])
        flying = not typing and not self.session.browser and self._fly(min(seconds, LONGEST_STEP))
        self._use_mouse(dx, dy, flying)
        pressed = self._press_keys()
        self._was_typing = typing
        if dx or dy or self._wheel or flying or typing or pressed or self._drag:
            self.stay_awake()
        self._wheel = 0

    # Keys --------------------------------------------------------------------------------------------

    def _take_keyboard(self, typing: bool) -> None:
        """Gives the keyboard back to the picture when no field of the dock needs it. Dear PyGui would use Tab to go to
        the dock's next field, and scroll it into view."""
        self._tab_frames = FRAMES_OF_TAB if typing else max(0, self._tab_frames - 1)
        is_used = self._tab_frames > 0 or dpg.is_mouse_button_down(LEFT)
        if not is_used and dpg.is_item_focused(self._dock):
            self._viewport.focus()

    def close(self) -> None:
        """Closes an open menu or dropdown, else whatever lies over the picture."""
        windows = (item for item in dpg.get_windows() if dpg.get_item_type(item).endswith("::mvWindowAppItem"))
        if any(dpg.is_item_focused(window) for window in windows):
            self.session.dismiss()
        else:  # a menu or a dropdown has the focus: it closes when it loses it
            self._viewport.focus()

    def _press_keys(self) -> bool:
        """Runs the actions of keys that went down; True if any key of the table is down."""
        held = {code for key in KEYS for code in key.codes if dpg.is_key_down(code)}
        fresh = held - self._down
        self._down = held
        if self._alt:  # keys are the window manager's
            return False
        for key in KEYS:
            down = any(code in fresh or (key.repeats and dpg.is_key_pressed(code)) for code in key.codes)
            # The key that ended the typing was still the field's; but Esc in the browser's path box closes the browser.
            ours = key.closes if self.session.browser else not self._was_typing
            if down and key.ctrl == self._ctrl and ours:
                key.action(self)
        return bool(held)

    def _fly(self, seconds: float) -> bool:
        """Moves the eye while fly keys are held; True if it did."""
        right = up = forward = 0.0
        held = {key for key in FLY_KEYS if dpg.is_key_down(key.code)}
        # Pressed together with Ctrl a key means something else, also if Ctrl is let go of first.
        self._not_flying = held if self._ctrl else self._not_flying & held
        for key in held - self._not_flying:
            right, up, forward = right + key.direction[0], up + key.direction[1], forward + key.direction[2]
        length = math.hypot(right, up, forward)
        if length == 0.0:
            return False
        config, nav = self.session.config, self.session.nav
        speed = config.fly_speed * nav.extent * seconds / length
        speed *= (config.fast if _any_down(SHIFT) else 1.0) * (config.slow if self._alt else 1.0)
        self.session.move(lambda nav: nav.fly(right * speed, up * speed, forward * speed))
        return True

    # Mouse -------------------------------------------------------------------------------------------

    def _turn_wheel(self, notches: int) -> None:
        self._wheel += notches

    def _use_mouse(self, dx: float, dy: float, flying: bool) -> None:
        viewport = self._viewport
        if self._pulling:
            self._pull()
        elif self._drag is not None:
            drag, button = self._drag
            self._moved += abs(dx) + abs(dy)
            if dx or dy:
                self._move(drag.flying if flying and drag.flying else drag.move, dx, dy)
            if not dpg.is_mouse_button_down(button):  # after moving: the last stretch may come with the release
                self._drag = None
                if self._moved < CLICK and button == LEFT:
                    self._click()
        elif viewport.hovered:
            self._drag = self._begin_drag()
            self._moved = 0.0
        if viewport.hovered and self._wheel:
            factor = (1.0 - self.session.config.zoom_step) ** self._wheel
            x, y = viewport.local(self._mouse)
            self.session.move(lambda nav: nav.dolly(factor, x, y, *self.session.viewport))
        if viewport.hovered and dpg.is_mouse_button_double_clicked(LEFT):
            width, height = self.session.viewport
            x, y = viewport.local(self._mouse)
            self.session.pivot_under(x / width, y / height)

    def _pull(self) -> None:
        """The line follows the mouse as long as the button is held."""
        x = self._viewport.local(self._mouse)[0]
        self.session.photo.pull_line(x / self.session.viewport[0])
        self._pulling = dpg.is_mouse_button_down(LEFT)
        self.stay_awake()

    def _click(self) -> None:
        """Goes to the camera that was clicked on, if they are shown."""
        index = self._viewport.camera_at(*self._viewport.local(self._mouse))
        if index is not None:
            self.session.go_to_camera(index)

    def _begin_drag(self) -> tuple[Drag, int] | None:
        ctrl = _any_down(CTRL)
        if dpg.is_mouse_button_clicked(LEFT) and self._viewport.on_line(self._viewport.local(self._mouse)[0]):
            self._viewport.focus()
            self._pulling = True
            return None
        for drag in DRAGS:
            for button in drag.buttons:
                if dpg.is_mouse_button_clicked(button) and (ctrl or not drag.ctrl):
                    self._viewport.focus()
                    return drag, button
        return None

    def _move(self, move: Move, dx: float, dy: float) -> None:
        session = self.session
        if move == "pan":
            session.move(lambda nav: nav.pan(dx, dy, *session.viewport))
        elif move == "look":
            turn = math.radians(session.config.look_speed)
            session.move(lambda nav: nav.look(turn * dx, -turn * dy))
        else:
            turn = math.radians(session.config.orbit_speed)
            session.move(lambda nav: nav.orbit(turn * dx, -turn * dy))


def _any_down(codes: tuple[int, ...]) -> bool:
    return any(dpg.is_key_down(code) for code in codes)
