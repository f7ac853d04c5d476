"""Rows of a state as lines of JSON without loss, for other programs and databases.

    {"collection": "users", "kind": "dictionary", "key": "ada", "value": {...}, "version": 1}

Values are as stored, in the schema version that `version` gives; structs are objects. A type that
JSON does not have is an object with one name that begins with "$": $bytes (base64), $datetime,
$date, $time, $seconds (of a timedelta), $uuid, $decimal, $float (nan, inf, -inf), $ext (a code and
base64), and $map, a list of pairs, for a map with a key that is not text or begins with "$" itself.
"""

import json
import struct
from collections.abc import Iterator

import msgspec

from partita.errors import DamageError
from partita.reliable.observing.plain_rows import row_fields
from partita.reliable.state.state import Collection

ROWS_AT_ONCE = 256

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def lines(collection: Collection, sequence: int, now: int) -> Iterator[str]:
    """Yield one line per row in key order, without rows that have expired."""
    description = collection.description
    for step in collection.pairs(sequence, limit=ROWS_AT_ONCE):
        for key, row in step:
            try:
                fields = row_fields(description.kind, key, row, now)
            except (DamageError, msgspec.MsgspecError, struct.error) as error:
                raise _unreadable(description.name) from error
            if fields is not None:
                named = {"collection": description.name, "kind": description.kind}
                yield _encode(named | fields)


def _unreadable(name: str) -> DamageError:
    return DamageError(
        "ValueUnreadable",
        f"A row of {name!r} cannot be read.",
        facts={"collection": name},
        hint="Run `partita state verify`, then restore a backup if it is damaged.",
    )
