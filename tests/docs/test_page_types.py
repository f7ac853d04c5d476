"""The programs of every page pass mypy and pyright, as the editors of their readers run them."""

import re
import textwrap
from pathlib import Path

import pytest

from docs.sources import PROJECT
from support.type_checkers import mypy, pyright

FENCED = re.compile(r"^( *)```python(?: (\S+))?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
AREAS = ["patterns", "reliable", "shards"]
AZURE_UNTYPED = re.compile(
    r"\*\*kwargs: Unknown\) -> .*\b(TableClient|TableItem|TableEntity|Dict\[str, Any\])\W.*"
    r"\(reportUnknownMemberType\)"
)
"""The methods of Azure's table clients have `**kwargs` without a type, which strict mode reports
in the programs that call them."""


def programs(page: Path) -> dict[str, str]:
    """Return the programs of a page by their file names, as the tests that run them save them.

    Blocks without a name are one program. A block with the name of an earlier one continues it in
    docs/reliable, and replaces it elsewhere. A fragment that no test runs becomes a function.
    """
    found: dict[str, str] = {}
    for number, (_, named, block) in enumerate(FENCED.findall(page.read_text("utf-8"))):
        name, text = named, textwrap.dedent(block)
        if named == "skip":
            name = f"fragment_{page.stem}_{number}.py"
            text = "async def fragment() -> None:\n" + textwrap.indent(text, "    ")
        elif not named:
            name = f"page_{page.stem.replace('-', '_')}.py"
        elif named in found and page.parent.name != "reliable":
            found[f"earlier_{number}_{named}"] = found.pop(named)
        found[name] = f"{found[name]}\n\n{text}" if name in found else text
    return found


def save(area: str, folder: Path) -> list[str]:
    """Save the programs of all pages of an area; return their names."""
    names: list[str] = []
    for page in sorted((PROJECT / "docs" / area).glob("*.md")):
        for name, text in programs(page).items():
            assert name not in names
            names.append(name)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, "utf-8")
    return names


def errors(printed: str) -> list[str]:
    """Return the errors that pyright printed, each with its explanation, in one line."""
    found: list[str] = []
    for line in printed.splitlines():
        if re.search(r":\d+:\d+ - error: ", line):
            found.append(line.strip())
        elif line[:1].isspace() and found:
            found[-1] += f" {' '.join(line.split())}"
    return found


@pytest.mark.proof
@pytest.mark.parametrize("area", AREAS)
def test_the_pages_pass_mypy_in_strict_mode(area: str, tmp_path: Path) -> None:
    names = save(area, tmp_path)

    printed = mypy(tmp_path, *names)

    assert f"Success: no issues found in {len(names)} source files" in printed, printed


@pytest.mark.proof
@pytest.mark.parametrize("area", AREAS)
def test_the_pages_pass_pyright(area: str, tmp_path: Path) -> None:
    names = save(area, tmp_path)

    printed = pyright(tmp_path, *names)

    assert re.search(r"\b\d+ errors?, 0 warnings", printed), printed
    assert [error for error in errors(printed) if not AZURE_UNTYPED.search(error)] == []


def test_every_page_with_programs_is_checked(tmp_path: Path) -> None:
    pages = {page for area in AREAS for page in (PROJECT / "docs" / area).glob("*.md")}

    with_programs = {page for page in pages if "```python" in page.read_text("utf-8")}

    assert {page for page in pages if programs(page)} == with_programs
    assert len(with_programs) > 50
