"""Tests that docstrings begin with a verb, and that hard words become fewer: counted layer by layer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.places import ROOT

HEADLESS = ("What", "Whether", "That", "Those", "Of", "How", "Which", "As")  # a clause that lacks its verb
STOPS = re.compile(r"\banew\b|\bbeside\b|\b(?:is|are|was|were) (?:said|told)\b|See the module's text\.", re.IGNORECASE)
STILL = {"app": 3, "assets": 20, "kernels": 2, "training": 0, "viewer": 0}  # found today; lower them as you go


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield (1 if isinstance(node, ast.Module) else node.body[0].lineno), text


def headless(source: str) -> list[int]:
    """Returns the lines of docstrings whose first sentence is a clause without its verb."""
    return [line for line, text in docstrings(source) if text.split(maxsplit=1)[0] in HEADLESS]


def stops(source: str) -> list[int]:
    """Returns the lines that hold one of the words to avoid, once for each, whatever they are part of."""
    return [number for number, line in enumerate(source.splitlines(), 1) for _ in STOPS.findall(line)]


def places(path: Path) -> list[str]:
    """Returns file and line of every text in a source file that should use other words."""
    source = path.read_text(encoding="utf-8")
    lines = stops(source) + (headless(source) if path.suffix == ".py" else [])
    return [f"{path.relative_to(ROOT).as_posix()}:{line}" for line in sorted(lines)]


@pytest.mark.parametrize("layer", STILL)
def test_docstrings_begin_with_a_verb_and_hard_words_only_become_fewer(layer: str) -> None:
    files = sorted(path for path in (ROOT / layer).rglob("*") if path.suffix in (".py", ".cuh"))
    found = [place for path in files for place in places(path)]
    assert len(found) <= STILL[layer], "say it in other words:\n" + "\n".join(found)
    assert len(found) == STILL[layer], f'fewer than were known: set STILL["{layer}"] to {len(found)}'


def test_the_rules_see_what_they_are_for() -> None:
    source = (
        '"""What it is."""\n\n\ndef f():\n    """Whatever comes, returns it."""\n\n\nclass A:\n    """\n    As B."""\n'
    )
    assert headless(source) == [1, 9]
    assert stops("# which is said, and Begun anew\nx = 'besides'  # told\n") == [1, 1]
