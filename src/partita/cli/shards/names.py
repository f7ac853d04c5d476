"""Short names of shards: what tables show, and what arguments take besides locations and ids."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from partita.cli.kit.facts import Line, Table
from partita.shards.keys.mapping import Location


class Names:
    """The short names of the shards of one catalog.

    A name is that of the database, or of the SQLite file without its ending; where two are equal,
    the host or the folder is put before it, and where that is not enough, it is the location.
    """

    def __init__(self, locations: Iterable[Location]) -> None:
        forms = {location.text: [*_forms(location)] for location in locations}
        taken = Counter(form for each in forms.values() for form in each)
        self._names = {
            location: next((form for form in each if taken[form] == 1), location)
            for location, each in forms.items()
        }
        # The longest first: one location may begin with another.
        known = "|".join(re.escape(text) for text in sorted(forms, key=len, reverse=True))
        self._pattern = re.compile(rf"(?:{known})(?![\w./-])") if known else None

    def of(self, location: str) -> str:
        """Return the short name of a location; the location itself if it is not known."""
        return self._names.get(location, location)

    def shorten(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Replace locations by short names, except in a column of locations."""
        for line in lines:
            if isinstance(line, str):
                yield self._shortened(line)
            else:
                yield Table(line.headings, [self._row(line.headings, row) for row in line.rows])

    def _row(self, headings: Sequence[str], row: Sequence[object]) -> list[object]:
        return [
            self._shortened(cell) if isinstance(cell, str) and heading != "location" else cell
            for heading, cell in zip(headings, row, strict=True)
        ]

    def _shortened(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._names[match[0]], text)


def _forms(location: Location) -> Iterator[str]:
    """Yield possible names of a location, the shortest first."""
    path = Path(location.database)
    if location.backend == "sqlite":
        yield path.stem
        yield f"{path.parent.name}/{path.stem}"
    else:
        yield location.database
        yield f"{location.host}/{location.database}"
