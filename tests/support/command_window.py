"""Opens the window as the command line does, and prints what panels and engine hold, for tests that drive it.

Run as a program with a folder for what the window remembers, then the words of a `splatscope` command line.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from splatscope.app import open_window as window_module
from splatscope.app.main import main as splatscope
from splatscope.viewer import window
from splatscope.viewer.messages.client import EngineClient
from tests.support.window_places import PLACES, REPORT_SECONDS, SHOWN, count_frames, moment, tell_places


def report(engine: EngineClient) -> None:
    """Prints the facts again and again; what the program itself prints goes to stderr."""
    while True:
        picture, status = engine.picture(), engine.status()
        facts = {
            **moment(),
            "requests": picture.serial if picture else 0,
            "policy": repr(picture.request.policy) if picture else "",
            "iteration": status.training.iteration,
            "warnings": [line.text for line in status.log if line.level == "warning"],
            "shown": dict(SHOWN),
            "places": dict(PLACES),
        }
        sys.__stdout__.write(json.dumps(facts) + "\n")  # pyright: ignore[reportOptionalMemberAccess]
        sys.__stdout__.flush()  # pyright: ignore[reportOptionalMemberAccess]
        time.sleep(REPORT_SECONDS)


def main() -> None:
    """Opens the window until it is closed."""
    folder, *words = sys.argv[1:]
    sys.stdout = sys.stderr
    os.environ["XDG_CONFIG_HOME"] = folder
    window.PANELS = tuple(panel for panel in window.PANELS if panel.title == "Toggles")
    for panel in window.PANELS:
        panel.open_at_start = True
    tell_places()
    count_frames()
    run_window = window_module.run_window

    def run_and_tell(engine: Any, *others: Any) -> None:
        threading.Thread(target=report, args=(engine,), daemon=True).start()
        run_window(engine, *others)

    window_module.run_window = run_and_tell
    splatscope(words)


if __name__ == "__main__":
    main()
