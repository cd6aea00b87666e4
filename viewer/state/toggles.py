"""Keeps the toggles that the user has set, and the ones before the last change. No GUI.

The presets and the rules between toggles are in `presets.py`.
"""

from __future__ import annotations

from splatscope.kernels.ladder import STEPS
from splatscope.kernels.policy import Filter, Policy, Toggle
from splatscope.viewer.messages.view import SceneInfo
from splatscope.viewer.state.engine_link import EngineLink
from splatscope.viewer.state.presets import settle, with_filter_of


class Toggles:
    """Holds the wanted policy; the engine may still draw with an older one while it compiles."""

    def __init__(self, engine: EngineLink, policy: Policy, keeps_filter: bool) -> None:
        self._engine, self._keeps_filter = engine, keeps_filter
        self.policy = policy
        self.previous: Policy | None = None  # before the last change
        self.note = ""  # names the other toggles that the last change has set
        self._followed: tuple[int, Filter] | None = None  # generation and filter of the scene followed last

    def set(self, row: Toggle, value: str) -> None:
        """Sets one toggle, and any other toggles that no longer work with it."""
        backend = self._engine.status.backend
        policy, changes = settle(self.policy.with_value(row.stage, row.name, value), backend, keep=row.key)
        self.set_policy(policy, f"Also set: {', '.join(changes)}." if changes else "")

    def set_preset(self, name: str) -> None:
        """Sets all toggles of a rung of the ladder, but keeps the filter."""
        self.set_policy(with_filter_of(STEPS[name].policy, self.policy))

    def set_policy(self, policy: Policy, note: str = "") -> None:
        """Sets all toggles at once."""
        if policy != self.policy:
            self.previous, self.policy = self.policy, policy
        self.note = note

    def follow_filter(self, scene: SceneInfo) -> None:
        """Takes the scene's own filter when the scene is opened and when a recipe changes it, unless the command line
        asked for one."""
        if self._keeps_filter or self._followed == (scene.generation, scene.filter):
            return
        self._followed = scene.generation, scene.filter
        self.policy = self.policy.with_value("project", "filter", scene.filter)
        before = with_filter_of(self.previous, self.policy) if self.previous else self.policy
        self.previous = before if before != self.policy else None

    def undo_refused(self, drawn: Policy) -> None:
        """Replaces a policy that the engine refused by the one it draws with, which may be of the scene before."""
        before = with_filter_of(drawn, self.policy)
        self.policy, self.note = before if before != self.policy else drawn, ""
