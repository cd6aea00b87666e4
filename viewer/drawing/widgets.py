"""Provides what all panels share: the base class, rows with labels, facts, notes, buttons, tooltips, text that fits.

A new panel is a subclass of `Panel` in a file of `panels/`, added to the list in `window.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import BODY, MENU_HEIGHT, SCROLLBAR, SMALL, Item, Style, inside
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.palette import DIM, Color
from splatscope.viewer.state.session import Session

LABEL_WIDTH = 104  # points
BAR_MARGIN = 8  # points on a progress bar without words, both sides together
TIP_WIDTH = 340  # points
NOTE_MARGIN = 10  # points


@dataclass
class Ui:
    """Gives panels the session, the style, and the register of fields that take keys."""

    session: Session
    style: Style
    fields: list[Item] = field(default_factory=list)
    room: int = 0  # px for a line of text in the dock

    def field(self, item: Item) -> Item:
        """Registers an input field: while it is in use, keys are no commands."""
        self.fields.append(item)
        return item

    @property
    def typing(self) -> bool:
        """Returns True while a registered input has the keyboard or is being dragged."""
        return any(dpg.is_item_active(item) for item in self.fields)


class Panel:
    """Shows one section of the dock: `build` adds its items once, `update` runs before each frame while it is open."""

    title = ""
    open_at_start = True

    def __init__(self, ui: Ui) -> None:
        self.ui = ui
        self.session = ui.session
        self.style = ui.style

    def build(self) -> None:
        """Adds the panel's items to the container on top of the stack."""
        raise NotImplementedError

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        """Shows the newest values."""
        raise NotImplementedError

    def heading(self) -> str:
        """Returns the text of the section's header; called each frame, also while the section is folded."""
        return self.title


@contextmanager
def label_row(style: Style, label: str, width: float = LABEL_WIDTH) -> Iterator[None]:
    """Adds a row: the label, then the items of the block, which begin at a fixed column."""
    with inside(dpg.add_group(horizontal=True)):
        word = dpg.add_button(label=label, width=style.px(width))
        dpg.bind_item_theme(word, style.label)
        yield


class Facts:
    """Shows labels with values, `columns` pairs a row; `show` sets a value by its label."""

    def __init__(self, style: Style, labels: Sequence[str], columns: int = 1, label_width: float = LABEL_WIDTH) -> None:
        self._names: dict[str, Item] = {}
        self._values: dict[str, Item] = {}
        self._shown: dict[str, str] = {}
        with inside(dpg.add_table(header_row=False, policy=dpg.mvTable_SizingStretchProp, no_pad_outerX=True)) as table:
            dpg.bind_item_theme(table, style.facts)
            for _ in range(columns):
                dpg.add_table_column(width_fixed=True, init_width_or_weight=style.px(label_width))
                dpg.add_table_column(init_width_or_weight=1.0)
            for start in range(0, len(labels), columns):
                with inside(dpg.add_table_row()):
                    for label in labels[start : start + columns]:
                        self._names[label] = dpg.add_text(label, color=DIM)
                        self._values[label] = dpg.add_text("")

    def show(self, label: str, text: str) -> None:
        """Sets one value; an empty text becomes a dash. Unchanged text costs nothing."""
        text = text or "–"
        if self._shown.get(label) != text:
            self._shown[label] = text
            dpg.set_value(self._values[label], text)

    def rename(self, label: str, shown: str) -> None:
        """Shows another label for a value; `show` still takes the first label."""
        dpg.set_value(self._names[label], shown)

    def item(self, label: str) -> Item:
        """Returns the text item of a value, for a tooltip."""
        return self._values[label]


class Note:
    """Shows a text that comes and goes in a place of fixed height, so that nothing below it moves. A text that is too
    long for the place can be scrolled."""

    def __init__(self, ui: Ui, lines: int) -> None:
        self._ui = ui
        height = ui.style.px(BODY) * lines + ui.style.px(NOTE_MARGIN)
        with inside(dpg.add_child_window(height=height, border=False)):
            self._text = dpg.add_text("")

    def show(self, text: str, color: Color = DIM) -> None:
        """Replaces the text; an empty one leaves the place blank."""
        dpg.configure_item(self._text, color=color)
        write(self._ui, self._text, text, self._ui.style.px(SCROLLBAR))


def button(
    style: Style, label: str, action: Callable[[], object], width: float = 0.0, primary: bool = False, tip: str = ""
) -> Item:
    """Adds a button; `width` in points, 0 fits the label. A press hides its tooltip, which could cover what the press
    shows."""
    item = dpg.add_button(label=label, width=style.px(width), callback=action)
    if primary:
        dpg.bind_item_theme(item, style.primary_button)
    if tip:
        words = tooltip(style, item, tip)

        def press() -> None:
            hide_tooltip(style, item, words)
            action()

        dpg.configure_item(item, callback=press)
    return item


