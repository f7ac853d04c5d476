"""Reading a page of a range of entities from SQLite.

A page is read in one snapshot, so that it never contains a part of a group. It ends at a count, a
number of document bytes, or a time limit; its continuation is the next key.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, islice, starmap
from operator import itemgetter
from typing import Any, TypedDict, cast

import apsw
import msgspec

from partita.tables import limits, pushdown
from partita.tables.edm import TYPE_SUFFIX
from partita.tables.entity import EntityKey, stored_entity
from partita.tables.filters import Filter, compile_filter, names_in
from partita.tables.paging import KeyRange, Page, after
from partita.tables.reading.documents import sound_entities
from partita.tables.reading.learned_index import Candidates
from partita.tables.store import Table
from partita.ticks import Clock

CHUNK_ENTITIES = 12_000
"""The entities that one step of a long filtered scan reads."""
WHOLE_RANGE_SECONDS = 0.02
"""How long a filtered scan reads a range as a whole before it continues in steps.

Measured in instructions of SQLite and not by a clock, by which a busy machine would often read a
range twice."""
PROGRESS_INSTRUCTIONS = 20_000
"""SQLite reports its progress after this many instructions, ..."""
PROGRESS_SECONDS = 0.001
"""... which take about this long."""
FIRST_ROWS = 16
"""Rows that are read before their size is known: each may have 1 MiB."""

Row = tuple[str, str, int, bytes]
_document_of = itemgetter(-1)
_ROW = "pk, rk, ticks, document"
_CONTENT = "ticks, document"


class Scan:
    """One page to read, on any connection."""

    def __init__(
        self, table: Table, span: KeyRange, residual: Filter | None, limit: int, clock: Clock
    ) -> None:
        self._table = table
        self._span = span
        self._residual = residual
        self._limit = limit
        self._clock = clock

    def read(self, connection: apsw.Connection, seconds: float = limits.PAGE_SECONDS_MAX) -> Page:
        """Read the page; `seconds` limits the time of a filtered one."""
        connection.execute("BEGIN")
        try:
            if self._residual is None:
                return self.read_plain(connection, self._limit)
            return self._read_filtered(connection, self._residual, seconds)
        finally:
            connection.execute("COMMIT")

    def read_plain(self, connection: apsw.Connection, limit: int) -> Page:
        """Read without a filter, in the caller's snapshot; at most `limit` entities."""
        cursor = _select(connection, self._table, self._span, None, _CONTENT)
        taken, is_all = _take(cursor, limit + 1)
        found = sound_entities(taken)
        if found is None:
            return self.read_rows(connection, limit)  # which names the damaged one
        if len(found) > limit:
            return Page(found[:limit], found.key_of(limit), limit)
        rest = None if is_all else _behind(self._span, found.key_of(-1))
        return Page(found, rest.lower if rest else None, len(found))

    def read_rows(self, connection: apsw.Connection, limit: int) -> Page:
        """Read the same with the keys of the rows; raise if an entity is damaged."""
        rows, is_all = _take(_select(connection, self._table, self._span, None), limit + 1)
        if len(rows) > limit or is_all:
            return _page_of(rows, limit, min(len(rows), limit))
        rest = _behind(self._span, rows[-1])
        return Page(list(starmap(stored_entity, rows)), rest.lower if rest else None, len(rows))

    def read_candidates(self, connection: apsw.Connection, candidates: Candidates) -> Page | None:
        """Read what an index has found, in the caller's snapshot; None if an entity is damaged."""
        residual, span = self._residual, self._span
        assert residual is not None
        where, parameters = where_of(self._table, span)
        # The unary plus lets SQLite read each key, and not the range.
        where = where.replace(" rk ", " +rk ")
        cursor = connection.execute(
            f"SELECT {_CONTENT} FROM entity WHERE {where}"  # noqa: S608 - only our own text
            " AND rk IN (SELECT value FROM json_each(?)) ORDER BY rk",
            (*parameters, candidates.row_keys),
        )
        taken, is_all = _take(cursor, candidates.count + 1)
        found = sound_entities(taken)
        if found is None:
            return None
        index, name = candidates.index, candidates.index.name
        chosen: Sequence[int] = range(len(found))
        if not candidates.is_exact:
            matches, decode = compile_filter(residual), _decoder_of(names_in(residual))
            documents = found.documents
            chosen = [at for at in chosen if matches(decode(b"{%b" % documents[at]))]
            if candidates.alone is not None and len(chosen) == candidates.count:
                index.exact.add(candidates.alone)
        if len(chosen) > self._limit:
            follows = chosen[self._limit]
            first = found.only(chosen[: self._limit])
            return Page(first, found.key_of(follows), follows, index=name)
        rest = None if is_all else _behind(span, found.key_of(-1))
        if len(chosen) < len(found):
            return Page(found.only(chosen), rest.lower if rest else None, len(found), index=name)
        return Page(found, rest.lower if rest else None, len(found), index=name)

    def _read_filtered(self, connection: apsw.Connection, residual: Filter, seconds: float) -> Page:
        """Read the whole range within a short time limit; otherwise continue in steps.

        Most ranges are short, and finding the end of a step costs an eighth of the step.
        """
        search = _Search(self._table, residual, self._limit + 1)
        deadline = self._clock.monotonic() + seconds
        if _within(connection, search, self._span):
            return msgspec.structs.replace(self._page(search, None), is_counted=False)
        rest: KeyRange | None = self._span
        while rest is not None and not search.is_full:
            part, rest = self._cut(connection, rest)
            search.go_through(connection, part)
            search.examined += self._examined(connection, part, search, is_whole=rest is not None)
            if self._clock.monotonic() > deadline:
                break
        return self._page(search, rest)

    def _cut(self, connection: apsw.Connection, span: KeyRange) -> tuple[KeyRange, KeyRange | None]:
        """Limit a range to the entities of one step."""
        where, parameters = where_of(self._table, span)
        end: list[Any] = connection.execute(
            f"SELECT pk, rk FROM entity WHERE {where} ORDER BY pk, rk LIMIT 1 OFFSET ?",  # noqa: S608 - only our own text
            (*parameters, CHUNK_ENTITIES),
        ).fetchall()
        if not end:
            return span, None
        key = EntityKey(*end[0])
        return KeyRange(span.lower, key), KeyRange(key, span.upper)

    def _examined(
        self, connection: apsw.Connection, part: KeyRange, search: "_Search", *, is_whole: bool
    ) -> int:
        """Return how many entities of a step were looked at."""
        if search.is_full:
            last = search.rows[-1]
            part = KeyRange(part.lower, EntityKey(last[0], after(last[1])))
        elif is_whole:
            return CHUNK_ENTITIES
        return _count(connection, self._table, part)

    def _page(self, search: "_Search", rest: KeyRange | None) -> Page:
        if len(search.rows) > self._limit:
            return _page_of(search.rows, self._limit, max(search.examined, self._limit))
        if search.is_full:
            rest = _behind(self._span, search.rows[-1])
        found = list(starmap(stored_entity, search.rows))
        return Page(found, rest.lower if rest else None, max(search.examined, len(found)))


