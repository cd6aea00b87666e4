"""Records what runs when, for a second or so, and writes it as a Chrome trace.

The engine's work is on one track, the stages of pictures on another, the stages of training steps on a third. The file
opens in chrome://tracing and in Perfetto. Times are seconds of `time.perf_counter`. A GPU's times come from its own
events (`LiveBackend.newest_spans`); the CPU's stages are laid out one after the other, as its frames report them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from splatscope.app.provenance import Provenance
from splatscope.assets.files.atomic import atomic_path
from splatscope.kernels.backend import Span

ENGINE, DEVICE, TRAINING = 1, 2, 3  # tracks


class TraceRecorder:
    """Collects spans from its creation on."""

    def __init__(self, about: Provenance) -> None:
        self.about = about
        self.start = time.perf_counter()
        stages = f"stages on {about.backend}, {about.device}"
        self._names = {ENGINE: "engine", DEVICE: stages, TRAINING: "training stages"}
        self._spans: list[tuple[int, str, float, float, Mapping[str, object]]] = []

    @contextmanager
    def span(self, name: str, **facts: object) -> Iterator[None]:
        """Records the work inside as one span of the engine; spans nest."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spans.append((ENGINE, name, start, time.perf_counter(), facts))

    def add_stages(self, name: str, stages: Sequence[Span], track: int = DEVICE, **facts: object) -> None:
        """Adds the stages of one picture or training step, and one span around them."""
        if stages:
            start, end = min(start for _, start, _ in stages), max(end for _, _, end in stages)
            self._spans.append((track, name, start, end, facts))
            self._spans += [(track, stage, start, end, {}) for stage, start, end in stages]

    def write(self, path: Path) -> None:
        """Writes the file whole or not at all."""
        events: list[dict[str, object]] = [
            {"ph": "M", "name": "process_name", "pid": 1, "tid": ENGINE, "args": {"name": "splatscope"}}
        ]
        for track in sorted({span[0] for span in self._spans}):
            common = {"ph": "M", "pid": 1, "tid": track}
            events.append({**common, "name": "thread_name", "args": {"name": self._names[track]}})
            events.append({**common, "name": "thread_sort_index", "args": {"sort_index": track}})
        # Of spans that begin together, the longer one comes first: it contains the other.
        for track, name, start, end, facts in sorted(self._spans, key=lambda span: (span[0], span[2], -span[3])):
            times = {"ts": 1e6 * (start - self.start), "dur": 1e6 * (end - start)}  # microseconds
            events.append({"ph": "X", "name": name, "pid": 1, "tid": track, **times, "args": dict(facts)})
        content = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": self.about.facts}
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(content))


def lay_out_stages(stage_ms: Mapping[str, float], start: float) -> list[Span]:
    """Returns the spans of stages that ran one after the other from `start` on."""
    spans = []
    for stage, ms in stage_ms.items():
        spans.append((stage, start, start + ms / 1e3))
        start += ms / 1e3
    return spans
