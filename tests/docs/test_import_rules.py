"""The folders of the package: their size, their docstrings, and their place in the import rules."""

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

from docs.sources import PACKAGE, PROJECT, path_in_package, trees

FILES_MAX = 16
"""Modules in a folder, `__init__` not counted: above it, look for the second noun."""
LAYERED = {"patterns", "service", "blobs", "reliable", "shards", "cli"}
EDGES = {
    *("patterns.ports", "patterns.grants", "patterns.aio", "patterns.sync", "patterns.faults"),
    *(
        "patterns.testing",
        "patterns.single_flight",
        "patterns.background",
        "patterns.scan_warnings",
    ),
}
"""Of patterns: what performs I/O or knows the official SDK."""
FOLDERS = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent.name != "cli")


def contracts() -> dict[str, dict[str, Any]]:
    rules = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    return {contract["name"]: contract for contract in rules["contracts"]}


@pytest.mark.parametrize("folder", FOLDERS, ids=path_in_package)
def test_a_folder_is_small_and_says_what_it_is_for(folder: Path) -> None:
    modules = [path for path in folder.glob("*.py") if path.stem != "__init__"]
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8")))

    assert len(modules) <= FILES_MAX
    assert docstring is not None
    assert docstring.split("\n\n")[0].rstrip().endswith((".", ":"))


@pytest.mark.parametrize("package", sorted(LAYERED))
def test_every_package_of_folders_has_layers(package: str) -> None:
    contract = contracts()[f"layers of {package}"]
    placed = {name.strip() for layer in contract["layers"] for name in layer.split("|")}
    children = {
        path.stem
        for path in (PACKAGE / package).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    } - {"__init__"}

    assert contract["exhaustive"] is True
    assert placed == children


def test_every_folder_of_patterns_is_pure_or_an_edge() -> None:
    pure = set(contracts()["pure folders do no I/O"]["source_modules"])
    core = set(contracts()["the core of patterns knows no client and no server"]["source_modules"])
    children = {
        f"patterns.{path.stem}"
        for path in (PACKAGE / "patterns").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    } - {"patterns.__init__"}

    of_patterns = {
        name.removeprefix("partita.") for name in pure if name.startswith("partita.patterns")
    }
    assert of_patterns == {name.removeprefix("partita.") for name in core}
    assert of_patterns | EDGES == children
    assert of_patterns & EDGES == set()


@pytest.mark.parametrize(
    "package", sorted(path.name for path in PACKAGE.iterdir() if path.is_dir())
)
def test_a_class_name_is_unique_in_its_package(package: str) -> None:
    names = [
        node.name
        for path, tree in trees()
        if path_in_package(path).startswith(f"{package}/") and not is_synchronous_twin(path)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]

    assert {name for name in names if names.count(name) > 1} == set()


def is_synchronous_twin(path: Path) -> bool:
    """Return whether a module repeats the names of an asynchronous one on purpose."""
    return path.stem.endswith("sync") or path.stem.startswith("blocking")
