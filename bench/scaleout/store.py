"""Gets and upserts through the store, without HTTP: 16 clients in one event loop.

Three sides take turns: the store; the store with statements that neither lock nor check the range
(the fence is what they cost less); pgbench. All read and write random entities of about 1 KB in one
heap; pgbench has a table of its own in it.
"""

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import uvloop
from bench.scaleout import database
from bench.scaleout.figures import Slice
from bench.scaleout.pgbench import PgBench, find_pgbench
from bench.tables import workload
from bench.tables.measure import RunError

from partita.local_postgres import LocalPostgres
from partita.scaleout.fleet import Fleet
from partita.scaleout.tables import trips
from partita.tables.edm import Members
from partita.tables.entity import EntityKey, pack_document, parse_body
from partita.tables.expectations import expectation_of
from partita.tables.operations import EntityGroup, Insert, InsertOrReplace
from partita.tables.pushdown import Described, columns_of, describe, marks_of
from partita.tables.store import Table, TableStore

CLIENTS = 16
KINDS = ("get", "upsert")
OURS, UNFENCED, PGBENCH = "store", "unfenced", "pgbench"
TARGETS = {("get", PGBENCH): 1.0, ("upsert", PGBENCH): 0.8}
TARGETS |= {(kind, UNFENCED): 1.15 for kind in KINDS}
"""CPU of the store over that of the other side, at most."""
PK_FIRST, RK_FIRST = 100, 100_000_000
STATEMENTS = ("_READ", "_WRITE")
"""The statements of the module `trips` that have the fence."""
PAUSE_SECONDS = 0.3
"""Between slices: what PostgreSQL writes in the background is not paid for by the next one."""

Slices = dict[tuple[str, str], list[Slice]]
"""By kind and side, one of each round."""
One = Callable[[int], Awaitable[None]]
"""One request for the entity of a number."""


def key_of(number: int) -> EntityKey:
    """Return keys that pgbench can print."""
    partition = number // workload.PARTITION_ENTITIES
    return EntityKey(f"{partition + PK_FIRST}", f"{number + RK_FIRST}")


def properties_of(number: int, version: int = 0) -> Members:
    """Return the properties of the entities of the table benchmarks, as a server reads them."""
    read = Described(parse_body(workload.entity(number, version)).properties)
    read.columns = columns_of(Members(read))
    return read


def measure(
    postgres: LocalPostgres, folder: Path, *, entities: int, rounds: int, seconds: float
) -> Slices:
    """Let the sides take turns in each round."""
    return uvloop.run(_measure(postgres, folder, entities, rounds, seconds))


async def _measure(
    postgres: LocalPostgres, folder: Path, entities: int, rounds: int, seconds: float
) -> Slices:
    fleet = await Fleet.open(postgres.url())
    try:
        store = (await fleet.stores("bench")).tables
        ours, theirs = [await filled(store, name, entities) for name in ("ours", "theirs")]
        unfenced = await _prepare(postgres)
        pgbench = _pgbench(postgres, folder, theirs, entities)
        requests = {
            "get": get_of(store, ours, entities),
            "upsert": upsert_of(store, ours, entities),
        }
        slices: Slices = {}
        for turn in range(rounds):
            for kind in KINDS:
                sides = [OURS, UNFENCED, *([PGBENCH] if pgbench else [])]
                for side in sides if turn % 2 == 0 else sides[::-1]:
                    if side == PGBENCH and pgbench is not None:
                        found = await asyncio.to_thread(pgbench.run, kind, seconds)
                    else:
                        with _statements(unfenced if side == UNFENCED else {}):
                            found = await _run(postgres, requests[kind], entities, seconds)
                    slices.setdefault((kind, side), []).append(found)
                    _print(kind, side, found)
                    await asyncio.sleep(PAUSE_SECONDS)
    finally:
        await fleet.close()
    return slices


async def filled(store: TableStore, name: str, entities: int) -> Table:
    table = await store.create_table(name)
    await fill(store, table, entities)
    return table


async def fill(store: TableStore, table: Table, entities: int) -> None:
    for first in range(0, entities, workload.GROUP_OPERATIONS):
        numbers = range(first, first + workload.GROUP_OPERATIONS)
        group = EntityGroup([Insert(key_of(number), properties_of(number)) for number in numbers])
        await _change(store, table, group)


async def vacuum(postgres: LocalPostgres) -> None:
    """Do at once what later would be paid for by one of the sides."""
    connection = await asyncpg.connect(postgres.url())
    try:
        await connection.execute("VACUUM ANALYZE partita.entity")
    finally:
        await connection.close()


