"""Tests the documents: keys are the window's, links lead somewhere, figures are those of their files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from splatscope.app.bench.measure.results import read_results
from splatscope.app.bench.tables.ladder_document import cuda_table, peers_table
from splatscope.viewer.input import help_rows
from tests.support.places import ROOT

DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
LADDER = ("h200-ladder-2026-11-30.json", "h200-viewing-S2-1080p-2026-11-30.json")


def between(marker: str, document: str) -> str:
    text = (ROOT / document).read_text(encoding="utf-8")
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", text, re.DOTALL)
    assert found is not None
    return found.group(1).rstrip("\n")


def test_readme_stays_short() -> None:
    assert (ROOT / "README.md").stat().st_size <= 6144


def test_the_keys_in_the_documents_are_those_the_window_lists() -> None:
    rows = ["| | |", "|---|---|"]
    rows += [f"| {name} | {does} |" for _, table in help_rows() for name, does in table]
    assert between("keys", "docs/keys.md").splitlines() == rows


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_of_the_documents_leads_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [link for link in re.findall(r"\]\((?!https?:)([^)#]+)", text) if not (document.parent / link).exists()]
    assert not missing
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    places = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= places


def test_every_page_of_the_documents_can_be_reached_from_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        links = re.findall(r"\]\((?!https?:)([^)#]+\.md)", page.read_text(encoding="utf-8"))
        found = {Path(os.path.normpath(page.parent / link)) for link in links}
        waiting += found - reached
    assert set(DOCUMENTS) <= reached


@pytest.mark.parametrize(
    ("marker", "document", "table"),
    [("bench:peers", "README.md", peers_table), ("bench:cuda", "docs/benchmarks.md", cuda_table)],
)
def test_the_tables_of_the_gpu_are_what_their_files_say(marker: str, document: str, table: object) -> None:
    links = [os.path.relpath(ROOT / "benchmarks/results" / name, (ROOT / document).parent) for name in LADDER]
    sources = [(link, read_results((ROOT / document).parent / link)) for link in links]
    assert callable(table)
    assert table(sources) == between(marker, document)


def test_the_figures_in_the_documents_come_from_files_that_are_here() -> None:
    assert "ms" in between("bench:cpu", "docs/benchmarks.md")
    sources = re.findall(r"benchmarks/results/[\w.-]+\.json", "".join(page.read_text() for page in DOCUMENTS))
    assert len(sources) > 20
    assert all((ROOT / source).exists() for source in sources)
