"""The rows of a download: the next pieces with their extents, in one statement."""

from collections.abc import Iterator
from itertools import islice

from partita.blobs.rules import limits
from partita.blobs.rules.checksums import CHECK_BYTES, damaged
from partita.blobs.store import download
from partita.blobs.store.contract import PieceRow
from partita.blobs.store.download import Fetch, Segment, Wanted
from partita.blobs.store.pieces import needed
from partita.errors import StoreBusyError
from partita.scaleout.connections.link import Rows
from partita.scaleout.connections.pool import Pool
from partita.scaleout.connections.session import RETRY_SECONDS

# Of each extent: the checks of the chunks that are needed, and its bytes if they are in the row;
# as many extents as fit the budget, and one more.
_WITH_EXTENTS = f"""
, cut AS (
  SELECT n.*, (n.start + greatest(n.place, $1::bigint) - n.place) / $3::bigint AS chunk,
         (n.start + least(n.size, $2::bigint - n.place) + $3::bigint - 1) / $3::bigint AS end_chunk
    FROM next n),
sized AS (
  SELECT c.*, e.size AS whole, e.object, e.checks, e.bytes,
         coalesce(octet_length(e.bytes), 0) + (c.end_chunk - c.chunk) * {CHECK_BYTES} AS taken
    FROM cut c LEFT JOIN partita.extent e ON e.id = c.extent),
added AS (SELECT s.*, sum(s.taken) OVER (ORDER BY s.place) - s.taken AS before FROM sized s)
SELECT place, size, start, extent, whole, object, bytes,
       substr(checks, (chunk * {CHECK_BYTES} + 1)::int, ((end_chunk - chunk) * {CHECK_BYTES})::int)
  FROM added WHERE before < $4::bigint ORDER BY place
"""  # noqa: S608 - only our own text
_LOOKED_UP = f"""
WITH next AS (
  SELECT p.place, p.size, p.start, p.extent FROM partita.piece p
   WHERE p.content = $6 AND p.place < $2::bigint AND p.place + p.size > $1::bigint AND p.place >= (
     SELECT coalesce(max(q.place), 0) FROM partita.piece q
      WHERE q.content = $6 AND q.place <= $1::bigint)
   ORDER BY p.place LIMIT $5)
{_WITH_EXTENTS}
"""  # noqa: S608 - only our own text
_GIVEN = f"""
WITH next AS (
  SELECT * FROM unnest($6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[])
    AS n (place, size, start, extent) LIMIT $5)
{_WITH_EXTENTS}
"""  # noqa: S608 - only our own text
_IS_USED = "SELECT 1 FROM partita.blob WHERE content = $1 LIMIT 1"
_IS_PIECE = "SELECT 1 FROM partita.piece WHERE content = $1 AND place = $2 AND extent = $3"


def fetch_from(pool: Pool) -> Fetch:
    """Return what reads the rows of downloads."""

    async def fetch(wanted: Wanted) -> list[Segment]:
        budget = limits.CHUNK_BYTES, download.FETCH_BYTES_MAX, download.FETCH_PIECES_MAX
        values = wanted.first, wanted.end, *budget
        async with pool.link() as link:
            if wanted.pieces is None:
                rows = await link.read(_LOOKED_UP, *values, wanted.content)
                if not rows and not await link.read(_IS_USED, wanted.content):
                    raise _removed()
                return list(_segments(rows, wanted))
            taken = list(islice(wanted.pieces, download.FETCH_PIECES_MAX))
            if not taken:
                return []
            rows = await link.read(_GIVEN, *values, *map(list, zip(*taken, strict=True)))
            for row in rows:
                piece = PieceRow(*row[:4])
                if row["whole"] is None and not await link.read(
                    _IS_PIECE, wanted.content, piece.place, piece.extent
                ):
                    raise _removed()
        for _ in rows:
            wanted.pieces.popleft()
        return list(_segments(rows, wanted))

    return fetch


def _segments(rows: Rows, wanted: Wanted) -> Iterator[Segment]:
    for *piece, whole, name, inline, checks in rows:
        if whole is None:
            raise damaged("a part of it is missing")
        place, start, stop = needed(PieceRow._make(piece), wanted.first, wanted.end)
        yield Segment(place, start, stop, whole, name, inline, checks)


def _removed() -> StoreBusyError:
    """Return the end of a download whose content was purged by another front end."""
    return StoreBusyError(
        "ServerBusy",
        "The server is busy.",
        facts={"retry_after": RETRY_SECONDS, "reason": "removed"},
        hint="The blob was deleted or replaced long before its download ended. Read it again.",
    )
