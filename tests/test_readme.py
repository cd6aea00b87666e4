"""README says what is true: its keys are the window's, its pictures and figures exist."""

from __future__ import annotations

import re
from pathlib import Path

from splatscope.app.bench_readme import cuda_table
from splatscope.app.bench_report import read_results
from splatscope.viewer.input import help_rows

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def between(marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_keys_in_readme_are_those_the_window_lists() -> None:
    rows = ["| | |", "|---|---|"]
    rows += [f"| {name} | {does} |" for _, table in help_rows() for name, does in table]
    assert between("keys").strip().splitlines() == rows


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / name).read_text())
        missing = [link for link in links if not (ROOT / link).exists()]
        assert not missing, f"{name} links to {missing}"


def test_the_table_of_the_gpu_is_what_its_files_say() -> None:
    table = between("bench:cuda").rstrip("\n")
    links = dict.fromkeys(re.findall(r"\]\((benchmarks/results/[\w.-]+\.json)\)", table))
    assert cuda_table([(link, read_results(ROOT / link)) for link in links]) == table


def test_the_figures_in_readme_come_from_files_that_are_here() -> None:
    assert "ms" in between("bench:cpu")
    sources = re.findall(r"benchmarks/results/[\w.-]+\.json", README)
    assert sources
    assert all((ROOT / source).exists() for source in sources)
