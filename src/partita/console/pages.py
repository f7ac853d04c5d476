"""The static files of the console, read once when it starts.

Every path that is neither a file nor part of the API is a deep link: it gets the page, and the
page reads its state from the address.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from partita.service.http.request import Response

STATIC: Final = "/static/"
_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def read_pages(folder: Path = _FOLDER) -> dict[str, Response]:
    """Return the answer for each static file, by its path; the page itself is at `/`."""
    found = {
        STATIC + path.relative_to(folder).as_posix(): Response(
            200, [("Content-Type", _TYPES[path.suffix])], path.read_bytes()
        )
        for path in sorted(folder.rglob("*"))
        if path.suffix in _TYPES
    }
    return found | {"/": found.pop(f"{STATIC}index.html")}


def find_page(pages: Mapping[str, Response], path: str) -> Response | None:
    """Find the answer for a path; None if the file does not exist."""
    if path.startswith(STATIC):
        return pages.get(path)
    return pages["/"]