class _Search:
    """The matches of a filter so far."""

    def __init__(self, table: Table, residual: Filter, wanted: int) -> None:
        self.rows: list[Row] = []
        self.examined = 0
        """Entities that SQLite has looked at; those of a short range are not counted."""
        self._size = 0
        self._table = table
        self._wanted = wanted
        self._pushed = pushdown.translate(residual)
        self._matches = compile_filter(residual)
        self._decode = _decoder_of(names_in(residual))

    @property
    def is_full(self) -> bool:
        return len(self.rows) == self._wanted or self._size >= limits.PAGE_BYTES_MAX

    def go_through(self, connection: apsw.Connection, span: KeyRange) -> None:
        """Add matches until the page is full."""
        matches, decode = self._matches, self._decode
        cursor = _select(connection, self._table, span, self._pushed)
        for row in cursor:
            if matches(decode(b"{" + stored_entity(*row).document)):
                self.rows.append(row)
                self._size += len(row[3])
                if self.is_full:
                    break
        cursor.close()

    def forget(self) -> None:
        self.rows, self._size, self.examined = [], 0, 0


def _within(connection: apsw.Connection, search: _Search, span: KeyRange) -> bool:
    """Read a range within `WHOLE_RANGE_SECONDS`; return False, and nothing, if it takes longer."""
    reports = iter(range(round(WHOLE_RANGE_SECONDS / PROGRESS_SECONDS)))
    connection.set_progress_handler(lambda: next(reports, None) is None, PROGRESS_INSTRUCTIONS)
    try:
        search.go_through(connection, span)
    except apsw.InterruptError:
        search.forget()
        return False
    finally:
        connection.set_progress_handler(None)
    return True


