"""The pages of docs/patterns: every example runs and prints what is shown; no page is forgotten."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from docs.sources import PROJECT, code_blocks, missing_tests

FOLDER = PROJECT / "docs" / "patterns"
PAGES = sorted(FOLDER.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_are_one_program_that_prints_what_is_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = code_blocks(page, "python")
    name = f"page_{page.stem.replace('-', '_')}"
    module = ModuleType(name)  # entity classes and explain() look into the module they are in
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(tmp_path)

    exec(compile("\n".join(blocks), page.name, "exec"), module.__dict__)

    assert blocks or page.stem == "guide-table"
    printed = capsys.readouterr().out
    for shown in code_blocks(page, "text"):
        assert shown in printed


def test_every_page_is_in_the_table_of_the_guide_and_in_the_index() -> None:
    for place in ("guide-table.md", "index.md"):
        text = (FOLDER / place).read_text("utf-8")
        linked = set(re.findall(r"\]\(([\w-]+\.md)", text))
        assert {page.name for page in PAGES} - {"index.md", "guide-table.md"} <= linked, place


def test_every_test_that_the_table_of_the_guide_names_exists() -> None:
    text = (FOLDER / "guide-table.md").read_text("utf-8")
    named = set(re.findall(r"\]\(\.\./\.\./(tests/[\w/]+\.py)\) `(\w+)`", text))

    assert len(named) > 30
    assert missing_tests(named) == []
