"""The tree keeps its shape: layers point down only, the package list is complete, imports stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "kernels": {"kernels"},
    "assets": {"assets", "kernels"},
    "training": {"training", "assets", "kernels"},
    "viewer": {"viewer", "assets", "kernels"},
    "benchmarks": {"benchmarks", "assets", "kernels"},
    "app": {"app", "viewer", "training", "benchmarks", "assets", "kernels"},
}


def imported_layers(source: str) -> set[str]:
    """First folder below `splatscope` of everything a module imports, wherever in the file."""
    layers = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which layer is meant"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        layers |= {name.split(".")[1] for name in names if name.startswith("splatscope.")}
    return layers


def test_layers_import_only_what_lies_below_them() -> None:
    files = 0
    for layer, allowed in MAY_IMPORT.items():
        for path in (ROOT / layer).rglob("*.py"):
            files += 1
            wrong = imported_layers(path.read_text()) - allowed
            assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}; {layer} may import {allowed}"
    assert files > 20


def test_the_layer_rule_sees_an_import_inside_a_function() -> None:
    assert imported_layers("def f():\n    from splatscope.viewer import window\n    import splatscope.app.main") == {
        "viewer",
        "app",
    }


def test_the_package_list_matches_the_tree() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        f"splatscope.{'.'.join(path.parent.relative_to(ROOT).parts)}"
        for layer in MAY_IMPORT
        for path in (ROOT / layer).rglob("__init__.py")
    }
    assert set(setuptools["packages"]) == found
    assert {f"splatscope.{folder.replace('/', '.')}" for folder in setuptools["package-dir"].values()} == found
    assert not (ROOT / "__init__.py").exists()


def test_every_folder_with_modules_is_a_package() -> None:
    for layer in MAY_IMPORT:
        for path in (ROOT / layer).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} has modules but no __init__.py"


def test_no_source_file_is_longer_than_500_lines() -> None:
    sources = [p for layer in [*MAY_IMPORT, "tests"] for p in (ROOT / layer).rglob("*.py")]
    too_long = {str(p.relative_to(ROOT)): n for p in sources if (n := len(p.read_text().splitlines())) > 500}
    assert not too_long


def loaded_modules(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(' '.join(m for m in sys.modules if '.' not in m))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (
            "import splatscope.app.cli; splatscope.app.cli._subcommands()",
            {"torch", "numba", "dearpygui", "pycolmap", "scipy"},
        ),
        ("import splatscope.assets.ply, splatscope.assets.formats", {"torch", "numba", "dearpygui", "pycolmap"}),
        ("import splatscope.viewer.navigation, splatscope.viewer.overlays", {"torch", "numba", "dearpygui"}),
        ("import splatscope.app.engine, splatscope.app.session", {"torch", "dearpygui", "pycolmap"}),
        ("import splatscope.kernels.api as a; a.make_backend('cpu')", {"torch", "dearpygui", "pycolmap"}),
    ],
)
def test_heavy_libraries_load_only_where_they_are_needed(code: str, absent: set[str]) -> None:
    assert not loaded_modules(code) & absent
