"""What a reader of a file yields: an entity with its place, or a row that is refused; pure."""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from partita.errors import PartitaError

REJECTED_CHARACTERS_MAX = 2000


class Row(msgspec.Struct, frozen=True, gc=False):
    """An entity as a JSON document."""

    place: int
    """The line of the file, or the number of the row, from 1."""
    partition_key: str
    row_key: str
    document: bytes


class Reject(msgspec.Struct, frozen=True, gc=False):
    """A row that is not imported, and why."""

    place: int
    reason: str
    text: str = ""

    @classmethod
    def of(cls, place: int, error: Exception, text: str) -> "Reject":
        """Return the reject of a row that raised an error."""
        return cls(place, reason_of(error), text[:REJECTED_CHARACTERS_MAX])


class Reader(Protocol):
    """A file of entities, read once from its start."""

    def rows(self) -> Iterator[Row | Reject]: ...


def reason_of(error: Exception) -> str:
    """Return why a row is refused, in one line."""
    if not isinstance(error, PartitaError):
        return str(error).replace("\n", " ")
    named = error.facts.get("property") or error.facts.get("key")
    where = f"{named}: " if named else ""
    return " ".join(f"{where}{error.code}: {error.message} {error.hint}".split())
