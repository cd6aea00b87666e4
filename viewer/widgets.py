"""The few building blocks all panels share: what a panel is, labelled rows, facts, text that fits.

A new panel is a subclass of `Panel` in a file of `panels/`, added to the list in `window.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import dearpygui.dearpygui as dpg

from splatscope.viewer.messages import EngineStatus, Picture
from splatscope.viewer.session import Session
from splatscope.viewer.style import DIM, SMALL, Color, Item, Style, inside

LABEL_WIDTH = 104  # points
BAR_MARGIN = 8  # points that words on a progress bar leave free, both sides together


@dataclass
class Ui:
    """What panels are given: the user's state, the look, and the register of fields that take keys."""

    session: Session
    style: Style
    fields: list[Item] = field(default_factory=list)

    def field(self, item: Item) -> Item:
        """Registers an input: while it is in use, keys are not commands."""
        self.fields.append(item)
        return item

    @property
    def typing(self) -> bool:
        """True while a registered input has the keyboard or is being dragged."""
        return any(dpg.is_item_active(item) for item in self.fields)


class Panel:
    """One section of the dock: `build` adds its items once, `update` is called before each frame it is open in."""

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
        """What its header says; asked each frame, also while it is folded."""
        return self.title


@contextmanager
def labelled(style: Style, label: str, width: float = LABEL_WIDTH) -> Iterator[None]:
    """A row: the label, and from a fixed column on whatever is added inside."""
    with inside(dpg.add_group(horizontal=True)):
        word = dpg.add_button(label=label, width=style.px(width))
        dpg.bind_item_theme(word, style.label)
        yield


class Facts:
    """Labels with values in `columns` pairs a row; `show` sets a value by its label."""

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
        """Sets one value, a dash if there is none; unchanged text costs nothing."""
        text = text or "–"
        if self._shown.get(label) != text:
            self._shown[label] = text
            dpg.set_value(self._values[label], text)

    def rename(self, label: str, shown: str) -> None:
        """Another word for a value; it is still shown by its first one."""
        dpg.set_value(self._names[label], shown)

    def item(self, label: str) -> Item:
        """The text item of a value, for a tooltip."""
        return self._values[label]


def button(
    style: Style, label: str, action: Callable[[], object], width: float = 0.0, primary: bool = False, tip: str = ""
) -> Item:
    """A button; `width` in points, 0 fits the label. Its tooltip goes when it is pressed: what it foretold is there
    now, and may lie beneath it."""
    item = dpg.add_button(label=label, width=style.px(width), callback=action)
    if primary:
        dpg.bind_item_theme(item, style.primary_button)
    if tip:
        words = tooltip(style, item, tip)

        def press() -> None:
            hush(style, item, words)
            action()

        dpg.configure_item(item, callback=press)
    return item


def hush(style: Style, item: Item, words: Item) -> None:
    """Puts away the tooltip of an item, whose text that is, until the mouse has left the item."""
    box = dpg.get_item_parent(words)
    if box is not None:
        style.hushed[item] = box
        dpg.hide_item(box)


def wake_tooltips(style: Style) -> None:
    """Once the mouse has left, what was put away shows again."""
    for item, tip in list(style.hushed.items()):
        if not dpg.does_item_exist(tip):
            del style.hushed[item]
        elif not dpg.is_item_hovered(item):
            del style.hushed[item]
            dpg.show_item(tip)


def tooltip(style: Style, item: Item, text: str) -> Item:
    """Text shown while the mouse rests on an item; returns the text's item.

    Dear PyGui shows a tooltip while the last item drawn before it is hovered: of a hidden item, that is the one before.
    So the item gets a group of its own, which is as empty as the item is hidden.
    """
    with inside(dpg.add_tooltip(alone(item), delay=0.4)):
        return dpg.add_text(text, wrap=style.px(340))


def notice(style: Style, lines: int, color: Color = DIM) -> Item:
    """Adds room for some small lines, so that words which come and go move nothing below them; returns their item."""
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


def alone(item: Item) -> Item:
    """Moves an item into a group of its own, in its place; returns the group."""
    group = dpg.add_group(before=item)
    dpg.move_item(item, parent=group)
    return group


def fit(text: str, width: float, font: Item) -> str:
    """`text`, its middle left out if it is wider than `width` pixels."""
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
    """Words on a progress bar as wide as its parent: the first of the wordings that it has room for,
    else the last, its middle left out.

    Longer ones would be cut at both sides, and a figure without its beginning reads as another.
    """
    around = dpg.get_item_state(dpg.get_item_parent(bar) or bar)  # the bar, as wide as that, does not tell itself
    width = around["content_region_avail"][0]  # 0 before it is drawn: nothing is known to fit
    room = width - style.px(BAR_MARGIN)
    words = next((words for words in wordings if text_width(words, style.body) <= room), "")
    dpg.configure_item(bar, overlay=words or (fit(wordings[-1], room, style.body) if width else ""))


def text_width(text: str, font: Item) -> float:
    """Pixels a line of text takes; 0 before the first frame."""
    size = dpg.get_text_size(text, font=font)
    return float(size[0]) if size else 0.0


def count(value: int) -> str:
    """A number with thousands separators."""
    return f"{value:,}"


def milliseconds(value: float) -> str:
    """ms with the digits that matter."""
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def duration(seconds: float) -> str:
    """12 s, 3 min 20 s, 2 h 05 min."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"
