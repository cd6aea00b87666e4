"""Shows the findings of `splatscope doctor` for an open capture: all in the Scene section, warnings also near Start."""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.assets.checks.checkup import Finding
from splatscope.kernels.wording import counted
from splatscope.viewer.drawing.style import BODY, INDENT, SCROLLBAR, inside
from splatscope.viewer.drawing.widgets import Ui, button, wrap_text, write
from splatscope.viewer.messages import commands
from splatscope.viewer.palette import DIM, WARN

MOST = 3  # warnings shown near Start
TOPIC_WIDTH = 88  # points
TIME = "time"  # topic of the finding about the time of a run


class CheckupNote:
    """Shows the warnings near Start, and the estimated time of the run on request. A part of the training panel."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._shown: tuple[tuple[Finding, ...], bool] = (), False
        with inside(dpg.add_group(show=False)) as self._whole:
            self._odd = dpg.add_text("", color=WARN)
            # The answer replaces the button in a place of fixed height.
            with inside(dpg.add_child_window(height=2 * ui.style.px(BODY), border=False)) as self._answer:
                self._time = dpg.add_text("")
                tip = "Estimates the time of the whole run from a few steps on a few photographs"
                self._ask = button(ui.style, "Estimate run time", self._foresee, 176, tip=tip)

    def _foresee(self) -> None:
        self._ui.session.engine.send(commands.ForeseeTime())
        self._show_time("Taking a few steps…")

    def _show_time(self, text: str) -> None:
        write(self._ui, self._time, text, self._ui.style.px(SCROLLBAR))
        dpg.configure_item(self._time, show=bool(text))
        dpg.configure_item(self._ask, show=not text)

    def show(self, findings: tuple[Finding, ...], begun: bool) -> None:
        """Shows the newest findings. Once the run has `begun`, there is no estimate of its time."""
        if findings is self._shown[0] and begun == self._shown[1]:
            return
        self._shown = findings, begun
        odd = [f"{finding.text} {finding.advice}".strip() for finding in findings if finding.is_odd]
        more = [f"{len(odd) - MOST} more under Scene."] if len(odd) > MOST else []
        time = "" if begun else next((finding.text for finding in findings if finding.topic == TIME), "")
        write(self._ui, self._odd, "\n".join((*odd[:MOST], *more)))
        dpg.configure_item(self._odd, show=bool(odd))
        self._show_time(time[:1].upper() + time[1:])
        dpg.configure_item(self._answer, show=not begun)
        dpg.configure_item(self._whole, show=bool(odd if begun else findings))


class CheckupPage:
    """Shows all findings of `splatscope doctor` for an open capture, in a fold."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._shown: tuple[Finding, ...] = ()
        self._page = dpg.add_tree_node(show=False, default_open=False)

    def show(self, findings: tuple[Finding, ...]) -> None:
        """Shows the newest findings, warnings first."""
        if findings is self._shown:
            return
        self._shown = findings
        odd = [finding for finding in findings if finding.is_odd]
        label = f"Checks: {counted(len(odd), 'warning')}" if odd else "Checks passed"
        dpg.configure_item(self._page, show=bool(findings), label=label)
        px, room = self._ui.style.px, self._ui.room - self._ui.style.px(INDENT)
        dpg.delete_item(self._page, children_only=True)
        with inside(self._page):
            for finding in odd:
                text = f"{finding.text} {finding.advice}".strip()
                dpg.add_text(wrap_text(text, room, self._ui.style.body), color=WARN)
            facts = [finding for finding in findings if not finding.is_odd]
            with inside(dpg.add_table(header_row=False, policy=dpg.mvTable_SizingStretchProp)) as table:
                dpg.bind_item_theme(table, self._ui.style.facts)
                dpg.add_table_column(width_fixed=True, init_width_or_weight=px(TOPIC_WIDTH))
                dpg.add_table_column()
                for fact in facts:
                    with inside(dpg.add_table_row()):
                        dpg.add_text(fact.topic, color=DIM)
                        dpg.add_text(wrap_text(fact.text, room - px(TOPIC_WIDTH + 12), self._ui.style.body))
