"""Tests that files named in docstrings, comments and documents exist, and that documents' command lines parse."""

from __future__ import annotations

import ast
import io
import re
import shlex
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from splatscope.app.options.subcommands import parse
from splatscope.kernels.errors import InputError
from tests.support.places import ROOT

FOLDERS = ("app", "assets", "kernels", "training", "viewer", "benchmarks", "tests", "docs")
DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
NAMED = re.compile(r"(?<![\w./*<{-])((?:[\w-]+/)*[\w-]+\.(?:py|cuh|sh|md))\b(?![\w(])")
PLACEHOLDER = re.compile(r"(?:^|/)[A-Z]+\.py$")  # app/bench/NAME.py


@cache
def files() -> frozenset[str]:
    """Returns the paths of all files of the project that a text may name."""
    below = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    return frozenset(path.relative_to(ROOT).as_posix() for path in (*below, *ROOT.glob("*.*")))


def is_there(name: str, reader: Path) -> bool:
    """Returns True if `name` leads from the file `reader` to one file: below one of its folders, or by its end."""
    folders = [folder.relative_to(ROOT).as_posix() for folder in reader.parents if folder.is_relative_to(ROOT)]
    if any((name if folder == "." else f"{folder}/{name}") in files() for folder in folders):
        return True
    return sum(path.endswith(f"/{name}") for path in files()) == 1


def comments_and_docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line and text of each comment and docstring in a source file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".cuh":
        for number, line in enumerate(source.splitlines(), 1):
            yield number, line.partition("//")[2]
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                for offset, line in enumerate(text.splitlines()):
                    yield node.body[0].lineno + offset, line


def lost(texts: Iterator[tuple[int, str]], path: Path) -> list[str]:
    """Returns place and name of each missing file that the texts of `path` name."""
    return [
        f"{path.relative_to(ROOT).as_posix()}:{line} names {name}"
        for line, text in texts
        for name in NAMED.findall(text)
        if not PLACEHOLDER.search(name) and not is_there(name, path)
    ]


@pytest.mark.parametrize("folder", FOLDERS[:-1])
def test_every_file_that_a_docstring_or_a_comment_names_is_there(folder: str) -> None:
    sources = sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".cuh"))
    found = [place for path in sources for place in lost(comments_and_docstrings(path), path)]
    assert not found, "no such file, or several: name it from its layer on (kernels/cuda/backend.py)\n" + "\n".join(
        found
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_names_is_there(document: Path) -> None:
    code = re.findall(r"`[^`\n]+`", document.read_text(encoding="utf-8"))
    found = lost(((0, text) for text in code), document)
    assert not found, "no such file, or several: name it from its layer on\n" + "\n".join(found)


def command_lines(text: str) -> list[str]:
    """Returns the command lines of `splatscope` in a document: those between backticks, and the lines of its blocks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    between = re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"^```\w*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    found = [" ".join(line.split()) for line in (*lines, *between)]
    return [line for line in found if line.startswith("splatscope ")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_line_of_a_document_is_understood(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused: list[str] = []
    for line in command_lines(document.read_text(encoding="utf-8")):
        arguments = shlex.split(line, comments=True)[1:]
        if len(arguments) == 1 or (len(arguments) == 2 and arguments[0] == "bench"):  # only the name of a subcommand
            arguments.append("--help")
        try:
            parse(arguments)
        except InputError as error:
            refused.append(f"{line}\n{error}")
        except SystemExit as end:
            if end.code:
                refused.append(f"{line}\n{capsys.readouterr().err}")
    assert not refused, "these command lines no longer exist:\n" + "\n".join(refused)


def test_the_rules_see_what_they_are_for() -> None:
    here = ROOT / "kernels/cuda/launch/launcher.py"
    assert is_there("compiler.py", here)  # next to it
    assert is_there("plan/planner.py", here)  # below a folder that it is in
    assert is_there("kernels/cuda/backend.py", ROOT / "viewer/window.py")
    assert not is_there("backend.py", ROOT / "viewer/window.py")  # three files have this name
    assert not is_there("nothing.py", here)
    assert NAMED.findall("`a/b.py`, c.cuh and x.py() or <run>/y.md") == ["a/b.py", "c.cuh"]
    assert command_lines("`splatscope a b`\n```\nsplatscope c\n```\n") == ["splatscope c", "splatscope a b"]
