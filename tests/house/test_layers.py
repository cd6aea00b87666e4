"""Tests the shape of the tree: layers point down, no folder or file is in a circle, imports stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache

import pytest

from tests.support.places import ROOT

MAY_IMPORT = {
    "kernels": {"kernels"},
    "assets": {"assets", "kernels"},
    "training": {"training", "assets", "kernels"},
    "viewer": {"viewer", "assets", "kernels"},
    "app": {"app", "viewer", "training", "assets", "kernels"},
}
Graph = Mapping[str, set[str]]


def imported_names(source: str) -> set[str]:
    """Returns everything below `splatscope` that a module imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which layer is meant"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("splatscope.") for name in names if name.startswith("splatscope.")}


@cache
def module_graph() -> Graph:
    """Returns the dotted name of each module below the layers -> the modules it imports."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for layer in MAY_IMPORT
        for path in (ROOT / layer).rglob("*.py")
    }
    return {
        name: {module for found in imported_names(path.read_text()) if (module := module_of(found, paths))} - {name}
        for name, path in paths.items()
    }


def module_of(name: str, modules: Iterable[str]) -> str | None:
    """Returns the module that `name` is, or is in."""
    return next((part for part in (name, name.rpartition(".")[0]) if part in modules), None)


def siblings(graph: Graph, folder: str) -> Graph:
    """Returns the same imports between the entries of `folder`: its files, and each of its folders as one."""

    def child(module: str) -> str | None:
        inside = module.removeprefix(f"{folder}.") if folder else module
        return inside.split(".")[0] if module.startswith(f"{folder}.") or not folder else None

    found: dict[str, set[str]] = {}
    for module, targets in graph.items():
        if (own := child(module)) is not None:
            others = found.setdefault(own, set())
            others |= {other for target in targets if (other := child(target)) not in (None, own)}
    return found


def circle(graph: Graph) -> list[str]:
    """Returns the names along one circle of imports; empty if there is none."""
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        found = next((c for other in sorted(graph.get(name, ())) if (c := walk(other, [*way, name]))), [])
        done.add(name)
        return found

    return next((c for name in sorted(graph) if (c := walk(name, []))), [])


def folders() -> list[str]:
    """Returns the dotted names of all folders with modules, and "" for the top folder."""
    inside = {name.rpartition(".")[0] for name in module_graph()}
    return sorted({*inside, *(name for folder in inside for name in [folder.rpartition(".")[0]]), ""})


def test_layers_import_only_what_lies_below_them() -> None:
    for module, targets in module_graph().items():
        layer = module.split(".")[0]
        wrong = {target for target in targets if target.split(".")[0] not in MAY_IMPORT[layer]}
        assert not wrong, f"{module} imports {wrong}; {layer} may import {MAY_IMPORT[layer]}"


@pytest.mark.parametrize("folder", folders(), ids=lambda name: name or "house")
def test_no_files_or_folders_side_by_side_import_each_other_in_a_circle(folder: str) -> None:
    found = circle(siblings(module_graph(), folder))
    assert not found, f"in {folder or 'the house'}: {' -> '.join(found)}"


def test_the_rules_see_imports_inside_functions_and_circles_through_folders() -> None:
    assert imported_names("def f():\n    from splatscope.viewer import window\n    import splatscope.app.main") == {
        "viewer.window",
        "app.main",
    }
    graph = {"a.x.one": {"a.y.two"}, "a.y.two": set(), "a.y.three": {"a.x.four"}, "a.x.four": set()}
    assert circle(graph) == []
    assert circle(siblings(graph, "a")) == ["x", "y", "x"]
    assert module_of("a.y.two.Name", graph) == "a.y.two"


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


def loaded_modules(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(' '.join(m for m in sys.modules if '.' not in m))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (
            "import splatscope.app.options.subcommands",
            {"torch", "numba", "dearpygui", "pycolmap", "scipy"},
        ),
        (
            "import splatscope.assets.splats.ply, splatscope.assets.formats",
            {"torch", "numba", "dearpygui", "pycolmap"},
        ),
        (
            "import splatscope.viewer.state.session, splatscope.viewer.figures.overlays",
            {"torch", "numba", "dearpygui"},
        ),
        ("import splatscope.app.engine.engine, splatscope.app.run.controller", {"torch", "dearpygui", "pycolmap"}),
        ("import splatscope.app.commands.render", {"torch", "dearpygui", "pycolmap"}),
        ("import splatscope.app.commands.view", {"torch", "pycolmap"}),
        ("import splatscope.kernels.backends as b; b.make_backend('cpu')", {"torch", "dearpygui", "pycolmap"}),
    ],
)
def test_heavy_libraries_load_only_where_they_are_needed(code: str, absent: set[str]) -> None:
    assert not loaded_modules(code) & absent
