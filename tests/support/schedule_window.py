"""Opens the heatmap and schedule panels on a real engine with the CPU backend, for tests that drive them.

Prints facts as JSON lines; `fake_engine.py` does so for an engine that only pretends.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from splatscope.app.engine.engine import Engine, EngineConfig
from splatscope.app.run.plan import RunPlan
from splatscope.training.config import TrainConfig
from splatscope.viewer import window
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.messages.commands import OpenScene

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a program, only this folder is known
from tests.support.window_places import PLACES, REPORT_SECONDS, count_frames, moment, tell_places

PANELS = ("Heatmap", "Schedule")


def facts(engine: Engine) -> dict[str, Any]:
    """Returns facts about the window for tests."""
    status, picture = engine.status(), engine.picture()
    known: dict[str, Any] = {**moment(), "places": dict(PLACES), "log": [line.text for line in status.log]}
    known["recorded"] = None if status.recorded is None else status.recorded.recording.timeline.sm_activity
    if picture is not None:
        known |= {"requests": picture.serial, "overlay": picture.request.overlay}
        known["has recording"] = picture.frame.recording is not None
    return known


def main() -> None:
    """Opens a scene with both panels open, and no other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", default="1280x900")
    parser.add_argument("--shots", type=Path, default=Path("screenshots"))
    options = parser.parse_args()
    width, height = (int(part) for part in options.size.split("x"))
    window.PANELS = tuple(panel for panel in window.PANELS if panel.title in PANELS)
    for panel in window.PANELS:
        panel.open_at_start = True
    tell_places()
    count_frames()
    engine = Engine(EngineConfig(backend="cpu"), RunPlan(TrainConfig(), None, None))
    engine.start()
    engine.send(OpenScene(options.path))

    def report() -> None:
        while True:
            print(json.dumps(facts(engine)), flush=True)
            time.sleep(REPORT_SECONDS)

    threading.Thread(target=report, daemon=True).start()
    folders = {"screenshot_dir": options.shots, "measurement_dir": options.shots}
    window.run_window(engine, WindowConfig(width=width, height=height, ui_scale=1.0, **folders))
    engine.close()
    sys.exit(0)


if __name__ == "__main__":
    main()