async def _change(store: TableStore, table: Table, group: EntityGroup) -> None:
    await store.change(
        table,
        group.partition_key,
        [operation.key.row_key for operation in group.operations],
        group.apply,
        expected=lambda: [expectation_of(operation) for operation in group.operations],
        is_long=group.is_long,
    )


# What the wire would make of a request is made before: it is not the work of the store.


def get_of(store: TableStore, table: Table, entities: int) -> One:
    keys = [key_of(number) for number in range(entities)]

    async def get(number: int) -> None:
        if await store.get(table, keys[number]) is None:
            message = f"the store has no {keys[number]}"
            raise RunError(message)

    return get


def upsert_of(store: TableStore, table: Table, entities: int) -> One:
    versions = [properties_of(number, version=1) for number in range(1000)]
    groups = [
        EntityGroup([InsertOrReplace(key_of(number), versions[number % len(versions)])])
        for number in range(entities)
    ]

    async def upsert(number: int) -> None:
        await _change(store, table, groups[number])

    return upsert


async def _run(postgres: LocalPostgres, one: One, entities: int, seconds: float) -> Slice:
    requests = 0

    async def client(until: float) -> None:
        nonlocal requests
        while time.perf_counter() < until:
            await one(int(random.random() * entities))
            requests += 1

    own, store, started = time.process_time(), database.cpu_seconds(postgres), time.perf_counter()
    await asyncio.gather(*(client(started + seconds) for _ in range(CLIENTS)))
    elapsed = time.perf_counter() - started
    own, store = time.process_time() - own, database.cpu_seconds(postgres) - store
    return Slice(requests, elapsed, own, store)


def _print(kind: str, side: str, found: Slice) -> None:
    print(
        f"  {kind:6} {side:8} {found.rate:7.0f}/s  cpu {found.client_us:.0f} +"
        f" {found.store_us:.0f} = {found.us:.0f} us each",
        flush=True,
    )


def _pgbench(postgres: LocalPostgres, folder: Path, table: Table, entities: int) -> PgBench | None:
    program = find_pgbench()
    if program is None:
        print(
            "no pgbench (Debian: apt-get install postgresql-contrib): its ratios are not measured"
        )
        return None
    members = properties_of(0)
    entity = Insert(key_of(0), members).apply(None, 1)
    variables = {
        "tid": str(table.id),
        "entities": str(entities),
        "partition_entities": str(workload.PARTITION_ENTITIES),
        "pk_first": str(PK_FIRST),
        "rk_first": str(RK_FIRST),
        "marks": str(marks_of(members)),
        "short": describe(members) or "{}",
        "document": "\\x" + pack_document(1, entity.document).hex(),
    }
    return PgBench(program, folder, postgres, variables, CLIENTS)


# The store without its fence


async def _prepare(postgres: LocalPostgres) -> Mapping[str, str]:
    """Create a variant of the function that writes; return the statements of the variants."""
    await vacuum(postgres)
    connection = await asyncpg.connect(postgres.url())
    try:
        defined = await connection.fetchval(
            "SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n"
            " ON n.oid = p.pronamespace WHERE n.nspname = 'partita' AND p.proname = 'write_2'"
        )
        await connection.execute("CREATE SCHEMA IF NOT EXISTS bench")
        defined = _replaced(r"FUNCTION partita\.write_2", "FUNCTION bench.write_2", defined)
        # From the locks to the check of the ranges.
        defined = _replaced(r"(?s)\nBEGIN\n.*?\n  (?=-- Count before)", "\nBEGIN\n  ", defined)
        await connection.execute(defined)
    finally:
        await connection.close()
    read, write = (getattr(trips, name) for name in STATEMENTS)
    # The parameters must keep their types.
    unchecked = "$1::int IS NOT NULL AND $2::bigint IS NOT NULL"
    read = _replaced(r"(?s)EXISTS \(.*\)", unchecked, read)
    write = _replaced(r"partita\.write_2", "bench.write_2", write)
    return dict(zip(STATEMENTS, (read, write), strict=True))


def _replaced(pattern: str, by: str, text: str) -> str:
    found, count = re.subn(pattern, lambda _: by, text, count=1)
    if count != 1:
        message = f"a statement of the store changed, adapt the variant: no {pattern} in {text}"
        raise RunError(message)
    return found


@contextmanager
def _statements(variants: Mapping[str, str]) -> Iterator[None]:
    """Let the store use other statements."""
    before = {name: getattr(trips, name) for name in variants}
    for name, statement in variants.items():
        setattr(trips, name, statement)
    try:
        yield
    finally:
        for name, statement in before.items():
            setattr(trips, name, statement)
