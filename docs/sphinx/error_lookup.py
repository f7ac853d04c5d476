"""Sphinx extension: a field and a list of all codes at the top of docs/errors.md.

Each code is also an object of the site, so that the search finds it by name, and
`errors.html#entityalreadyexists` (in any spelling) is its stable address.
"""

import re
from typing import Any

from sphinx.application import Sphinx

PAGE = "docs/errors"
CODE = re.compile(r"^## (\w+)$", re.MULTILINE)


def add_lookup(_app: Sphinx, page: str, source: list[str]) -> None:
    if page != PAGE:
        return
    codes = CODE.findall(source[0])
    items = "\n".join(f'<li><a href="#{code.lower()}">{code}</a></li>' for code in codes)
    field = (
        '<div class="lookup"><input type="search" aria-label="Code of an error"'
        f' placeholder="Look up one of {len(codes)} codes, then Enter"></div>\n'
        f'<ul class="lookup-codes">\n{items}\n</ul>\n'
    )
    before, heading, after = source[0].partition(f"## {codes[0]}\n")
    source[0] = f"{before}{field}\n{heading}{after}"


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", add_lookup)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
