"""The real window on a real engine, for tests that drive it from outside; prints how many pictures and bytes it has.

Run as a program with what to open. It differs from `splatscope PATH` only in what it prints and in forgetting all.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from splatscope.app.engine import Engine, EngineConfig
from splatscope.app.plan import RunPlan
from splatscope.training.config import TrainConfig
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.messages import OpenScene
from splatscope.viewer.window import run_window

PAGE_BYTES = 4096


def report(engine: Engine) -> None:
    """Facts, ten times a second."""
    while True:
        picture, status = engine.picture(), engine.status()
        facts = {
            "pictures": picture.serial if picture else 0,
            "resident": int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES,
            "scene": str(status.scene.path) if status.scene else "",
            "up": list(status.scene.up) if status.scene else [],
            "errors": [line.text for line in status.log if line.level == "error"],
        }
        print(json.dumps(facts), flush=True)
        time.sleep(0.1)


def main() -> None:
    """Opens the window until it is closed."""
    engine = Engine(EngineConfig(backend="cpu"), RunPlan(TrainConfig()))
    engine.start()
    engine.send(OpenScene(Path(sys.argv[1])))
    threading.Thread(target=report, args=(engine,), daemon=True).start()
    run_window(engine, WindowConfig(width=800, height=600, ui_scale=1.0))
    engine.close()


if __name__ == "__main__":
    main()
