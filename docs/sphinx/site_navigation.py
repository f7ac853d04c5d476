"""Sphinx extension: the pages in the side bar, from `navigation.toml`.

The lists are there and not in the documents, because a list for Sphinx is shown as code where the
document is read in the repository. A page that no list names fails the build.
"""

import tomllib
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

FILE = Path(__file__).with_name("navigation.toml")


def add_lists(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add the hidden lists of the pages below this one."""
    lists = tomllib.loads(FILE.read_text("utf-8")).get(page, {})
    for caption, pages in lists.items():
        title = f":caption: {caption}\n" if page == "docs/index" else ""
        entries = "\n".join(f"/{each}" if "<" not in each else each for each in pages)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n{title}\n{entries}\n```\n"


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", add_lists)
    app.add_config_value("navigation", FILE.read_text("utf-8"), "env")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
