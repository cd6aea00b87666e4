"""Turns keys and mouse movements into calls of the session. The tables below are complete: F1 lists them.

Everything is polled once a frame, so that no key can stick: Dear PyGui releases all keys when the window loses the
focus, and a mouse button wherever the mouse is. Only the wheel comes as an event.
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

LONGEST_STEP = 0.1  # s of flight a frame at most: a stalled frame must not throw the viewer across the scene
FRAMES_OF_TAB = 3  # frames that Tab may need to go from one field to the next
CLICK = 4.0  # px; a press that moves less is a click
AWAKE_SECONDS = 0.5  # the window keeps its full rate this long after the last touch

LEFT, RIGHT, MIDDLE = dpg.mvMouseButton_Left, dpg.mvMouseButton_Right, dpg.mvMouseButton_Middle
CTRL = (dpg.mvKey_LControl, dpg.mvKey_RControl)
SHIFT = (dpg.mvKey_LShift, dpg.mvKey_RShift)
ALT = (dpg.mvKey_LAlt, dpg.mvKey_RAlt)

Move = Literal["orbit", "look", "pan"]


@dataclass(frozen=True)
class Key:
    """Binds a key to an action: once a press, or repeatedly while it is held if it `repeats`."""

    name: str
    codes: tuple[int, ...]
    does: str
    action: Callable[[Input], None]
    ctrl: bool = False
    repeats: bool = False
    closes: bool = False  # also works in the file browser, where other keys may belong to a file's name


@dataclass(frozen=True)
class FlyKey:
    """Binds a key to a movement of the eye while it is held."""

    name: str
    code: int
    does: str
    direction: tuple[float, float, float]  # right, up, forward


@dataclass(frozen=True)
class Drag:
    """Binds a mouse button to a movement; the first entry that fits when the button goes down is taken."""

    name: str
    buttons: tuple[int, ...]
    does: str
    move: Move
    flying: Move | None = None  # the movement while a fly key is held, if it differs
    ctrl: bool = False


DRAGS = (
    Drag("Ctrl + left drag", (LEFT,), "look around", "look", ctrl=True),
    Drag("Left drag", (LEFT,), "orbit; look around while flying", "orbit", flying="look"),
    Drag("Right or middle drag", (RIGHT, MIDDLE), "pan", "pan"),
)
MOUSE_ROWS = (
    ("Wheel", "move towards or away from the cursor"),
    ("Double click", "orbit around this point"),
    ("Drag the line", "reveal more or less of the photograph"),
    ("Click a camera", "go to its view"),
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
    Key("F", (dpg.mvKey_F,), "show the whole scene", lambda i: i.session.view.frame_scene()),
    Key("H or Home", (dpg.mvKey_H, dpg.mvKey_Home), "go to the home view", lambda i: i.session.view.go_home()),
    Key(
        "Left",
        (dpg.mvKey_Left,),
        "go to the previous photograph's camera",
        lambda i: i.session.view.step_camera(-1),
        repeats=True,
    ),
    Key(
        "Right",
        (dpg.mvKey_Right,),
        "go to the next photograph's camera",
        lambda i: i.session.view.step_camera(1),
        repeats=True,
    ),
    Key(
        "G", (dpg.mvKey_G,), "show the photograph over the picture", lambda i: i.session.photographs.compare("overlay")
    ),
    Key("V", (dpg.mvKey_V,), "wipe between photograph and picture", lambda i: i.session.photographs.compare("wipe")),
    Key("M", (dpg.mvKey_M,), "show a map of the errors", lambda i: i.session.photographs.compare("error")),
    Key("C", (dpg.mvKey_C,), "choose a photograph", lambda i: i.session.dialogs.toggle_thumbnails()),
    Key("K", (dpg.mvKey_K,), "show the cameras over the picture", lambda i: i.session.photographs.toggle_cameras()),
    Key("Tab", (dpg.mvKey_Tab,), "switch the tile heatmap on or off", lambda i: i.session.heatmap.toggle()),
    Key("P", (dpg.mvKey_P,), "save a screenshot", lambda i: i.session.screenshot()),
    Key("Space", (dpg.mvKey_Spacebar,), "start or pause training", lambda i: i.session.run.toggle()),
    Key("N", (dpg.mvKey_N,), "run one training iteration", lambda i: i.session.run.step()),
    Key("Ctrl + O", (dpg.mvKey_O,), "open a file or a folder", lambda i: i.session.dialogs.browse("open"), ctrl=True),
    Key("Ctrl + S", (dpg.mvKey_S,), "save the splats to a file", lambda i: i.session.dialogs.browse("save"), ctrl=True),
    Key("F1", (dpg.mvKey_F1,), "show this list", lambda i: i.session.dialogs.toggle_help()),
    Key("F10", (dpg.mvKey_F10,), "show stage times on the picture", lambda i: i.session.dialogs.toggle_stats()),
    Key("F11", (dpg.mvKey_F11,), "switch full screen on or off", lambda i: dpg.toggle_viewport_fullscreen()),
    Key("Esc", (dpg.mvKey_Escape,), "close a menu, a list or a message", lambda i: i.close(), closes=True),
)


def help_rows() -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Yields (heading, rows of key and meaning) of all tables."""
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
        self._tab_frames = 0  # frames in which the next field may still get the keyboard
        self._had_ctrl = False  # True if Ctrl was down in the frame before
        self._ctrl = (
            False  # Ctrl is down in this frame or the one before: a quick hand releases Ctrl as the other key goes down
        )
        self._alt = False
        self._lost_alt: set[int] = set()  # keys whose release the window manager has swallowed, as after Alt + F4
        self._not_flying: set[FlyKey] = set()  # held keys that were pressed together with Ctrl
        self._drag: tuple[Drag, int] | None = None  # the movement, and the button that is held
        self._mouse = (0.0, 0.0)
        self._moved = 0.0  # px since the drag began
        self._pulling = False  # the user drags the line between photograph and picture
        self._wheel = 0
        self._awake_until = 0.0
        self.handlers = dpg.add_handler_registry()
        dpg.add_mouse_wheel_handler(parent=self.handlers, callback=lambda _, notches: self._turn_wheel(notches))

    @property
    def awake(self) -> bool:
        """Returns True while somebody uses the window."""
        return time.perf_counter() < self._awake_until

    def stay_awake(self) -> None:
        """Notes that somebody has just used the window."""
        self._awake_until = time.perf_counter() + AWAKE_SECONDS

    def update(self, seconds: float) -> None:
        """Applies the input since the last frame, `seconds` ago."""
        # A field in use keeps the window awake, and only a click or a key can start its use.
        used = self.awake or dpg.is_mouse_button_down(LEFT)
        typing = used and self._ui.typing
        self._take_keyboard(typing)
        ctrl = _any_down(CTRL)
        self._ctrl, self._had_ctrl = ctrl or self._had_ctrl, ctrl
        alt = {code for code in ALT if dpg.is_key_down(code)}
        self._lost_alt = alt if self.session.dialogs.closing else self._lost_alt & alt
        self._alt = bool(alt - self._lost_alt)
        mouse = dpg.get_mouse_pos(local=False)
        dx, dy = mouse[0] - self._mouse[0], mouse[1] - self._mouse[1]
        self._mouse = (mouse[0], mouse[1])
        flying = not typing and not self.session.dialogs.browser and self._fly(min(seconds, LONGEST_STEP))
        self._use_mouse(dx, dy, flying)
        pressed = self._press_keys()
        self._was_typing = typing
        if dx or dy or self._wheel or flying or typing or pressed or self._drag:
            self.stay_awake()
        self._wheel = 0

    # Keys --------------------------------------------------------------------------------------------

    def _take_keyboard(self, typing: bool) -> None:
        """Returns the keyboard to the picture when no field of the dock needs it. Otherwise Dear PyGui would use Tab to
        go to the dock's next field, and scroll it into view."""
        self._tab_frames = FRAMES_OF_TAB if typing else max(0, self._tab_frames - 1)
        is_used = self._tab_frames > 0 or dpg.is_mouse_button_down(LEFT)
        if not is_used and dpg.is_item_focused(self._dock):
            self._viewport.focus()

    def close(self) -> None:
        """Closes an open menu or dropdown, else one thing that lies over the picture."""
        windows = (item for item in dpg.get_windows() if dpg.get_item_type(item).endswith("::mvWindowAppItem"))
        if any(dpg.is_item_focused(window) for window in windows):
            self.session.dismiss()
        else:  # a menu or a dropdown has the focus, and closes when it loses it
            self._viewport.focus()

    def _press_keys(self) -> bool:
        """Runs the actions of keys that went down; True if any key of the table is down."""
        held = {code for key in KEYS for code in key.codes if dpg.is_key_down(code)}
        fresh = held - self._down
        self._down = held
        if self._alt:  # with Alt, keys belong to the window manager
            return False
        for key in KEYS:
            down = any(code in fresh or (key.repeats and dpg.is_key_pressed(code)) for code in key.codes)
            # The key that ended the typing belonged to the field; but Esc in the browser's path box closes the browser.
            ours = key.closes if self.session.dialogs.browser else not self._was_typing
            if down and key.ctrl == self._ctrl and ours:
                key.action(self)
        return bool(held)

    def _fly(self, seconds: float) -> bool:
        """Moves the eye while fly keys are held; True if it did."""
        right = up = forward = 0.0
        held = {key for key in FLY_KEYS if dpg.is_key_down(key.code)}
        # A key pressed together with Ctrl means something else, also if Ctrl is released first.
        self._not_flying = held if self._ctrl else self._not_flying & held
        for key in held - self._not_flying:
            right, up, forward = right + key.direction[0], up + key.direction[1], forward + key.direction[2]
        length = math.hypot(right, up, forward)
        if length == 0.0:
            return False
        config, nav = self.session.config, self.session.view.nav
        speed = config.fly_speed * nav.extent * seconds / length
        speed *= (config.fast if _any_down(SHIFT) else 1.0) * (config.slow if self._alt else 1.0)
        self.session.view.move(lambda nav: nav.fly(right * speed, up * speed, forward * speed))
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
            if not dpg.is_mouse_button_down(
                button
            ):  # checked after moving: the last movement may come in the same frame as the release
                self._drag = None
                if self._moved < CLICK and button == LEFT:
                    self._click()
        elif viewport.hovered:
            self._drag = self._begin_drag()
            self._moved = 0.0
        if viewport.hovered and self._wheel:
            factor = (1.0 - self.session.config.zoom_step) ** self._wheel
            x, y = viewport.local(self._mouse)
            self.session.view.move(lambda nav: nav.dolly(factor, x, y, *self.session.view.size))
        if viewport.hovered and dpg.is_mouse_button_double_clicked(LEFT):
            width, height = self.session.view.size
            x, y = viewport.local(self._mouse)
            self.session.view.pivot_under(x / width, y / height)

    def _pull(self) -> None:
        """Moves the line with the mouse while the button is held."""
        x = self._viewport.local(self._mouse)[0]
        self.session.photographs.pull_line(x / self.session.view.size[0])
        self._pulling = dpg.is_mouse_button_down(LEFT)
        self.stay_awake()

    def _click(self) -> None:
        """Goes to the drawn camera that was clicked."""
        index = self._viewport.frustums.camera_at(*self._viewport.local(self._mouse))
        if index is not None:
            self.session.view.go_to_camera(index)

    def _begin_drag(self) -> tuple[Drag, int] | None:
        ctrl = _any_down(CTRL)
        if dpg.is_mouse_button_clicked(LEFT) and self._viewport.photo.is_on_line(self._viewport.local(self._mouse)[0]):
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
            session.view.move(lambda nav: nav.pan(dx, dy, *session.view.size))
        elif move == "look":
            turn = math.radians(session.config.look_speed)
            session.view.move(lambda nav: nav.look(turn * dx, -turn * dy))
        else:
            turn = math.radians(session.config.orbit_speed)
            session.view.move(lambda nav: nav.orbit(turn * dx, -turn * dy))


def _any_down(codes: tuple[int, ...]) -> bool:
    return any(dpg.is_key_down(code) for code in codes)
