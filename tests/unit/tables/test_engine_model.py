"""Random operations through the engine beside a model of plain dictionaries.

The model knows the rules of the service and nothing of how the engine keeps them. Scans are cut
into small steps, so that pages, steps and look-ahead meet in every way.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from partita.clock import ManualClock
from partita.errors import PartitaError
from partita.storage.database import Database
from partita.tables import edm, sqlite_scan, sqlite_store
from partita.tables.engine import TableEngine
from partita.tables.entity import Entity, EntityKey, build, etag_of
from partita.tables.filters import compile_filter, parse
from partita.tables.operations import (
    Delete,
    EntityGroup,
    Insert,
    InsertOrMerge,
    InsertOrReplace,
    Merge,
    Operation,
    Replace,
)
from partita.tables.paging import KeyRange, after
from partita.tables.pushdown import SHORT_CHARACTERS_MAX
from partita.tables.sqlite_store import SqliteTableStore
from support.repeats import IS_SOAK, repeat

T = TypeVar("T")

Typed = dict[str, tuple[str | None, edm.Scalar]]
"""Properties by name: annotation (None where JSON says the type) and stored value."""


class Stored(msgspec.Struct, frozen=True):
    ticks: int
    properties: Typed


class Wish(msgspec.Struct, frozen=True):
    """An operation before its etag is known: `condition` is any, current, stale or gone."""

    kind: str
    key: EntityKey
    properties: Typed
    condition: str


class RefusedError(Exception):
    def __init__(self, code: str, index: int | None) -> None:
        super().__init__(code, index)
        self.code = code
        self.index = index


# What is drawn

TABLE_NAMES = st.sampled_from(["Staff", "STAFF", "staff", "Staff2", "Orders"])
SHORT, LONG = "a" * (SHORT_CHARACTERS_MAX - 1), "a" * (SHORT_CHARACTERS_MAX + 6)
"""Texts that are just compared by the store, and just not."""
TEXTS = ["", "a", "a'", "\uffff", "\U00010000"]
KEYS = st.builds(EntityKey, st.sampled_from(["", "p"]), st.sampled_from(TEXTS))
SCALARS: st.SearchStrategy[tuple[str | None, edm.Scalar]] = st.one_of(
    st.tuples(st.none(), st.sampled_from(["", "a", "b", SHORT, LONG, LONG + "b", "\x02x"])),
    st.tuples(st.none(), st.sampled_from([0, 1, -1, edm.INT32_MAX])),
    st.tuples(st.none(), st.sampled_from([0.0, 0.5, 1.0, 1e300])),
    st.tuples(st.none(), st.booleans()),
    st.tuples(st.just(edm.INT64), st.sampled_from(["0", "1", "9007199254740993"])),
    st.tuples(st.just(edm.DOUBLE), st.sampled_from(["NaN", "Infinity"])),
    st.tuples(st.just(edm.DATETIME), st.sampled_from(["2020-01-01T00:00:00Z"])),
    st.tuples(st.just(edm.BINARY), st.sampled_from(["", "AQ==", "AQI="])),
)
PROPERTIES = st.dictionaries(st.sampled_from(["A", "B", "C"]), SCALARS, max_size=3)
KINDS = st.sampled_from(
    ["insert", "replace", "merge", "insert_or_replace", "insert_or_merge", "delete"]
)
CONDITIONS = st.sampled_from(["any", "any", "current", "current", "stale"])
WISHES = st.builds(Wish, KINDS, KEYS, PROPERTIES, CONDITIONS)
LITERALS = st.sampled_from(
    [
        "''",
        "'a'",
        "'b'",
        f"'{SHORT}'",
        f"'{LONG}'",
        "0",
        "1",
        "1L",
        "9007199254740993L",
        "0.5",
        "1.0",
        "true",
        "false",
        "datetime'2020-01-01T00:00:00Z'",
        "X'01'",
        "guid'c9da6455-213d-42c9-9a79-3e9149a57833'",
    ]
)
OPERATORS = st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"])
KEY_COMPARISONS = st.one_of(
    st.builds("PartitionKey {} '{}'".format, OPERATORS, st.sampled_from(["", "p", "a"])),
    st.builds("RowKey {} '{}'".format, OPERATORS, st.sampled_from(["", "a", "a''", "\uffff"])),
    st.builds(
        "PartitionKey eq '{}' and RowKey {} '{}'".format,
        st.sampled_from(["", "p"]),
        OPERATORS,
        st.sampled_from(["", "a", "05"]),
    ),
)
COMPARISONS = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from("ABC"), OPERATORS, LITERALS),
    KEY_COMPARISONS,
    st.builds("{}".format, st.sampled_from("ABC")),
    st.just("Timestamp ge datetime'2000-01-01T00:00:00Z'"),
)
CONDITION_TEXTS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds("({}) and ({})".format, inner, inner),
        st.builds("({}) or ({})".format, inner, inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=4,
)
SWEEP = [
    text.format(comparison)
    for comparison in ("eq", "ne", "lt", "le", "gt", "ge")
    for text in (
        "PartitionKey {} 'p'",
        "RowKey {} 'a'",
        "PartitionKey eq 'p' and RowKey {} '05'",
        f"A {{}} '{SHORT}'",
        "B {} 1",
    )
]
"""Asked of every table at the end of every example."""
LIMITS = st.sampled_from([1, 2, 3, 7, 1000])
ENDS = st.one_of(st.none(), st.none(), KEYS)


def members_of(properties: Typed) -> edm.Members:
    members: edm.Members = {}
    for name, (annotation, value) in properties.items():
        if annotation is not None:
            members[name + edm.TYPE_SUFFIX] = annotation
        members[name] = value
    return members


def typed(members: edm.Members) -> Typed:
    result: Typed = {}
    for name, value in members.items():
        if not name.endswith(edm.TYPE_SUFFIX):
            annotation = members.get(name + edm.TYPE_SUFFIX)
            result[name] = (None if annotation is None else str(annotation), value)
    return result


def byte_order(key: EntityKey) -> tuple[bytes, bytes]:
    return key.partition_key.encode(), key.row_key.encode()


# The model


def judge(wish: Wish, before: Stored | None) -> Typed | None:
    """Return the properties that the operation leaves, None if it removes the entity."""
    match wish.kind:
        case "insert":
            if before is not None:
                raise RefusedError("EntityAlreadyExists", None)
            return wish.properties
        case "insert_or_replace":
            return wish.properties
        case "insert_or_merge":
            return {**(before.properties if before else {}), **wish.properties}
        case _:
            return judge_conditional(wish, before)


def judge_conditional(wish: Wish, before: Stored | None) -> Typed | None:
    if before is None:
        raise RefusedError("ResourceNotFound", None)
    if wish.condition == "stale":
        raise RefusedError("UpdateConditionNotSatisfied", None)
    if wish.kind == "delete":
        return None
    return wish.properties if wish.kind == "replace" else {**before.properties, **wish.properties}


def judge_group(
    wishes: list[Wish], entities: dict[EntityKey, Stored] | None
) -> dict[EntityKey, Typed | None]:
    """Return what a group leaves of each key; `entities` is None if there is no table."""
    seen: set[EntityKey] = set()
    for index, wish in enumerate(wishes):
        if wish.key in seen:
            raise RefusedError("InvalidDuplicateRow", index)
        seen.add(wish.key)
    for index, wish in enumerate(wishes):
        if wish.key.partition_key != wishes[0].key.partition_key:
            raise RefusedError("CommandsInBatchActOnDifferentPartitions", index)
    if entities is None:
        raise RefusedError("TableNotFound", None)
    changes: dict[EntityKey, Typed | None] = {}
    for index, wish in enumerate(wishes):
        try:
            changes[wish.key] = judge(wish, entities.get(wish.key))
        except RefusedError as refused:
            raise RefusedError(refused.code, index) from None
    return changes


class EngineMachine(RuleBasedStateMachine):
    is_durable: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(sqlite_scan, "CHUNK_ENTITIES", 5)
        self.patch.setattr(sqlite_scan, "PROGRESS_INSTRUCTIONS", 1)
        self.patch.setattr(sqlite_scan, "WHOLE_RANGE_SECONDS", -1.0)
        self.patch.setattr(sqlite_store, "INLINE_ENTITIES_MAX", 2)
        self.patch.setattr(sqlite_store, "PURGE_ENTITIES", 3)
        self.folder = Path(tempfile.mkdtemp()) if self.is_durable else None
        self.clock = ManualClock()
        self.engine = self.run(self.open())
        self.tables: dict[str, tuple[str, dict[EntityKey, Stored]]] = {}
        """Name as created and entities, by lower-cased name."""
        self.last_ticks = 0
        """Ticks of the last change that succeeded, over all tables and restarts."""
        self.ticks: dict[tuple[str, EntityKey], int] = {}
        """Ticks of the last version of each key of a table, also if it was removed."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def open(self) -> TableEngine:
        return TableEngine(
            await SqliteTableStore.open(await Database.open(self.folder), self.clock)
        )

    def teardown(self) -> None:
        try:
            for folded in list(self.tables):
                self.compare(folded)
                for text in SWEEP:
                    self.agree_on_query(folded, text, KeyRange(), 7)
        finally:
            self.run(self.engine.close())
            self.runner.close()
            self.patch.undo()
            if self.folder is not None:
                shutil.rmtree(self.folder)

    def compare(self, folded: str) -> None:
        name, entities = self.tables[folded]
        _, page = self.run(self.engine.query(name, None, within=KeyRange()))
        assert page.continuation is None
        assert [entity.key for entity in page.entities] == sorted(entities, key=byte_order)
        for entity in page.entities:
            self.check(entity, entities[entity.key])

    def check(self, entity: Entity, expected: Stored) -> None:
        assert entity.ticks == expected.ticks
        assert typed(entity.properties()) == expected.properties
        document = msgspec.json.decode(b"{" + entity.document)
        assert document["odata.etag"] == etag_of(expected.ticks)
        assert document["Timestamp"] == edm.text_of(expected.ticks)

    def operation(self, wish: Wish, before: Stored | None) -> Operation:
        members = members_of(wish.properties)
        current = etag_of(before.ticks) if before else etag_of(self.last_ticks)
        etag = {"any": "*", "current": current, "stale": etag_of(17)}[wish.condition]
        match wish.kind:
            case "insert":
                return Insert(wish.key, members)
            case "insert_or_replace":
                return InsertOrReplace(wish.key, members)
            case "insert_or_merge":
                return InsertOrMerge(wish.key, members)
            case "replace":
                return Replace(wish.key, members, etag)
            case "merge":
                return Merge(wish.key, members, etag)
            case _:
                return Delete(wish.key, etag)

    # Tables

    @initialize()
    def start_with_a_table(self) -> None:
        self.create_table("Staff")

    @rule(name=TABLE_NAMES)
    def create_table(self, name: str) -> None:
        if name.lower() in self.tables:
            self.refuses("TableAlreadyExists", self.engine.create_table(name))
            return
        assert self.run(self.engine.create_table(name)).name == name
        self.tables[name.lower()] = (name, {})

    @rule(name=TABLE_NAMES)
    def drop_table(self, name: str) -> None:
        if name.lower() not in self.tables:
            self.refuses("ResourceNotFound", self.engine.delete_table(name))
            return
        self.run(self.engine.delete_table(name))
        del self.tables[name.lower()]
        self.ticks = {key: ticks for key, ticks in self.ticks.items() if key[0] != name.lower()}

    @rule(limit=LIMITS)
    def list_tables(self, limit: int) -> None:
        names: list[str] = []
        start: str | None = ""
        while start is not None:
            page = self.run(self.engine.list_tables(None, start=start, limit=limit))
            assert len(page.tables) <= limit
            names += [table.name for table in page.tables]
            start = page.continuation
        assert names == [self.tables[folded][0] for folded in sorted(self.tables)]

    def refuses(
        self, code: str, work: Coroutine[Any, Any, object], index: int | None = None
    ) -> None:
        with pytest.raises(PartitaError) as error:
            self.run(work)
        assert (error.value.code, error.value.facts.get("index")) == (code, index)

    # Writes

    @rule(name=TABLE_NAMES, wish=WISHES)
    def write_one(self, name: str, wish: Wish) -> None:
        self.write(name, [wish])

    @rule(
        name=TABLE_NAMES,
        partition_key=st.sampled_from(["", "p"]),
        wishes=st.lists(WISHES, min_size=2, max_size=8),
    )
    def write_group(self, name: str, partition_key: str, wishes: list[Wish]) -> None:
        self.write(
            name,
            [
                msgspec.structs.replace(wish, key=EntityKey(partition_key, wish.key.row_key))
                for wish in wishes
            ],
        )

    @rule(name=TABLE_NAMES, wishes=st.lists(WISHES, min_size=2, max_size=5))
    def write_group_of_any_keys(self, name: str, wishes: list[Wish]) -> None:
        self.write(name, wishes)

    @rule(
        chosen=st.integers(0, 1000),
        kind=st.sampled_from(["replace", "merge", "insert_or_merge", "delete"]),
        properties=PROPERTIES,
        condition=CONDITIONS,
    )
    def change_an_existing_entity(
        self, chosen: int, kind: str, properties: Typed, condition: str
    ) -> None:
        existing = [(name, key) for name, entities in self.tables.values() for key in entities]
        if existing:
            name, key = existing[chosen % len(existing)]
            self.write(name, [Wish(kind, key, properties, condition)])

    @rule(name=TABLE_NAMES, properties=PROPERTIES, partition_key=st.sampled_from(["", "p"]))
    def fill_partition(self, name: str, properties: Typed, partition_key: str) -> None:
        self.write(
            name,
            [
                Wish("insert_or_replace", EntityKey(partition_key, f"{n:02}"), properties, "any")
                for n in range(30)
            ],
        )

    def write(self, name: str, wishes: list[Wish]) -> None:
        _, entities = self.tables.get(name.lower(), ("", None))
        known = entities or {}
        group = EntityGroup([self.operation(wish, known.get(wish.key)) for wish in wishes])
        try:
            changes = judge_group(wishes, entities)
        except RefusedError as expected:
            self.refuses(expected.code, self.engine.run(name, group), expected.index)
        else:
            outcome = self.run(self.engine.run(name, group))
            assert entities is not None
            self.take_over(name, wishes, changes, outcome.entities)
        if entities is not None:
            self.agree_on(name, {wish.key for wish in wishes})

    def take_over(
        self,
        name: str,
        wishes: list[Wish],
        changes: dict[EntityKey, Typed | None],
        written: Sequence[Entity | None],
    ) -> None:
        _, entities = self.tables[name.lower()]
        ticks = {entity.ticks for entity in written if entity is not None}
        assert len(ticks) <= 1
        self.last_ticks = max(ticks, default=self.last_ticks)
        for wish, entity in zip(wishes, written, strict=True):
            properties = changes[wish.key]
            if properties is None:
                assert entity is None
                del entities[wish.key]
                continue
            assert entity is not None
            assert entity.key == wish.key
            assert entity.ticks > self.ticks.get((name.lower(), wish.key), 0)
            self.ticks[name.lower(), wish.key] = entity.ticks
            entities[wish.key] = Stored(entity.ticks, properties)
            self.check(entity, entities[wish.key])

    def agree_on(self, name: str, keys: set[EntityKey]) -> None:
        _, entities = self.tables[name.lower()]
        for key in keys:
            if key in entities:
                self.check(self.run(self.engine.get(name, key)), entities[key])
            else:
                self.refuses("ResourceNotFound", self.engine.get(name, key))

    # Races

    @rule(key=KEYS, count=st.integers(2, 6), kind=st.sampled_from(["insert", "replace", "delete"]))
    def only_one_of_many_wins(self, key: EntityKey, count: int, kind: str) -> None:
        if not self.tables:
            return
        name, entities = next(iter(self.tables.values()))
        before = entities.get(key)
        wishes = [Wish(kind, key, {"A": (None, number)}, "current") for number in range(count)]
        groups = [EntityGroup([self.operation(wish, before)]) for wish in wishes]

        async def race() -> list[Any]:
            return await asyncio.gather(
                *(self.engine.run(name, group) for group in groups), return_exceptions=True
            )

        outcomes = self.run(race())

        losers = [outcome for outcome in outcomes if isinstance(outcome, PartitaError)]
        winners = [n for n, o in enumerate(outcomes) if not isinstance(o, BaseException)]
        assert len(losers) + len(winners) == count
        assert len(winners) == ((before is None) == (kind == "insert"))
        allowed = {"insert": {"EntityAlreadyExists"}, "delete": {"ResourceNotFound"}}.get(
            kind, {"ResourceNotFound", "UpdateConditionNotSatisfied"}
        )
        assert {loser.code for loser in losers} <= allowed
        for number in winners:
            changes = judge_group([wishes[number]], entities)
            self.take_over(name, [wishes[number]], changes, outcomes[number].entities)
        self.agree_on(name, {key})

    # Queries

    @rule(
        name=TABLE_NAMES,
        texts=st.lists(CONDITION_TEXTS, min_size=1, max_size=6),
        limit=LIMITS,
        lower=ENDS,
        upper=ENDS,
    )
    def query(
        self,
        name: str,
        texts: list[str],
        limit: int,
        lower: EntityKey | None,
        upper: EntityKey | None,
    ) -> None:
        within = KeyRange(lower or EntityKey("", ""), upper)
        if name.lower() not in self.tables:
            self.refuses("TableNotFound", self.engine.query(name, parse(texts[0]), within=within))
            return
        for text in texts:
            self.agree_on_query(name, text, within, limit)

    def agree_on_query(self, name: str, text: str, within: KeyRange, limit: int) -> None:
        expected = self.matching(name, text, within)

        pages = self.run(self.pages(name, text, within, limit))

        assert [entity.key for page in pages for entity in page] == expected
        assert len(pages) == max(1, -(-len(expected) // limit))
        _, entities = self.tables[name.lower()]
        for page in pages:
            for entity in page:
                self.check(entity, entities[entity.key])

    def matching(self, name: str, text: str, within: KeyRange) -> list[EntityKey]:
        condition = parse(text)
        assert condition is not None
        matches = compile_filter(condition)
        _, entities = self.tables[name.lower()]
        return [
            key
            for key in sorted(entities, key=byte_order)
            if within.contains(key)
            and matches(
                msgspec.json.decode(
                    b"{"
                    + build(key, entities[key].ticks, members_of(entities[key].properties)).document
                )
            )
        ]

    async def pages(self, name: str, text: str, within: KeyRange, limit: int) -> list[list[Entity]]:
        pages: list[list[Entity]] = []
        start: EntityKey | None = None
        while True:
            _, page = await self.engine.query(
                name, parse(text), within=within, start=start, limit=limit
            )
            pages.append(list(page.entities))
            assert len(page.entities) <= limit
            if page.continuation is None:
                return pages
            assert start is None or page.continuation > start
            start = page.continuation

    @rule(
        name=TABLE_NAMES,
        text=CONDITION_TEXTS,
        limit=st.sampled_from([1, 2, 3]),
        between=st.lists(WISHES, max_size=6),
        is_reopened=st.booleans(),
    )
    def query_while_others_write(
        self, name: str, text: str, limit: int, between: list[Wish], is_reopened: bool
    ) -> None:
        if name.lower() not in self.tables:
            return
        before = self.matching(name, text, KeyRange())
        touched: set[EntityKey] = set()
        found: list[EntityKey] = []
        start: EntityKey | None = None
        while True:
            _, page = self.run(
                self.engine.query(name, parse(text), within=KeyRange(), start=start, limit=limit)
            )
            found += [entity.key for entity in page.entities]
            if page.continuation is None:
                break
            assert start is None or page.continuation > start
            start = page.continuation
            if between:
                wish = between.pop()
                touched.add(wish.key)
                self.write(name, [wish])
            elif is_reopened and self.is_durable:
                is_reopened = False
                self.reopen(0)

        assert found == sorted(set(found), key=byte_order)
        assert [k for k in found if k not in touched] == [k for k in before if k not in touched]

    # Time and restarts

    @rule(seconds=st.sampled_from([-3600, -1, 0.5, 1, 100]))
    def wall_clock_jumps(self, seconds: float) -> None:
        self.clock.jump(seconds)

    @precondition(lambda machine: machine.is_durable)
    @rule(seconds=st.sampled_from([-7200, -0.3, 0, 5]))
    def reopen(self, seconds: float) -> None:
        self.run(self.engine.close())
        self.clock.jump(seconds)
        self.engine = self.run(self.open())
        with contextlib.suppress(StopIteration):
            self.compare(next(iter(self.tables)))

    @rule(name=TABLE_NAMES, key=KEYS)
    def statistics_agree(self, name: str, key: EntityKey) -> None:
        if name.lower() not in self.tables:
            return
        _, entities = self.tables[name.lower()]
        span = KeyRange(key, EntityKey(after(key.partition_key), ""))
        table = self.run(self.engine.get_table(name))

        found = self.run(self.engine.store.statistics(table, span))

        assert found.entities == sum(span.contains(each) for each in entities)


class MemoryMachine(EngineMachine):
    is_durable = False


class FolderMachine(EngineMachine):
    is_durable = True


def runs(examples: int) -> settings:
    return settings(
        max_examples=repeat(examples // 5, examples // 2, examples * 30),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TestEngineInMemory = pytest.mark.repeated(MemoryMachine.TestCase)
TestEngineInMemory.settings = runs(120)
TestEngineInAFolder = pytest.mark.repeated(FolderMachine.TestCase)
TestEngineInAFolder.settings = runs(40)
if IS_SOAK:
    TestEngineInMemory = pytest.mark.timeout(3600)(TestEngineInMemory)
    TestEngineInAFolder = pytest.mark.timeout(3600)(TestEngineInAFolder)