@lru_cache(maxsize=256)
def _decoder_of(names: frozenset[str]) -> Callable[[bytes], dict[str, Any]]:
    """Return a decoder that builds only the members that a filter uses."""
    members = dict.fromkeys(names, Any) | {name + TYPE_SUFFIX: Any for name in names}
    shape = TypedDict("Members", members, total=False)  # type: ignore[misc]  # made at run time
    return cast("Callable[[bytes], dict[str, Any]]", msgspec.json.Decoder(shape).decode)


def where_of(table: Table, span: KeyRange) -> tuple[str, tuple[Any, ...]]:
    """Return the condition on the keys of a nonempty range."""
    (pk, rk), upper = span.lower, span.upper
    if span.single_partition() is not None:
        assert upper is not None
        if upper.partition_key == pk:
            return "tid = ? AND pk = ? AND rk >= ? AND rk < ?", (table.id, pk, rk, upper.row_key)
        return "tid = ? AND pk = ? AND rk >= ?", (table.id, pk, rk)
    if upper is None:
        return "tid = ? AND (pk, rk) >= (?, ?)", (table.id, pk, rk)
    return "tid = ? AND (pk, rk) >= (?, ?) AND (pk, rk) < (?, ?)", (table.id, pk, rk, *upper)


def _select(
    connection: apsw.Connection,
    table: Table,
    span: KeyRange,
    pushed: pushdown.Sql | None,
    columns: str = _ROW,
) -> Any:
    where, parameters = where_of(table, span)
    if pushed is not None:
        where, parameters = f"{where} AND ({pushed[0]})", (*parameters, *pushed[1])
    return connection.execute(
        f"SELECT {columns} FROM entity WHERE {where} ORDER BY pk, rk",  # noqa: S608 - only our own text
        parameters,
    )


def _count(connection: apsw.Connection, table: Table, span: KeyRange) -> int:
    """Count the entities of a nonempty range: up to half of the time that filtering them takes."""
    where, parameters = where_of(table, span)
    statement = f"SELECT count(*) FROM entity WHERE {where}"  # noqa: S608 - only our own text
    counted: Any = connection.execute(statement, parameters).get
    return int(counted)


def _take(cursor: Any, wanted: int) -> tuple[list[Any], bool]:
    """Read rows up to a count or the byte budget of a page; return whether these were all."""
    rows: list[Any] = []
    size = 0
    is_all = False
    count = min(wanted, FIRST_ROWS)
    while count > 0:
        more = list(islice(cursor, count))
        is_all = len(more) < count
        rows += more
        size += sum(map(len, map(_document_of, more)))
        if is_all:
            break
        room = max(0, limits.PAGE_BYTES_MAX - size) * len(rows) // size
        count = min(wanted - len(rows), room)
    cursor.close()
    if size <= limits.PAGE_BYTES_MAX:
        return rows, is_all
    sizes = list(accumulate(map(len, map(_document_of, rows))))
    fitting = bisect_left(sizes, limits.PAGE_BYTES_MAX) + 1
    return rows[:fitting], is_all and fitting >= len(rows)


def _behind(span: KeyRange, row: Row | EntityKey) -> KeyRange | None:
    rest = KeyRange(EntityKey(row[0], after(row[1])), span.upper)
    return None if rest.is_empty else rest


def _page_of(rows: list[Row], limit: int, examined: int) -> Page:
    entities = list(starmap(stored_entity, rows[:limit]))
    return Page(entities, EntityKey(*rows[limit][:2]) if len(rows) > limit else None, examined)
