"""`partita fleet up`: a whole fleet on this machine, for development, until a signal comes."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from partita.cli.fleet.local_fleet import LocalFleet
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line, show
from partita.clock import SystemClock

LOOK_SECONDS = 0.5
"""How often a child that has ended is noticed."""


class FrontEndStarted(msgspec.Struct, frozen=True):
    """The endpoints of one front end."""

    table: str
    queue: str
    blob: str
    pid: int


class ShardStarted(msgspec.Struct, frozen=True):
    """One shard: a PostgreSQL server of its own."""

    name: str
    url: str
    pid: int


class FleetStarted(Facts, frozen=True):
    """A fleet whose front ends serve."""

    connection_string: str
    """Of the first front end; the others have the same account and key."""
    front_ends: list[FrontEndStarted]
    catalog: str
    shards: list[ShardStarted]
    path: str

    def lines(self) -> Iterator[Line]:
        yield f"A fleet of {len(self.shards)} shards runs, for development on this machine."
        for each in self.front_ends:
            yield f"  front end          {each.table}  pid {each.pid}"
        yield f"  catalog            {self.catalog}"
        for shard in self.shards:
            yield f"  {shard.name:<18} {shard.url}  pid {shard.pid}"
        yield f"  folder             {self.path}"
        yield f"  connection string  {self.connection_string}"
        yield ""
        yield "  from azure.data.tables import TableServiceClient"
        yield f'  service = TableServiceClient.from_connection_string("{self.connection_string}")'
        yield (
            '  service.create_table("Staff").upsert_entity('
            '{"PartitionKey": "Sales", "RowKey": "00010"})'
        )
        yield ""
        yield f"  partita fleet ranges --connect {self.catalog} shows which shard has which keys."
        yield "  Ctrl-C stops it; the same --path finds the data again."


def run_up(given: Given) -> int:
    stopping = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopping.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        fleet = LocalFleet(
            Path(given.path),
            shards=given.shards,
            front_ends=given.front_ends,
            clock=SystemClock(),
            tell=_tell,
        )
        try:
            fleet.start(stopping.is_set)
            if stopping.is_set():
                return 0
            show(started_of(fleet), is_json=given.json)
            return _watch(fleet, stopping)
        finally:
            fleet.stop()
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _watch(fleet: LocalFleet, stopping: threading.Event) -> int:
    while not stopping.wait(LOOK_SECONDS):
        if name := fleet.look():
            _tell(f"stopping, because {name} keeps ending")
            return 1
    return 0


def _tell(text: str) -> None:
    print(f"partita: {text}", file=sys.stderr, flush=True)


def started_of(fleet: LocalFleet) -> FleetStarted:
    """Return what is printed about a started fleet."""
    served = [(each.served, each.pid or 0) for each in fleet.front_ends]
    front_ends = [
        FrontEndStarted(each.table_endpoint, each.queue_endpoint, each.blob_endpoint, pid)
        for each, pid in served
        if each is not None
    ]
    first = fleet.front_ends[0].served
    assert first is not None
    shards = [ShardStarted(name, each.url(), each.pid or 0) for name, each in fleet.shards]
    return FleetStarted(
        first.connection_string, front_ends, fleet.catalog, shards, os.fspath(fleet.folder)
    )
