"""Marks the blobs that have tags, once, when a database gets the column for it.

Their facts are not readable in SQL. Front ends of an earlier version that still work do not mark
what they write: a search finds such a blob after its tags are set again.
"""

from typing import Any

from partita.blobs.rules.names import LIVE
from partita.blobs.rules.stored_format import TAGGED, decode_blob

ROWS_READ = 5000

_READ = """
SELECT container, name, facts FROM partita.blob
 WHERE (container, name) > ($1, $2) AND snapshot = $3 AND is_committed
 ORDER BY container, name LIMIT $4
"""
_MARK = """
UPDATE partita.blob b SET state = $1 FROM unnest($2::bigint[], $3::text[]) t (container, name)
 WHERE b.container = t.container AND b.name = t.name AND b.snapshot = $4
"""


async def mark_tagged(connection: Any) -> None:
    """Mark the blobs that have tags; in the transaction of the upgrade."""
    place: tuple[int, str] = (0, "")
    while rows := await connection.fetch(_READ, *place, LIVE, ROWS_READ):
        tagged = [(row[0], row[1]) for row in rows if decode_blob(row[2]).tags]
        if tagged:
            containers, names = map(list, zip(*tagged, strict=True))
            await connection.execute(_MARK, TAGGED, containers, names, LIVE)
        place = rows[-1][0], rows[-1][1]
