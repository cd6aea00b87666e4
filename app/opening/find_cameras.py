"""Opens a capture in the terminal and finds its cameras first if it has none, with a bar and a line for each stage.

The search itself is `assets/sfm/search.py`; in the window `opening.py` does the same while pictures are drawn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskID

from splatscope.app.terminal import Terminal, column
from splatscope.assets.capture import Capture
from splatscope.assets.formats import open_capture
from splatscope.assets.photographs.view_pixels import MASK_USES, MaskUse
from splatscope.assets.sfm.search import FoundCameras, NoCamerasError, SearchProgress
from splatscope.kernels.wording import counted, duration
from splatscope.training.config import DataConfig

POLL_SECONDS = 0.2


def open_or_find(path: Path, data: DataConfig, begun: Path | None = None) -> Capture:
    """Opens a capture, after a search for cameras if it has none. Raises InputError; Ctrl-C ends the search.

    `begun` is the file of splats that training continues with: cameras found now would not fit them.
    """
    masks = uses_of_masks(data.masks, begun is not None)
    try:
        return open_capture(path, data.images, masks, data.axes)
    except NoCamerasError as error:
        if begun is not None:
            raise error.lost(begun) from error
        _search_in_terminal(error)
    return open_capture(path, data.images, masks, data.axes)


def uses_of_masks(wanted: MaskUse, has_begun: bool) -> tuple[MaskUse, ...]:
    """Returns the uses of masks with which cameras may have been found: the wanted one first.

    For a run that has begun any will do, because it may have changed its use of masks after the search.
    """
    return (wanted, *(MASK_USES if has_begun else ()))


def found_sentence(found: FoundCameras, seconds: float) -> str:
    """Returns the result of a search as a sentence."""
    text = f"Found the cameras of {found.placed} of {counted(len(found.names), 'photograph')} in {duration(seconds)}"
    masks = f" Of {found.masked} of them only what masks leave was looked at." if found.masked else ""
    return f"{text}; points fit to {found.error:.2f} px.{masks} They are kept in {found.model}."


def _search_in_terminal(error: NoCamerasError) -> None:
    console = Terminal()
    start, search = time.perf_counter(), error.search()
    masks = f", in what masks leave of {search.masked} of them" if search.masked else ""
    console.print(
        f"Finding where the photographs in {error.folder} were taken{masks}; Ctrl-C stops, and what is done is kept."
    )
    bar = Progress(column("{task.description}"), BarColumn(), console=console, disable=not console.is_terminal)
    try:
        with bar:
            line = _Line(console, bar, bar.add_task("", total=None))
            while not search.wait(POLL_SECONDS):
                line.show(search.reached())
            found = search.result()
            line.show(search.reached())
            line.end()
    finally:
        search.close()
    console.print(found_sentence(found, time.perf_counter() - start))


class _Line:
    """Shows a bar, and prints a line whenever a stage is over; without a terminal, one every few seconds too."""

    PLAIN_SECONDS = 5.0

    def __init__(self, console: Terminal, bar: Progress, task: TaskID) -> None:
        self._console, self._bar, self._task = console, bar, task
        self._newest = SearchProgress()
        self._over = 0  # stages that a line has been printed for
        self._last_plain = time.monotonic()

    def show(self, reached: Sequence[SearchProgress]) -> None:
        """Shows the progress of each stage; the last one is not over."""
        *over, progress = reached
        for stage in over[self._over :]:
            self._say(stage, ".")
        self._over, self._newest = len(over), progress
        self._bar.update(
            self._task, description=progress.sentence(), completed=progress.done, total=progress.total or None
        )
        if not self._console.is_terminal and time.monotonic() - self._last_plain >= self.PLAIN_SECONDS:
            self._say(progress, "…")

    def end(self) -> None:
        """Prints the line about the last stage."""
        self._say(self._newest, ".")

    def _say(self, progress: SearchProgress, end: str) -> None:
        self._last_plain = time.monotonic()
        self._console.print(f"{progress.sentence()}{end}")
