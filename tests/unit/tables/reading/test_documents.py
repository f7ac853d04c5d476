"""Entities that are read by their documents only equal those of whole rows."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.clock import SystemClock
from partita.errors import ChecksumError
from partita.storage.database import Database
from partita.tables import limits
from partita.tables.engine import TableEngine
from partita.tables.entity import Entity, EntityKey, build, pack_document, stored_entity
from partita.tables.operations import EntityGroup, Insert
from partita.tables.paging import KeyRange
from partita.tables.reading.documents import StoredEntities, sound_entities
from partita.tables.sqlite_scan import Scan
from partita.tables.sqlite_store import SqliteTableStore

keys = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\#?"))
texts = st.sampled_from(["", '","Timestamp":"', ',"Timestamp":"', "'\\\"", "\x00\x02", "é" * 300])
entities = st.builds(
    lambda pk, rk, ticks, text: build((pk, rk), ticks, {"Text": text, "Number": 2}),
    keys | texts.filter(lambda text: "\\" not in text and "\x00" not in text),
    keys | texts.filter(lambda text: "\\" not in text and "\x00" not in text),
    st.integers(1, 10**17),
    texts,
)


def same(one: Entity, other: Entity) -> bool:
    return (one.key, one.ticks, one.document) == (other.key, other.ticks, other.document)


@given(st.lists(st.tuples(entities, st.booleans()), max_size=5))
def test_the_documents_are_those_of_the_rows(written: list[tuple[Entity, bool]]) -> None:
    rows = [
        (each.ticks, pack_document(each.ticks, each.document) if is_new else each.document)
        for each, is_new in written  # those of format 1 have no checksum
    ]

    found = sound_entities(rows)

    assert isinstance(found, StoredEntities)
    expected = [
        stored_entity(*each.key, each.ticks, row[1])
        for (each, _), row in zip(written, rows, strict=True)
    ]
    assert list(found.documents) == [each.document for each in expected]
    assert all(map(same, found, expected))
    assert all(same(found[at], each) for at, each in enumerate(expected))
    assert len(found[1:]) == max(0, len(expected) - 1)


@given(st.lists(entities, min_size=1, max_size=4), st.data())
def test_a_flipped_bit_is_found(written: list[Entity], data: st.DataObject) -> None:
    rows = [(each.ticks, pack_document(each.ticks, each.document)) for each in written]
    which = data.draw(st.integers(0, len(rows) - 1))
    ticks, stored = rows[which]
    bit = data.draw(st.integers(0, 8 * len(stored) - 1))
    damaged = bytearray(stored)
    damaged[bit // 8] ^= 1 << bit % 8
    rows[which] = ticks, bytes(damaged)

    try:
        stored_entity("p", "r", ticks, bytes(damaged))
    except ChecksumError:
        assert sound_entities(rows) is None
    else:
        pytest.fail("a damaged row was accepted")


def test_pages_of_documents_continue_at_every_row() -> None:
    """Short and long documents, every limit and start, and a range that ends inside."""

    async def check() -> None:
        engine = TableEngine(await SqliteTableStore.open(await Database.open(None)))
        table = await engine.create_table("Staff")
        sizes = [10, 60_000, 10, 400_000, 10, 500_000, 500_000, 10]
        parts = {f"p{chunk}": "x" * 30_000 for chunk in range(16)}
        for number, size in enumerate(sizes * 2):
            properties: dict[str, Any] = dict(list(parts.items())[: size // 30_000])
            properties["Number"] = number
            key = EntityKey("p", f"{number:02}")
            await engine.run("Staff", EntityGroup([Insert(key, properties)]))
        store: Any = engine.store
        connection = store.database.reader
        for first in range(2 * len(sizes)):
            for limit in (1, 2, 5, 2 * len(sizes), limits.PAGE_ENTITIES_MAX):
                span = KeyRange(EntityKey("p", f"{first:02}"), EntityKey("p", "15"))
                scan = Scan(table, span, None, limit, SystemClock())
                if span.is_empty:
                    continue
                page, whole = scan.read_plain(connection, limit), scan.read_rows(connection, limit)
                assert isinstance(page.entities, StoredEntities)
                assert all(map(same, page.entities, whole.entities))
                assert len(page.entities) == len(whole.entities)
                assert (page.continuation, page.examined) == (whole.continuation, whole.examined)
        await engine.close()

    asyncio.run(check())


def test_a_page_with_a_damaged_entity_names_it() -> None:
    async def check() -> None:
        engine = TableEngine(await SqliteTableStore.open(await Database.open(None)))
        await engine.create_table("Staff")
        for number in range(3):
            key = EntityKey("p", str(number))
            await engine.run("Staff", EntityGroup([Insert(key, {"Number": number})]))
        store: Any = engine.store
        connection = store.database.reader
        connection.execute(
            "UPDATE entity SET document = CAST(replace(document, 'Number', 'Nomber') AS BLOB)"
            " WHERE rk = '1'"
        )
        span = KeyRange.of_partition("p")

        with pytest.raises(ChecksumError) as raised:
            await engine.query("Staff", None, within=span)
        _, page = await engine.query("Staff", None, within=span, limit=1)

        assert raised.value.facts["row_key"] == "1"
        assert [entity.key.row_key for entity in page.entities] == ["0"]
        assert page.continuation == EntityKey("p", "1")
        await engine.close()

    asyncio.run(check())
