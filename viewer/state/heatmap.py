"""Keeps which heatmap lies over the picture, how strongly and on which scale. No GUI."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from splatscope.viewer.messages.scale import HeatScale
from splatscope.viewer.messages.view import OverlayName


@dataclass
class Heatmap:
    """Holds the choices of the heatmap panel."""

    overlay: OverlayName  # over the picture now; "none" while it is off
    kind: OverlayName  # the overlay that Tab switches on
    opacity: float
    scale: HeatScale = field(default_factory=HeatScale)
    hovered_tile: tuple[int, int] | None = None  # row and column of the picture's tile under the mouse

    @staticmethod
    def starting_with(overlay: OverlayName, opacity: float) -> Heatmap:
        """Makes the heatmap of a new window."""
        return Heatmap(overlay, "tiles" if overlay == "none" else overlay, opacity)

    def toggle(self) -> None:
        """Switches the heatmap on or off."""
        self.overlay = self.kind if self.overlay == "none" else "none"

    def show(self, name: OverlayName) -> None:
        """Shows a kind of heatmap, or none. Another kind unlocks the end of the scale, which fitted the kind before."""
        self.overlay = name
        if name not in ("none", self.kind):
            self.kind, self.scale = name, replace(self.scale, locked_top=None)
