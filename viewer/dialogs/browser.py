"""Lists the captures, models and splat files of a folder, to open one or to save splats there.

A thread reads the folders, so that a slow disk does not stop the window. A click selects a row, a double click
enters a folder or opens a scene, and the path box takes any path. `state/folders.py` decides what is listed.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import dearpygui.dearpygui as dpg

from splatscope.kernels.errors import InputError
from splatscope.viewer.drawing.style import Item, inside
from splatscope.viewer.drawing.widgets import Panel, Ui, button, count, place_over_picture
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.palette import DIM, WARN
from splatscope.viewer.state.folders import Listing, Row, folder_of, kind_of, list_folder, typed_path

WIDTH, HEIGHT = 720, 520  # points
BELOW = 60  # points below the list, for the path and a line of notes
KINDS = {"folder": "folder", "photographs": "photographs", "capture": "capture", "model": "model", "splats": ""}
SUFFIX = ".ply"


class BrowserWindow(Panel):
    """Shows the browser while `session.dialogs.browser` names a purpose."""

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._shown = ""
        self._folder = Path.cwd()
        self._chosen: Path | None = None
        self._rows: dict[Item, Row] = {}
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="folders")
        self._reading: Future[Listing] | None = None
        self._replacing: Path | None = None  # the existing file that the user has been warned about
        self._saved: tuple[Path, Path] | None = None  # the scene saved last, and the folder it was saved in

    def build(self) -> None:
        style, px = self.style, self.style.px
        self._window = dpg.add_window(
            show=False, no_collapse=True, no_saved_settings=True, on_close=self._close, min_size=(px(320), px(240))
        )
        dpg.bind_item_theme(self._window, style.popup)
        with inside(self._window):
            with inside(dpg.add_group(horizontal=True)):
                up = dpg.add_button(
                    arrow=True, direction=dpg.mvDir_Up, callback=lambda: self._enter(self._folder.parent)
                )
                with inside(dpg.add_tooltip(up, delay=0.4)):
                    dpg.add_text("Goes to the parent folder")
                button(style, "Home", lambda: self._enter(Path.home()))
                tip = "Goes to the folder that splatscope was started in"
                button(style, "Working folder", lambda: self._enter(Path.cwd()), tip=tip)
                self._place = dpg.add_text("")
            with inside(dpg.add_child_window(height=-px(BELOW), border=True)) as self._list:
                pass
            with inside(dpg.add_group(horizontal=True)):
                self.path_box = self.ui.field(
                    dpg.add_input_text(
                        hint="Path",
                        width=-px(170),
                        on_enter=True,
                        auto_select_all=True,
                        callback=lambda: self._accept(),
                    )
                )
                self._go = button(style, "Open", self._accept, width=74, primary=True)
                button(style, "Cancel", self._close, width=74)
            self._note = dpg.add_text("", color=DIM)
        with inside(dpg.add_item_handler_registry()) as self._handlers:
            dpg.add_item_clicked_handler(callback=lambda _, hit: self._choose(self._rows.get(hit[1])))
            dpg.add_item_double_clicked_handler(callback=lambda _, hit: self._take(self._rows.get(hit[1])))

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        if self.session.dialogs.browser != self._shown:
            self._shown = self.session.dialogs.browser
            self._show()
        if self._reading is not None and self._reading.done():
            self._fill(self._reading.result())
            self._reading = None

    # Showing -----------------------------------------------------------------------------------------

    def _show(self) -> None:
        if self._shown:
            place_over_picture(self.ui, self._window, WIDTH, HEIGHT)
            label = "Save splats as" if self._shown == "save" else "Open a splat file, a trained model or a capture"
            dpg.configure_item(self._window, label=label)
            dpg.configure_item(self._go, label=self._shown.capitalize())
            dpg.set_value(self.path_box, self._proposed_name())
            self._enter(self._start_folder())
        dpg.configure_item(self._window, show=bool(self._shown))
        if self._shown:
            dpg.focus_item(self.path_box)

    def _start_folder(self) -> Path:
        """Returns the folder to begin in: the one that holds the newest opened path, else the folder shown last.

        To save splats, two folders come first: the one this scene was saved in last, then its run's folder (or the
        nearest parent that exists)."""
        status, recent = self.session.engine.status, self.session.settings.recent
        places = [path.parent for path in recent[:1]]
        if self._shown == "save" and status.training.out_dir is not None:
            out = status.training.out_dir.absolute()
            places = [next((folder for folder in (out, *out.parents) if folder.is_dir()), out)]
        if self._shown == "save" and self._saved and status.scene and self._saved[0] == status.scene.path:
            places = [self._saved[1], *places]
        return next((folder for folder in places if folder.is_dir()), self._folder)

    def _proposed_name(self) -> str:
        """Returns the file name to propose for saving, which is never the name of the opened file."""
        scene, training = self.session.engine.status.scene, self.session.engine.status.training
        if self._shown != "save" or scene is None:
            return ""
        reached = f"-{training.iteration}" if training.state != "none" else "-copy"
        return f"{scene.path.stem if scene.kind != 'dataset' else scene.path.name}{reached}{SUFFIX}"

    def _close(self) -> None:
        self.session.dialogs.browser = ""

    def _enter_parent(self) -> None:
        self._enter(self._folder.parent)

    def _enter(self, folder: Path) -> None:
        self._folder, self._chosen, self._replacing = folder, None, None
        self._reading = self._reader.submit(list_folder, folder)
        dpg.set_value(self._place, str(folder))
        self._say("Reading…")

    def _fill(self, listing: Listing) -> None:
        if listing.folder != self._folder:
            return
        dpg.delete_item(self._list, children_only=True)
        self._rows = {}
        with inside(self._list), inside(dpg.add_table(header_row=False)) as table:
            dpg.bind_item_theme(table, self.style.facts)
            dpg.add_table_column()
            dpg.add_table_column(width_fixed=True, init_width_or_weight=self.style.px(110))
            for row in listing.rows:
                with inside(dpg.add_table_row()):
                    name = dpg.add_selectable(label=row.path.name, span_columns=True)
                    dpg.add_text(KINDS[row.kind] or size_text(row.size), color=DIM)
                dpg.bind_item_handler_registry(name, self._handlers)
                self._rows[name] = row
        if listing.problem:
            self._say(listing.problem, warn=True)
        elif not listing.rows:
            self._say("No folders and no .ply files here.")
        else:
            self._say(f"{count(listing.left_out)} more are not listed." if listing.left_out else "")

    # Choosing ----------------------------------------------------------------------------------------

    def _choose(self, row: Row | None) -> None:
        if row is None:
            return
        for item, other in self._rows.items():
            dpg.set_value(item, other is row)
        self._replacing = None
        if row.opens or self._shown == "open":
            self._chosen = row.path
            dpg.set_value(self.path_box, str(row.path))

    def _take(self, row: Row | None) -> None:
        if row is None:
            return
        if row.kind == "folder" or self._shown == "save":
            self._enter(row.path if row.path.is_dir() else self._folder)
        else:
            self._finish(row.path)

    def _accept(self) -> None:
        """Opens or saves the path in the box, or goes to it if it is a folder. Enter and the button do the same."""
        path = typed_path(dpg.get_value(self.path_box))
        if path is None:
            return
        path = self._folder / path
        try:
            if path.is_dir() and (self._shown == "save" or kind_of(path) == "folder"):
                self._enter(folder_of(str(path), self._folder))
                dpg.set_value(self.path_box, self._proposed_name())
            elif self._shown == "save":
                self._save(with_suffix(path))
            else:
                self._finish(path)  # the engine reports what is wrong with the path
        except (InputError, OSError) as error:
            self._say(str(error), warn=True)
        if self.session.dialogs.browser:
            dpg.focus_item(self.path_box)  # Enter took the focus from the box; Enter should work again

    def _save(self, path: Path) -> None:
        if path.exists() and path != self._replacing:
            self._replacing = path
            self._say(f"{path.name} exists. Press Save again to replace it.", warn=True)
            return
        if self.session.engine.status.scene is not None:
            self._saved = self.session.engine.status.scene.path, path.parent
        self.session.save_ply(path)
        self._close()

    def _finish(self, path: Path) -> None:
        self.session.open(str(path))
        self._close()

    def _say(self, text: str, warn: bool = False) -> None:
        dpg.configure_item(self._note, color=WARN if warn else DIM)
        dpg.set_value(self._note, text)


def with_suffix(path: Path) -> Path:
    """Returns the path of a splat file for a typed name: "cup", "cup.v2" and "cup.spz" all get the ending .ply, because
    that is the format of the file."""
    return path if path.suffix.lower() == SUFFIX else path.with_name(path.name + SUFFIX)


def size_text(size: int) -> str:
    """Returns a file's size with its unit."""
    for unit, bytes_each in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= bytes_each:
            return f"{size / bytes_each:.1f} {unit}"
    return f"{size} B"
