"""Defines how the window looks: fonts, spacing, themes. Colours are in `viewer/palette.py`.

Lengths are given in points and become pixels through `Style.px`, so that one number scales everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from importlib.resources import as_file, files

import dearpygui.dearpygui as dpg

from splatscope.viewer.palette import (
    ACCENT,
    ACCENT_DIM,
    BAD,
    BAD_DARK,
    CANVAS,
    DIM,
    FIELD,
    FIELD_DOWN,
    FIELD_HOT,
    LINE,
    PANEL,
    TEXT,
    WARN,
    WINDOW,
    Color,
)

Item = int | str  # Dear PyGui's name for an item, its tag

# Points. In all these fonts, digits are equally wide, so that changing numbers do not move.
BODY, SMALL, LARGE, MONO = 17, 15, 24, 13
PADDING, SCROLLBAR = 10, 11  # points: space inside the edge of a window, width of its scrollbar
INDENT = 14  # points of the items inside a fold
MENU_HEIGHT = BODY + 10
FONTS = files("splatscope.assets") / "fonts"


@contextmanager
def inside(item: Item) -> Iterator[Item]:
    """Adds the items of the block to a container. Dear PyGui's `with dpg.window()` does so too, but has wrong types."""
    dpg.push_container_stack(item)
    try:
        yield item
    finally:
        dpg.pop_container_stack()


