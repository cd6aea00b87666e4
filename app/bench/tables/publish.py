"""Rewrites the table of a document from results and the files that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splatscope.app.bench.measure.results import kind_of
from splatscope.app.bench.tables import cpu
from splatscope.app.bench.tables.ladder_document import cuda_table, peers_table
from splatscope.app.bench.tables.marks import check_marks, link_to, rewrite_table
from splatscope.app.bench.tables.runs import training_table
from splatscope.app.bench.tables.schedule import newest_of
from splatscope.app.bench.tables.schedule_document import schedule_table
from splatscope.kernels.errors import InputError

Found = list[tuple[Path | None, dict[str, Any]]]  # (file, the results in it)


def check_readme(readme: Path | None, kind: str, out: Path | None) -> None:
    """Raises InputError, before minutes of work, for a document without a place for the table of results to come.

    All tables but that of the CPU name their files, so they need `out`, the path of the file.
    """
    if readme is None:
        return
    check_marks(readme, kind)
    if out is None and kind != "cpu":
        raise InputError("--readme needs --out as well: the table names the file its figures are in.")


def publish(readme: Path | None, found: Found) -> None:
    """Rewrites the table of the document, if there is one, from results of one kind. Raises InputError."""
    if readme is None:
        return
    sources = [(link_to(path, readme), results) for path, results in found if path is not None]
    place = kind = kind_of(found[0][1])
    if kind == "train":
        table = training_table(sources)
    elif kind == "schedule":
        table = schedule_table(newest_of(found), [link for link, _ in sources])
    elif kind == "cpu":
        if len(found) > 1:
            raise InputError(f"--readme takes one file of CPU figures, got {len(found)}.")
        table = cpu.markdown_table(found[0][1])
    else:
        place = check_marks(readme, kind)
        table = peers_table(sources) if place == "peers" else cuda_table(sources)
    rewrite_table(readme, place, table)
    print(f"Rewrote the table in {readme}")
