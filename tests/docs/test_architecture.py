"""docs/architecture.md draws the folders and the paths as they are."""

import ast
import re
from pathlib import Path

from docs.sources import PACKAGE, PROJECT

DOCUMENT = (PROJECT / "docs" / "architecture.md").read_text("utf-8")
DESCRIPTION_COLUMN = 18


def folders(parent: Path) -> list[Path]:
    return sorted(path.parent for path in parent.glob("*/__init__.py"))


def drawing(parent: Path, *, indent: str = "  ") -> list[str]:
    """One line per folder: its name and the first sentence of its docstring."""
    lines = []
    for folder in folders(parent):
        tree = ast.parse((folder / "__init__.py").read_text("utf-8"))
        docstring = ast.get_docstring(tree) or ""
        sentence = " ".join(docstring.split("\n\n")[0].split()).removesuffix(".")
        name = f"{indent}{folder.name}/"
        lines.append(f"{name:<{DESCRIPTION_COLUMN}} {sentence}")
        lines += drawing(folder, indent=indent + "  ")
    return lines


def test_the_tree_of_the_document_is_the_tree_on_the_disk() -> None:
    (block,) = re.findall(r"^```\nsrc/partita/\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)

    assert block.splitlines() == drawing(PACKAGE)