class Style:
    """Makes fonts and themes at one scale; needs the Dear PyGui context."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.hidden_tooltips: dict[Item, Item] = {}  # tooltips hidden by a press, by the item they belong to
        names = ("SourceSansPro-Regular.ttf", "SourceSansPro-Semibold.ttf", "NotoSansMono-Regular.ttf")
        with ExitStack() as stack, inside(dpg.add_font_registry()):
            regular, bold, mono = (str(stack.enter_context(as_file(FONTS / name))) for name in names)
            self.body = dpg.add_font(regular, self.px(BODY))
            self.small = dpg.add_font(regular, self.px(SMALL))
            self.bold = dpg.add_font(bold, self.px(BODY))
            self.large = dpg.add_font(bold, self.px(LARGE))
            self.mono = dpg.add_font(mono, self.px(MONO))
            self.figures = dpg.add_font(mono, self.px(BODY))  # columns of digits, as high as body text

    def px(self, points: float) -> int:
        """Returns the pixels of a length in points."""
        return round(points * self.scale)

    def apply(self) -> None:
        """Applies the fonts and the theme to all items without their own."""
        dpg.bind_font(self.body)
        dpg.bind_theme(self._theme(GLOBAL_COLORS, self._global_lengths()))

    @cached_property
    def canvas(self) -> Item:
        """Returns the theme of the window that holds the picture."""
        return self._theme(
            {dpg.mvThemeCol_WindowBg: CANVAS},
            {dpg.mvStyleVar_WindowPadding: (0, 0), dpg.mvStyleVar_WindowBorderSize: (0,)},
        )

    @cached_property
    def bar(self) -> Item:
        """Returns the theme of the status bar."""
        return self._theme(
            {dpg.mvThemeCol_WindowBg: PANEL},
            {dpg.mvStyleVar_WindowPadding: (self.px(12), self.px(5)), dpg.mvStyleVar_WindowBorderSize: (0,)},
        )

    @cached_property
    def error_bar(self) -> Item:
        """Returns the theme of the bar that shows an error."""
        return self._theme(
            {
                dpg.mvThemeCol_WindowBg: BAD_DARK,
                dpg.mvThemeCol_Border: BAD,
                dpg.mvThemeCol_Button: (128, 52, 57),
                dpg.mvThemeCol_ButtonHovered: (156, 66, 71),
                dpg.mvThemeCol_ButtonActive: (176, 76, 81),
            },
            {dpg.mvStyleVar_WindowPadding: (self.px(12), self.px(9)), dpg.mvStyleVar_WindowBorderSize: (1,)},
        )

    @cached_property
    def primary_button(self) -> Item:
        """Returns the theme of the button that a person most likely wants to press."""
        return self._theme(
            {
                dpg.mvThemeCol_Button: ACCENT_DIM,
                dpg.mvThemeCol_ButtonHovered: (58, 110, 178),
                dpg.mvThemeCol_ButtonActive: (68, 126, 204),
            }
        )

    @cached_property
    def popup(self) -> Item:
        """Returns the theme of windows that lie over the picture."""
        return self._theme(
            {dpg.mvThemeCol_Border: (78, 85, 100)},
            {dpg.mvStyleVar_WindowBorderSize: (1,), dpg.mvStyleVar_WindowPadding: (self.px(12), self.px(10))},
        )

    @cached_property
    def facts(self) -> Item:
        """Returns the theme of tables of short facts: rows close together."""
        padding = {dpg.mvStyleVar_CellPadding: (self.px(3), self.px(1)), dpg.mvStyleVar_FramePadding: (0, 0)}
        return self._theme({}, padding)

    @cached_property
    def lines(self) -> Item:
        """Returns the theme of a group of short lines close together."""
        return self._theme({}, {dpg.mvStyleVar_ItemSpacing: (self.px(8), self.px(2))})

    @cached_property
    def label(self) -> Item:
        """Returns the theme of a button that is only a word: unlike plain text, it is level with the field
        next to it.
        """
        return self._word(DIM)

    @cached_property
    def marked_label(self) -> Item:
        """Returns the theme of the label of a changed setting."""
        return self._word(ACCENT)

    @cached_property
    def refused_label(self) -> Item:
        """Returns the theme of the label of a field whose new value was refused."""
        return self._word(WARN)

    def _word(self, color: Color) -> Item:
        clear: Color = (0, 0, 0, 0)
        return self._theme(
            {
                dpg.mvThemeCol_Button: clear,
                dpg.mvThemeCol_ButtonHovered: clear,
                dpg.mvThemeCol_ButtonActive: clear,
                dpg.mvThemeCol_Text: color,
            },
            {dpg.mvStyleVar_ButtonTextAlign: (0.0, 0.5), dpg.mvStyleVar_FramePadding: (0, self.px(4))},
        )

    @cached_property
    def can_be_grey(self) -> Item:
        """Returns the theme of a control that is grey while it is disabled."""
        faint: Color = (92, 98, 110)
        with inside(dpg.add_theme()) as theme:
            for kind in (dpg.mvButton, dpg.mvCheckbox, dpg.mvCombo, dpg.mvInputInt, dpg.mvSelectable):
                with inside(dpg.add_theme_component(kind, enabled_state=False)):
                    for target, color in (
                        (dpg.mvThemeCol_Text, faint),
                        (dpg.mvThemeCol_CheckMark, faint),
                        (dpg.mvThemeCol_FrameBg, PANEL),
                        (dpg.mvThemeCol_FrameBgHovered, PANEL),
                        (dpg.mvThemeCol_FrameBgActive, PANEL),
                        (dpg.mvThemeCol_Button, PANEL),
                        (dpg.mvThemeCol_ButtonHovered, PANEL),
                    ):
                        dpg.add_theme_color(target, color)
        return theme

    def line(self, color: Color) -> Item:
        """Makes the theme of a curve and its band in a plot."""
        faint = (*color[:3], 48)
        with inside(dpg.add_theme()) as theme:
            with inside(dpg.add_theme_component(dpg.mvPlot)):
                dpg.add_theme_style(
                    dpg.mvPlotStyleVar_PlotPadding, self.px(4), self.px(4), category=dpg.mvThemeCat_Plots
                )
            for kind in (dpg.mvLineSeries, dpg.mvStairSeries):
                with inside(dpg.add_theme_component(kind)):
                    dpg.add_theme_color(dpg.mvPlotCol_Line, color, category=dpg.mvThemeCat_Plots)
                    dpg.add_theme_style(dpg.mvPlotStyleVar_LineWeight, 1.5 * self.scale, category=dpg.mvThemeCat_Plots)
            with inside(dpg.add_theme_component(dpg.mvScatterSeries)):
                for part in (dpg.mvPlotCol_MarkerFill, dpg.mvPlotCol_MarkerOutline):
                    dpg.add_theme_color(part, color, category=dpg.mvThemeCat_Plots)
                dpg.add_theme_style(dpg.mvPlotStyleVar_MarkerSize, 2.5 * self.scale, category=dpg.mvThemeCat_Plots)
            with inside(dpg.add_theme_component(dpg.mvShadeSeries)):
                dpg.add_theme_color(dpg.mvPlotCol_Fill, faint, category=dpg.mvThemeCat_Plots)
                dpg.add_theme_color(dpg.mvPlotCol_Line, faint, category=dpg.mvThemeCat_Plots)
        return theme

    def _global_lengths(self) -> dict[int, tuple[float, ...]]:
        px = self.px
        return {
            dpg.mvStyleVar_WindowPadding: (px(PADDING), px(PADDING)),
            dpg.mvStyleVar_FramePadding: (px(8), px(4)),
            dpg.mvStyleVar_ItemSpacing: (px(7), px(5)),
            dpg.mvStyleVar_ItemInnerSpacing: (px(6), px(4)),
            dpg.mvStyleVar_CellPadding: (px(4), px(3)),
            dpg.mvStyleVar_IndentSpacing: (px(INDENT),),
            dpg.mvStyleVar_ScrollbarSize: (px(SCROLLBAR),),
            dpg.mvStyleVar_GrabMinSize: (px(11),),
            dpg.mvStyleVar_WindowRounding: (0,),
            dpg.mvStyleVar_ChildRounding: (px(4),),
            dpg.mvStyleVar_FrameRounding: (px(4),),
            dpg.mvStyleVar_PopupRounding: (px(5),),
            dpg.mvStyleVar_GrabRounding: (px(3),),
            dpg.mvStyleVar_ScrollbarRounding: (px(6),),
            dpg.mvStyleVar_WindowBorderSize: (0,),
            dpg.mvStyleVar_PopupBorderSize: (1,),
        }

    def _theme(self, colors: dict[int, Color], lengths: Mapping[int, tuple[float, ...]] | None = None) -> Item:
        with inside(dpg.add_theme()) as theme, inside(dpg.add_theme_component(dpg.mvAll)):
            for target, color in colors.items():
                dpg.add_theme_color(target, color)
            for target, values in (lengths or {}).items():
                dpg.add_theme_style(target, *values)
            for target, color in PLOT_COLORS.items() if colors is GLOBAL_COLORS else ():
                dpg.add_theme_color(target, color, category=dpg.mvThemeCat_Plots)
        return theme


GLOBAL_COLORS: dict[int, Color] = {
    dpg.mvThemeCol_Text: TEXT,
    dpg.mvThemeCol_TextDisabled: DIM,
    dpg.mvThemeCol_WindowBg: WINDOW,
    dpg.mvThemeCol_ChildBg: (0, 0, 0, 0),
    dpg.mvThemeCol_PopupBg: (36, 40, 48),
    dpg.mvThemeCol_Border: LINE,
    dpg.mvThemeCol_FrameBg: FIELD,
    dpg.mvThemeCol_FrameBgHovered: FIELD_HOT,
    dpg.mvThemeCol_FrameBgActive: FIELD_DOWN,
    dpg.mvThemeCol_TitleBg: PANEL,
    dpg.mvThemeCol_TitleBgActive: PANEL,
    dpg.mvThemeCol_Button: FIELD,
    dpg.mvThemeCol_ButtonHovered: FIELD_HOT,
    dpg.mvThemeCol_ButtonActive: FIELD_DOWN,
    dpg.mvThemeCol_Header: (38, 42, 51),
    dpg.mvThemeCol_HeaderHovered: (46, 51, 62),
    dpg.mvThemeCol_HeaderActive: (54, 60, 73),
    dpg.mvThemeCol_CheckMark: ACCENT,
    dpg.mvThemeCol_SliderGrab: ACCENT_DIM,  # dark enough for the digits on it
    dpg.mvThemeCol_SliderGrabActive: (58, 110, 178),
    dpg.mvThemeCol_Separator: LINE,
    dpg.mvThemeCol_ScrollbarBg: (0, 0, 0, 0),
    dpg.mvThemeCol_ScrollbarGrab: (60, 66, 78),
    dpg.mvThemeCol_ScrollbarGrabHovered: (76, 83, 98),
    dpg.mvThemeCol_ScrollbarGrabActive: (90, 98, 115),
    dpg.mvThemeCol_PlotHistogram: ACCENT_DIM,
    dpg.mvThemeCol_TextSelectedBg: (60, 106, 168),
    dpg.mvThemeCol_TableHeaderBg: (0, 0, 0, 0),
    dpg.mvThemeCol_TableBorderLight: LINE,
    dpg.mvThemeCol_TableBorderStrong: LINE,
}

PLOT_COLORS: dict[int, Color] = {
    dpg.mvPlotCol_FrameBg: (0, 0, 0, 0),
    dpg.mvPlotCol_PlotBg: PANEL,
    dpg.mvPlotCol_PlotBorder: LINE,
    dpg.mvPlotCol_AxisText: DIM,
    dpg.mvPlotCol_AxisGrid: (255, 255, 255, 18),
    dpg.mvPlotCol_TitleText: DIM,
}
