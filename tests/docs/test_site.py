"""The site that `make docs` builds: every page is in the side bar, every diagram is current."""

import os
import subprocess
import sys
import tomllib
from collections import Counter

import pytest

from docs.sources import DOCUMENTS, PROJECT

SPHINX = PROJECT / "docs" / "sphinx"
ROOT = "docs/index"


def listed() -> list[str]:
    lists = tomllib.loads((SPHINX / "navigation.toml").read_text("utf-8"))
    return [
        found
        for captions in lists.values()
        for pages in captions.values()
        for page in pages
        for found in ([page] if "*" not in page else pages_of(page))
    ]


def pages_of(pattern: str) -> list[str]:
    return [
        path.relative_to(PROJECT).with_suffix("").as_posix()
        for path in sorted(PROJECT.glob(f"{pattern}.md"))
    ]


def test_every_page_is_in_the_side_bar_once() -> None:
    pages = {path.relative_to(PROJECT).with_suffix("").as_posix() for path in DOCUMENTS}
    pages.add("bench/README")
    pages.add("examples/blogs/README")

    assert pages - {ROOT} - set(listed()) == set()
    assert set(listed()) - pages == set()
    assert [page for page, count in Counter(listed()).items() if count > 1] == []


def test_every_user_has_a_list_and_a_section() -> None:
    lists = tomllib.loads((SPHINX / "navigation.toml").read_text("utf-8"))
    users = set(lists[ROOT]) - {"Look up"}
    text = (PROJECT / "docs" / "index.md").read_text("utf-8").lower()

    assert len(users) == 7
    assert {user for user in users if f"## the {user.lower()}\n" not in text} == set()


def test_the_diagrams_are_current() -> None:
    command = [sys.executable, str(PROJECT / "tools" / "draw_diagrams.py"), "--check"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout == "out of date: none\n"


def test_every_package_with_a_public_surface_has_a_generated_page() -> None:
    text = "".join(
        page.read_text("utf-8") for page in sorted((PROJECT / "docs" / "reference").glob("*.md"))
    )

    for package in ("partita", "partita.patterns", "partita.reliable", "partita.shards"):
        assert f"<!-- names of {package} -->" in text
    assert "<!-- verbs of partita -->" in text
    assert "<!-- settings of partita -->" in text


@pytest.mark.soak  # `.ci/run` builds the site, too
def test_the_site_is_built_without_a_warning() -> None:
    done = subprocess.run(
        ["make", "-C", PROJECT, "docs"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=os.environ | {"MAKEFLAGS": ""},
    )

    assert done.returncode == 0, done.stderr
    assert (PROJECT / "site" / "docs" / "reference" / "shards.html").exists()
