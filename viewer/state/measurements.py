"""Asks the engine for measurements of the present view, and to save them. No GUI."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from splatscope.kernels.ladder import STEPS
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.view import ViewRequest
from splatscope.viewer.state.engine_link import EngineLink
from splatscope.viewer.state.presets import describe, with_filter_of
from splatscope.viewer.state.toggles import Toggles

PREVIOUS = "previous setting"  # the choice next to the presets that a measurement can compare with


class Measurements:
    """Sends the commands that measure; `request` gives the view at full resolution."""

    def __init__(self, engine: EngineLink, toggles: Toggles, request: Callable[[], ViewRequest], folder: Path) -> None:
        self._engine, self._toggles, self._request, self._folder = engine, toggles, request, folder

    def compare(self, against: str) -> None:
        """Measures the wanted policy against PREVIOUS or a preset."""
        backend, policy = self._engine.status.backend, self._toggles.policy
        before = self._toggles.previous if against == PREVIOUS else with_filter_of(STEPS[against].policy, policy)
        if before is not None and self._engine.scene is not None:
            names = (describe(before, backend), describe(policy, backend))
            request = replace(self._request(), policy=policy)  # without what an overlay adds to the policy
            self._engine.send(commands.Compare(request, before, names))

    def save_comparison(self) -> None:
        """Saves the newest comparison as JSON."""
        self._engine.send(commands.SaveComparison(self._folder))

    def record_trace(self) -> None:
        """Records what runs when for a second, and saves it."""
        if self._engine.scene is not None and not self._engine.status.recording:
            self._engine.send(commands.RecordTrace(self._folder))

    def record_frame(self) -> None:
        """Records when and where each tile of this view is blended; the next recording replaces it."""
        if self._engine.scene is not None:
            self._engine.send(commands.RecordFrame(self._request()))

    def save_recorded_frame(self) -> None:
        """Saves the recorded frame as files."""
        if self._engine.status.recorded is not None:
            self._engine.send(commands.SaveRecordedFrame(self._folder))

    def survey_views(self) -> None:
        """Measures the time of every photograph's view."""
        if self._engine.scene is not None:
            self._engine.send(commands.SurveyViews(self._request()))
