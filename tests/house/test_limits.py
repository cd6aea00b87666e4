"""Tests that functions and classes are short enough to read at once; longer ones are listed, and the list shrinks."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from tests import conftest
from tests.support.places import ROOT

FOLDERS = ("app", "assets", "kernels", "training", "viewer", "benchmarks", "tests")
LINES = {ast.FunctionDef: 60, ast.AsyncFunctionDef: 60, ast.ClassDef: 300}
FILE_LINES = 500  # more is a warning: a long file of short parts can be read
KNOWN_LONG = {  # lines today; none may grow, and one that is short enough leaves the list
    # Numba compiles each of these as one kernel: its parts cannot be called apart without a copy of all their values.
    "kernels/cpu/blend_backward.py blend_backward": 78,
    "kernels/cpu/project.py project": 71,
    "kernels/cpu/project_backward.py chain_lanes": 73,
    "kernels/cpu/project_backward.py project_backward": 67,
    # These write out one launch with all its arguments.
    "tests/kernels/test_cuda_schedule.py plan": 65,
    "tests/support/cuda_stages.py lists_of": 67,
}


def sources() -> list[Path]:
    """Returns all Python files of the project."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def too_long(source: str) -> Iterator[tuple[str, int]]:
    """Yields the dotted name and the lines of each function and class that has more than it may."""

    def look(node: ast.AST, outside: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from look(child, outside)
                continue
            lines = (child.end_lineno or child.lineno) - child.lineno + 1
            if lines > LINES[type(child)]:
                yield f"{outside}{child.name}", lines
            yield from look(child, f"{outside}{child.name}.")

    yield from look(ast.parse(source), "")


def test_functions_and_classes_are_short_or_known_and_none_of_the_known_grows() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()} {name}": lines
        for path in sources()
        for name, lines in too_long(path.read_text(encoding="utf-8"))
    }
    grown = {name: lines for name, lines in found.items() if lines > KNOWN_LONG.get(name, 0)}
    assert not grown, f"at most {LINES[ast.FunctionDef]} lines a function and {LINES[ast.ClassDef]} a class"
    short = KNOWN_LONG.keys() - found.keys()
    assert not short, "short enough, or gone: take them off KNOWN_LONG"


def test_a_long_file_is_a_warning() -> None:
    for path in sources():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > FILE_LINES:
            warnings.warn(f"{path.relative_to(ROOT)} has {lines} lines, more than {FILE_LINES}.", stacklevel=1)


def test_the_limits_see_methods_and_functions_in_functions() -> None:
    body = "\n".join(["        pass"] * 60)
    assert dict(too_long(f"class A:\n    def f(self):\n{body}\n")) == {"A.f": 61}
    assert dict(too_long(f"def f():\n    def g():\n{body}\n")) == {"f": 62, "f.g": 61}
    assert list(too_long("class A:\n" + "    x = 1\n" * 300)) == [("A", 301)]


def test_the_files_that_are_tested_first_exist() -> None:
    assert set(conftest.FIRST) <= {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