def place_over_picture(ui: Ui, window: Item, width: int, height: int, most: int | None = None) -> None:
    """Places a window of `width` x `height` points over the middle of the picture, below the menu bar.

    The window is no wider than the picture, or than `most` pixels if that is given."""
    (room, tall), px = ui.session.view.size, ui.style.px
    wide, high = min(px(width), most or room), min(px(height), tall)
    at = (max(0, (room - wide) // 2), max(px(MENU_HEIGHT), (tall - high) // 2))
    dpg.configure_item(window, pos=at, width=wide, height=high)


def hide_tooltip(style: Style, item: Item, words: Item) -> None:
    """Hides the tooltip of an item until the mouse has left the item; `words` is the tooltip's text."""
    box = dpg.get_item_parent(words)
    if box is not None:
        style.hidden_tooltips[item] = box
        dpg.hide_item(box)


def restore_tooltips(style: Style) -> None:
    """Shows hidden tooltips again once the mouse has left their items."""
    for item, tip in list(style.hidden_tooltips.items()):
        if not dpg.does_item_exist(tip):
            del style.hidden_tooltips[item]
        elif not dpg.is_item_hovered(item):
            del style.hidden_tooltips[item]
            dpg.show_item(tip)


def tooltip(style: Style, item: Item, text: str) -> Item:
    """Adds text that is shown while the mouse rests on an item. Returns the text's item, for `write_tip`.

    Dear PyGui shows a tooltip while the mouse is over the last item drawn before the tooltip. While the item is hidden,
    that would be another item; a group around the item prevents this.
    """
    with inside(dpg.add_tooltip(put_in_group(item), delay=0.4)):
        words = dpg.add_text("", wrap=style.px(TIP_WIDTH))
    write_tip(style, words, text)
    return words


def write_tip(style: Style, words: Item, text: str) -> None:
    """Sets the text of a tooltip; `words` is the item that `tooltip` returned."""
    dpg.set_value(words, wrap_text(text, style.px(TIP_WIDTH), style.body))


def write(ui: Ui, item: Item, text: str, less: int = 0) -> None:
    """Sets a text of the dock, in lines `less` px shorter than the dock."""
    dpg.set_value(item, wrap_text(text, ui.room - less, ui.style.body))


@lru_cache(maxsize=2048)
def wrap_text(text: str, width: int, font: Item) -> str:
    """Returns `text` in lines of at most `width` pixels, broken at spaces.

    Dear PyGui would also break within a number, after a comma or a point. A word longer than a line is broken after
    slashes, else anywhere."""
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for gap, piece in _pieces(paragraph, width, font):
            longer = f"{line}{gap if line else ''}{piece}"
            if line and text_width(longer, font) > width:
                lines.append(line)
                longer = piece
            line = longer
        lines.append(line)
    return "\n".join(lines)


def _pieces(paragraph: str, width: int, font: Item) -> Iterator[tuple[str, str]]:
    """Yields (gap before it, piece) of all parts of a paragraph that must stay together."""
    for word in paragraph.split(" "):
        gap, rest = " ", word
        while text_width(rest, font) > width:
            fits = next(n for n in range(len(rest), 0, -1) if n == 1 or text_width(rest[:n], font) <= width)
            fits = rest.rfind("/", 0, fits) + 1 or fits
            yield gap, rest[:fits]
            gap, rest = "", rest[fits:]
        yield gap, rest


def notice(style: Style, lines: int, color: Color = DIM) -> Item:
    """Adds a place of fixed height for some small lines; returns the item of its text."""
    with inside(
        dpg.add_child_window(
            height=style.px(lines * (SMALL + 1)), border=False, no_scrollbar=True, no_scroll_with_mouse=True
        )
    ):
        return small_text(style, "", color)


def small_text(style: Style, text: str, color: Color = DIM) -> Item:
    """Adds small words that wrap where their container ends."""
    item = dpg.add_text(text, color=color, wrap=0)
    dpg.bind_item_font(item, style.small)
    return item


def put_in_group(item: Item) -> Item:
    """Wraps an item in a new group at the same place; returns the group."""
    group = dpg.add_group(before=item)
    dpg.move_item(item, parent=group)
    return group


def fit(text: str, width: float, font: Item) -> str:
    """Returns `text`, with its middle left out if it is wider than `width` pixels."""
    if not text or text_width(text, font) <= width:
        return text
    keep = max(2, int(len(text) * width / text_width(text, font)) - 1)
    while keep > 2:
        short = text[: keep // 2] + "…" + text[len(text) - (keep - keep // 2) :]
        if text_width(short, font) <= width:
            return short
        keep -= 1
    return "…"


def write_on_bar(style: Style, bar: Item, *wordings: str) -> None:
    """Writes on a progress bar as wide as its parent: the first wording that fits, else the last one shortened.

    Dear PyGui would cut a long text at both sides, and a number without its first digits reads as another number.
    """
    around = dpg.get_item_state(
        dpg.get_item_parent(bar) or bar
    )  # the bar is as wide as its parent, but does not tell its own width
    width = around["content_region_avail"][0]  # 0 before the first frame: then no text fits
    room = width - style.px(BAR_MARGIN)
    words = next((words for words in wordings if text_width(words, style.body) <= room), "")
    dpg.configure_item(bar, overlay=words or (fit(wordings[-1], room, style.body) if width else ""))


def text_width(text: str, font: Item) -> float:
    """Returns the pixels that a line of text takes; 0 before the first frame with that font."""
    size = dpg.get_text_size(text, font=font)
    return float(size[0]) if size else 0.0


def count(value: int) -> str:
    """Returns a number with thousands separators."""
    return f"{value:,}"


def milliseconds(value: float) -> str:
    """Returns milliseconds with the digits that matter."""
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def duration(seconds: float) -> str:
    """Returns a time as "12 s", "3 min 20 s" or "2 h 05 min"."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"
