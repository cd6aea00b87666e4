"""What `splatscope doctor` says of an open capture: the page under Scene, and what of it matters beside Start."""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.assets.checkup import Finding
from splatscope.viewer import messages
from splatscope.viewer.style import DIM, WARN, Style, inside
from splatscope.viewer.widgets import Ui, button

MOST = 3  # odd things told of beside Start
TIME = "time"  # the topic of the finding that says how long a run takes


class CheckupNote:
    """Beside Start: what is odd, and how long the run would take once that was asked. Belongs to the training panel."""

    def __init__(self, ui: Ui) -> None:
        self._session = ui.session
        self._shown: tuple[tuple[Finding, ...], bool] = (), False
        with inside(dpg.add_group(show=False)) as self._whole:
            self._odd = dpg.add_text("", color=WARN, wrap=0)
            self._time = dpg.add_text("", wrap=0)
            tip = "Takes a few steps on a few photographs, as Start does before the first one"
            self._ask = button(ui.style, "How long will it take?", self._foresee, 176, tip=tip)

    def _foresee(self) -> None:
        self._session.client.send(messages.ForeseeTime())
        dpg.set_value(self._time, "Taking a few steps…")
        dpg.configure_item(self._time, show=True)
        dpg.configure_item(self._ask, show=False)

    def show(self, findings: tuple[Finding, ...], begun: bool) -> None:
        """The newest page. How long the whole run takes is not asked of one that has `begun`."""
        if findings is self._shown[0] and begun == self._shown[1]:
            return
        self._shown = findings, begun
        odd = [f"{finding.text} {finding.advice}".strip() for finding in findings if finding.is_odd]
        more = [f"{len(odd) - MOST} more under Scene."] if len(odd) > MOST else []
        time = "" if begun else next((finding.text for finding in findings if finding.topic == TIME), "")
        for item, text in ((self._odd, "\n".join((*odd[:MOST], *more))), (self._time, time)):
            dpg.set_value(item, text[:1].upper() + text[1:])
            dpg.configure_item(item, show=bool(text))
        dpg.configure_item(self._ask, show=not time and not begun)
        dpg.configure_item(self._whole, show=bool(odd if begun else findings))


class CheckupPage:
    """What `splatscope doctor` says of an open capture, folded."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._shown: tuple[Finding, ...] = ()
        self._page = dpg.add_tree_node(show=False, default_open=False)

    def show(self, findings: tuple[Finding, ...]) -> None:
        """The newest page; what is odd comes first."""
        if findings is self._shown:
            return
        self._shown = findings
        odd = [finding for finding in findings if finding.is_odd]
        words = {0: "nothing is odd", 1: "one thing is odd"}.get(len(odd), f"{len(odd)} things are odd")
        label = f"Looked over: {words}"
        dpg.configure_item(self._page, show=bool(findings), label=label)
        dpg.delete_item(self._page, children_only=True)
        with inside(self._page):
            for finding in odd:
                dpg.add_text(f"{finding.text} {finding.advice}".strip(), color=WARN, wrap=0)
            facts = [finding for finding in findings if not finding.is_odd]
            with inside(dpg.add_table(header_row=False, policy=dpg.mvTable_SizingStretchProp)) as table:
                dpg.bind_item_theme(table, self._style.facts)
                dpg.add_table_column(width_fixed=True, init_width_or_weight=self._style.px(88))
                dpg.add_table_column()
                for fact in facts:
                    with inside(dpg.add_table_row()):
                        dpg.add_text(fact.topic, color=DIM)
                        dpg.add_text(fact.text, wrap=0)
