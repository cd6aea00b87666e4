"""Runs the window: Dear PyGui's context, the layout, the frame loop. Read this first; panels are in `panels/`.

Only the main thread runs this file, and only the main thread calls Dear PyGui. The engine never does, so that nothing
that happens to the window (minimised, covered, dragged) can hold up training. The loop itself runs the callbacks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import dearpygui.dearpygui as dpg

from splatscope.viewer.config import WindowConfig
from splatscope.viewer.dialogs.browser import BrowserWindow
from splatscope.viewer.dialogs.close import CloseWindow
from splatscope.viewer.dialogs.help import HelpWindow
from splatscope.viewer.dialogs.reset import ResetWindow
from splatscope.viewer.dialogs.search import SearchWindow
from splatscope.viewer.dialogs.thumbnails import ThumbnailWindow
from splatscope.viewer.display import Display, find_display
from splatscope.viewer.drawing.style import MENU_HEIGHT, PADDING, SCROLLBAR, Item, Style, inside
from splatscope.viewer.drawing.viewport import Viewport
from splatscope.viewer.drawing.widgets import Panel, Ui, restore_tooltips
from splatscope.viewer.input import Input
from splatscope.viewer.messages.client import EngineClient
from splatscope.viewer.messages.view import EngineStatus, Picture, SceneInfo
from splatscope.viewer.panels.error_bar import ErrorBar
from splatscope.viewer.panels.heatmap import HeatmapPanel
from splatscope.viewer.panels.log import LogPanel
from splatscope.viewer.panels.menu import MenuBar
from splatscope.viewer.panels.photographs import PhotographsPanel
from splatscope.viewer.panels.scene import ScenePanel
from splatscope.viewer.panels.schedule import SchedulePanel
from splatscope.viewer.panels.stages import StagesPanel
from splatscope.viewer.panels.status_bar import HEIGHT as STATUS_HEIGHT
from splatscope.viewer.panels.status_bar import StatusBar
from splatscope.viewer.panels.toggles import TogglesPanel
from splatscope.viewer.panels.training import TrainingPanel
from splatscope.viewer.panels.views import ViewsPanel
from splatscope.viewer.state.frame_rate import awake_hz
from splatscope.viewer.state.session import Session

# A new panel: write it in panels/, add its class here. The order is the dock's.
PANELS: tuple[type[Panel], ...] = (
    ScenePanel, TrainingPanel, PhotographsPanel, StagesPanel, ViewsPanel, HeatmapPanel, SchedulePanel, TogglesPanel,
    LogPanel,
)  # fmt: skip

DOCK_WIDTH = 352  # points
DOCK_SHARE = 0.5  # largest share of the window's width for the dock
TRAINING_HZ, IDLE_HZ = 15.0, 8.0  # frames a second
LONGEST_REST = 0.12  # s without a look at the mouse, at most
PANEL_SECONDS = 0.1  # age of the panels' figures while training runs, at most
BOTH = 900  # points; a dock this high has room for both the scene's section and a run's first curves
# Classes of the items that hold a choice.
CHOSEN = ("mvTreeNode", "mvCombo", "mvCheckbox", "mvRadioButton", "mvInputInt", "mvInputText")
SCREEN_SHARE = 0.94  # largest share of the display's sides for a new window


def run_window(client: EngineClient, config: WindowConfig, stop: Callable[[], bool] = lambda: False) -> None:
    """Opens the window and returns when it is closed, or soon after `stop()` returns True.

    Raises InputError if no window can be opened here."""
    display = find_display()
    dpg.create_context()
    try:
        Window(Session(client, config, display.scale), display).run(stop)
    finally:
        dpg.destroy_context()


def first_place(session: Session, display: Display) -> tuple[int, int, int, int]:
    """Returns left, top, width and height in px of the display: in its middle, no larger than the display."""
    width, height = (round(side * session.settings.ui_scale) for side in (session.config.width, session.config.height))
    if display.width and display.height:
        width = min(width, int(SCREEN_SHARE * display.width))
        height = min(height, int(SCREEN_SHARE * display.height))
    return max(0, (display.width - width) // 2), max(0, (display.height - height) // 3), width, height


class Window:
    """Builds everything, then polls, draws and waits, frame after frame."""

    def __init__(self, session: Session, display: Display) -> None:
        self.client = session.engine.client
        self.session = session
        dpg.configure_app(manual_callback_management=True)
        x, y, width, height = first_place(session, display)
        dpg.create_viewport(
            title=session.config.title, width=width, height=height, x_pos=x, y_pos=y, min_width=360, min_height=240,
            vsync=False, clear_color=(0, 0, 0, 255), disable_close=True,
        )  # fmt: skip

    def _make_parts(self) -> None:
        """Builds everything in the window at the session's scale. One frame is drawn first: only then can text in the
        new fonts be measured."""
        self.style = style = Style(self.session.settings.ui_scale)
        style.apply()
        dpg.render_dearpygui_frame()
        self.ui = Ui(self.session, style)
        self.viewport = Viewport(self.ui)
        self.status_bar, self.error_bar, self.help = StatusBar(self.ui), ErrorBar(self.ui), HelpWindow(self.ui)
        self.browser, self.close, self.search = BrowserWindow(self.ui), CloseWindow(self.ui), SearchWindow(self.ui)
        self.menu, self.thumbnails = MenuBar(self.ui, self.close.ask), ThumbnailWindow(self.ui)
        self.reset = ResetWindow(self.ui)
        self._build()
        self.input = Input(self.ui, self.viewport, self._dock)
        self._layout: tuple[int, int] = (0, 0)
        self._place()
        self._panels_shown = 0.0
        self._roomy_for: int | None = None  # generation of the scene that the dock made room for

    def _build(self) -> None:
        self.viewport.build()
        self._dock = dpg.add_window(
            no_title_bar=True, no_move=True, no_resize=True, no_bring_to_front_on_focus=True, no_saved_settings=True,
            min_size=(1, 1),
        )  # fmt: skip
        self._sections: list[tuple[Panel, Item]] = []
        with inside(self._dock):
            for make in PANELS:
                panel = make(self.ui)
                header = dpg.add_collapsing_header(label=panel.title, default_open=panel.open_at_start)
                with inside(header):
                    panel.build()
                    dpg.add_spacer(height=self.style.px(6))
                self._sections.append((panel, header))
        self.status_bar.build()
        self.error_bar.build()
        self.help.build()
        self.browser.build()
        self.close.build()
        self.reset.build()
        self.search.build()
        self.thumbnails.build()
        self.menu.build()
        dpg.set_exit_callback(self.close.ask)

    # The loop ----------------------------------------------------------------------------------------

    def run(self, stop: Callable[[], bool]) -> None:
        """Runs frame after frame until the window is closed or `stop()` returns True."""
        dpg.setup_dearpygui()
        dpg.show_viewport()
        self._make_parts()
        dpg.render_dearpygui_frame()
        self.viewport.connect()
        self.thumbnails.connect()
        before = time.perf_counter()
        while dpg.is_dearpygui_running() and not stop():
            start = time.perf_counter()
            dpg.run_callbacks(dpg.get_callback_queue())
            if self.session.settings.ui_scale != self.style.scale:
                self._rebuild()
            self._place()
            fresh = self.session.poll()
            self.input.update(start - before)
            self.session.publish()
            if fresh and self.session.engine.picture is not None:
                self.viewport.upload(self.session.engine.picture)
            self._update()
            dpg.render_dearpygui_frame()
            before = start
            self.viewport.tick()
            spent = time.perf_counter() - start
            self.session.frame_rate.note(spent, start)
            self._wait(spent)

    def _rebuild(self) -> None:
        """Builds everything again at another scale; the user's folds and choices stay.

        Textures, old fonts and themes are kept: Dear PyGui has crashed when they were deleted."""
        viewport, thumbnails, roomy_for = self.viewport, self.thumbnails, self._roomy_for
        folds, choices = ([dpg.get_value(item) for item in items] for items in self._chosen_items())
        windows = [item for item in dpg.get_windows() if _kind(item) == "mvWindowAppItem"]
        for item in (*windows, self.menu.bar, self.input.handlers, thumbnails.handlers):
            dpg.delete_item(item)
        self._make_parts()
        self.viewport.take_over(viewport)
        self.thumbnails.take_over(thumbnails)
        self._roomy_for = roomy_for
        for header, is_open in zip(self._chosen_items()[0], folds, strict=True):
            dpg.set_value(header, is_open)
        self._update()  # adds the rows of open sections
        items = self._chosen_items()[1]
        for item, value in zip(items, choices, strict=True) if len(items) == len(choices) else ():
            dpg.set_value(item, value)

    def _chosen_items(self) -> tuple[list[Item], list[Item]]:
        """Returns the headers of the dock's sections, and the items in them that hold a user's choice, in order."""
        headers = [header for _, header in self._sections]
        return headers, [item for header in headers for item in _inside(header) if _kind(item) in CHOSEN]

    def _update(self) -> None:
        status, picture = self.session.engine.status, self.session.engine.picture
        self.viewport.canvas.inset = self.error_bar.depth
        self.viewport.update(status, picture)
        self._make_room(status.scene)
        if self._panels_are_due():
            self._update_panels(status, picture)
        parts = (
            self.error_bar,
            self.help,
            self.menu,
            self.browser,
            self.close,
            self.reset,
            self.search,
            self.thumbnails,
        )
        for part in parts:
            part.update(status, picture)
        restore_tooltips(self.style)

    def _make_room(self, scene: SceneInfo | None) -> None:
        """Folds the scene's section when a capture is opened, if the dock is too short to show the curves as well.
        This happens before training starts, so that nothing moves under the mouse then."""
        if scene is None or scene.generation == self._roomy_for:
            return
        self._roomy_for = scene.generation
        if scene.kind == "dataset" and (dpg.get_item_height(self._dock) or 0) < self.style.px(BOTH):
            for panel, header in self._sections:
                if isinstance(panel, ScenePanel):
                    dpg.set_value(header, False)

    def _panels_are_due(self) -> bool:
        """Returns True if the panels should be updated in this frame.

        While training runs and nobody uses the panels, that is only as often as there are new figures: every call of
        Dear PyGui takes Python's lock from the engine."""
        now, training = time.perf_counter(), self.session.engine.status.training.state == "running"
        at_the_panels = self.input.awake and not self.viewport.hovered
        if training and not at_the_panels and now - self._panels_shown < PANEL_SECONDS:
            return False
        self._panels_shown = now
        return True

    def _update_panels(self, status: EngineStatus, picture: Picture | None) -> None:
        for panel, header in self._sections:
            if (heading := panel.heading()) != dpg.get_item_label(header):
                dpg.set_item_label(header, heading)
            if dpg.get_value(header):
                panel.update(status, picture)
        self.status_bar.update(status, picture)

    def _wait(self, spent: float) -> None:
        """Sleeps until the next frame is due. News from the engine end the sleep, but only after a rest.

        The rest is proportional to the time of a frame, so that a slow display (software rendering) leaves the
        processor to the engine: the window takes a third of one core at most, a tenth when nothing happens.
        """
        training = self.session.engine.status.training.state == "running"
        rest = 1.0 / awake_hz(training, self.viewport.hovered, self.session.settings.view_rate) - spent
        if self.input.awake or self.viewport.frames_pending:
            time.sleep(max(0.0, rest))
            return
        rest = max(rest, min(2.0 * spent, LONGEST_REST))
        time.sleep(rest)
        pause = 1.0 / TRAINING_HZ if training else min(max(1.0 / IDLE_HZ, 10.0 * spent), 2.0 / IDLE_HZ)
        if pause > spent + rest:
            self.client.wait_for_news(pause - spent - rest)

    def _place(self) -> None:
        """Lays everything out if the window's size has changed."""
        size = (dpg.get_viewport_client_width(), dpg.get_viewport_client_height())
        if size == self._layout:
            return
        self._layout = size
        width, height = max(1, size[0]), max(1, size[1])
        dock = min(self.style.px(DOCK_WIDTH), int(DOCK_SHARE * width))
        bar, top = min(self.style.px(STATUS_HEIGHT), height - 1), self.style.px(MENU_HEIGHT)
        view_width, view_height = max(1, width - dock), max(1, height - bar - top)
        self.viewport.place(0, top, view_width, view_height)
        self.session.view.size = (view_width, view_height)
        self.error_bar.place(0, top, view_width)
        self.status_bar.place(0, top + view_height, width, bar)
        dpg.configure_item(self._dock, pos=(view_width, top), width=max(1, dock), height=view_height)
        self.ui.room = dock - self.style.px(2 * PADDING + SCROLLBAR)


def _inside(item: Item) -> Iterator[Item]:
    """Yields all items inside an item, depth first."""
    children: list[int] = dpg.get_item_children(item, 1)  # pyright: ignore[reportAssignmentType]
    for child in children:
        yield child
        yield from _inside(child)


def _kind(item: Item) -> str:
    """Returns the name of an item's class."""
    return dpg.get_item_type(item).rpartition("::")[2]
