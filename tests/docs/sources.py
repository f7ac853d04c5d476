"""What the document tests look at: the project's own files."""

import ast
import functools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "partita"
SOURCES = sorted((PROJECT / "src").rglob("*.py"))
DOCUMENTS = sorted(
    [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md"), *PACKAGE.rglob("*.md")]
)
_NOT_OURS = {
    ".git",
    ".venv",
    "node_modules",
    "partita-data",
    "__pycache__",
    "out",
    "build",
    "dist",
    "site",
}


def own_files() -> Iterator[Path]:
    """Every file that belongs in the repository, caches and data left out."""
    for folder, folders, names in os.walk(PROJECT):
        folders[:] = sorted(name for name in folders if _is_ours(name))
        yield from (Path(folder, name) for name in sorted(names) if _is_ours(name))


def _is_ours(name: str) -> bool:
    is_hidden = name.startswith(".") and name not in {".ci", ".gitignore"}
    return not is_hidden and name not in _NOT_OURS


@functools.cache
def trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text("utf-8"))) for path in SOURCES]


def path_in_package(path: Path) -> str:
    """The path as the tests name it: `service/http/protocol.py`."""
    return path.relative_to(PACKAGE).as_posix()


def name_of(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def anchor_of(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"[`*]", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def headings(document: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", document.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)


def code_blocks(document: Path, language: str) -> list[str]:
    """The fenced blocks whose info string is exactly `language`."""
    pattern = rf"^```{re.escape(language)}\n(.*?)^```$"
    return re.findall(pattern, document.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def missing_tests(named: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the tests and classes, as paths and names, that the project does not have."""
    return sorted((path, name) for path, name in named if not _defines(PROJECT / path, name))


def _defines(file: Path, name: str) -> bool:
    definition = rf"^\s*(class|(async )?def) {name}\b"
    return file.exists() and bool(re.search(definition, file.read_text("utf-8"), re.MULTILINE))
