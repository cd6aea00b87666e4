"""Classes and functions stay short enough to read at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.places import ROOT

CLASS_LINES, FUNCTION_LINES = 300, 60
FOLDERS = ("kernels", "assets", "training", "viewer", "app", "tests")
LONGER = {  # what may be longer than that, and why
    "kernels/cpu/blend_backward.py:blend_backward": "one compiled kernel",
    "kernels/cpu/project.py:project": "one compiled kernel",
    "kernels/cpu/project_backward.py:chain_lanes": "one compiled kernel",
    "kernels/cpu/project_backward.py:project_backward": "one compiled kernel",
    # To be split:
    "kernels/cuda/training_step.py:TrainingStep": "",
    "training/trainer.py:Trainer": "",
    "app/engine/engine.py:Engine": "",
    "app/run/controller.py:RunController": "",
    "app/commands/render.py:run": "",
    "tests/kernels/test_cuda_schedule.py:plan": "",
    "tests/support/cuda_stages.py:lists_of": "",
}


def long_ones(source: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of each class and function in `source` that is longer than its limit."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > (CLASS_LINES if isinstance(node, ast.ClassDef) else FUNCTION_LINES):
                yield node.name, lines


def test_no_class_is_longer_than_300_lines_and_no_function_than_60() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{name}": lines
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, lines in long_ones(path.read_text(encoding="utf-8"))
    }
    assert not {name: lines for name, lines in found.items() if name not in LONGER}


def test_the_limits_count_classes_functions_and_methods() -> None:
    body = "\n".join(f"    x = {k}" for k in range(60))
    assert list(long_ones(f"def f():\n{body}")) == [("f", 61)]
    assert list(long_ones(f"class C:\n{body}")) == []
    method = "\n".join(f"        x = {k}" for k in range(300))
    assert list(long_ones(f"class C:\n    def f(self):\n{method}")) == [("C", 302), ("f", 301)]
