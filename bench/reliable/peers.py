"""What else keeps a dictionary of a Python process on disk, each told to be durable.

Every peer answers a write only after its bytes were synced: `settings` says by what. All store
the same MessagePack bytes of one small Struct, except ZODB, which pickles by its nature.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import diskcache
import sqlitedict
import transaction
import ZODB
import ZODB.FileStorage
from bench.reliable.workload import Item, decode_item, encode_item
from BTrees.OOBTree import OOBTree  # type: ignore[import-untyped]

Write = Callable[[str, Item], None]
Read = Callable[[str], Item]
BUSY_SECONDS = 120
LOADED_AT_ONCE = 10_000


class Peer(Protocol):
    """One library on one folder."""

    name: str
    settings: str

    def load(self, items: Iterable[tuple[str, Item]]) -> None:
        """Write many keys in as few commits as it can."""
        ...

    def writer(self, number: int) -> AbstractContextManager[Write]:
        """Give one thread its way to write one key durably."""
        ...

    def reader(self) -> AbstractContextManager[Read]: ...

    def scan(self) -> int:
        """Read and decode everything in key order; return how many."""
        ...

    def close(self) -> None: ...


class DiskCache:
    name = "diskcache"
    settings = "WAL, sqlite_synchronous=2 (FULL), no eviction, one connection a thread"

    def __init__(self, folder: Path) -> None:
        self._cache = diskcache.Cache(
            str(folder),
            timeout=BUSY_SECONDS,
            eviction_policy="none",
            cull_limit=0,
            statistics=0,
            sqlite_synchronous=2,
        )

    def load(self, items: Iterable[tuple[str, Item]]) -> None:
        for part in _parts(items):
            with self._cache.transact():
                for key, item in part:
                    self._cache[key] = encode_item(item)

    @contextmanager
    def writer(self, number: int) -> Iterator[Write]:
        cache = self._cache

        def write(key: str, item: Item) -> None:
            cache[key] = encode_item(item)

        yield write
        if number:
            cache.close()  # this thread's connection

    @contextmanager
    def reader(self) -> Iterator[Read]:
        yield lambda key: decode_item(self._cache[key])

    def scan(self) -> int:
        return _count(decode_item(self._cache[key]) for key in self._cache.iterkeys())

    def close(self) -> None:
        self._cache.close()


class SqliteDict:
    name = "sqlitedict"
    settings = "WAL, synchronous=FULL (its own default is OFF), commit(blocking=True) each"

    def __init__(self, folder: Path) -> None:
        self._items = sqlitedict.SqliteDict(
            str(folder / "items.sqlite"),
            journal_mode="WAL",
            outer_stack=False,
            encode=lambda item: sqlite3.Binary(encode_item(item)),
            decode=lambda raw: decode_item(bytes(raw)),
        )
        self._items.conn.execute("PRAGMA synchronous=FULL")
        assert self._items.conn.select_one("PRAGMA synchronous") == (2,)

    def load(self, items: Iterable[tuple[str, Item]]) -> None:
        for part in _parts(items):
            self._items.update(part)
            self._items.commit(blocking=True)

    @contextmanager
    def writer(self, number: int) -> Iterator[Write]:
        del number
        items = self._items

        def write(key: str, item: Item) -> None:
            items[key] = item
            items.commit(blocking=True)

        yield write

    @contextmanager
    def reader(self) -> Iterator[Read]:
        yield self._items.__getitem__

    def scan(self) -> int:
        return _count(self._items.items())  # in the order of insertion: it has no other

    def close(self) -> None:
        self._items.close()


class Zodb:
    name = "ZODB"
    settings = "FileStorage (fsync in each commit), one connection and one OOBTree a thread"

    def __init__(self, folder: Path) -> None:
        storage = ZODB.FileStorage.FileStorage(str(folder / "items.fs"))
        self._database = ZODB.DB(storage, pool_size=100, cache_size=50_000)

    def load(self, items: Iterable[tuple[str, Item]]) -> None:
        with self._tree("0") as (tree, manager):
            for part in _parts(items):
                tree.update(part)
                manager.commit()

    @contextmanager
    def writer(self, number: int) -> Iterator[Write]:
        with self._tree(str(number)) as (tree, manager):

            def write(key: str, item: Item) -> None:
                manager.begin()
                tree[key] = item
                manager.commit()

            yield write

    @contextmanager
    def reader(self) -> Iterator[Read]:
        with self._tree("0") as (tree, _):
            yield tree.__getitem__

    def scan(self) -> int:
        with self._tree("0") as (tree, _):
            return _count(tree.items())

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _tree(self, name: str) -> Iterator[tuple[Any, Any]]:
        """Give a tree of its own: threads that share one would meet in conflicts."""
        manager = transaction.TransactionManager()
        connection = self._database.open(manager)
        try:
            for attempt in manager.attempts(20):
                with attempt:
                    root = connection.root()
                    if name not in root:
                        root[name] = OOBTree()
            yield connection.root()[name], manager
        finally:
            manager.abort()
            connection.close()


class Sqlite:
    name = "SQLite"
    settings = "WAL, synchronous=FULL, BEGIN IMMEDIATE, WITHOUT ROWID, one connection a thread"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "items.sqlite"
        self._connection = self._open()
        self._connection.execute("CREATE TABLE items (key TEXT PRIMARY KEY, value) WITHOUT ROWID")

    def load(self, items: Iterable[tuple[str, Item]]) -> None:
        for part in _parts(items):
            self._connection.execute("BEGIN IMMEDIATE")
            rows = [(key, encode_item(item)) for key, item in part]
            self._connection.executemany("REPLACE INTO items VALUES (?, ?)", rows)
            self._connection.execute("COMMIT")

    @contextmanager
    def writer(self, number: int) -> Iterator[Write]:
        del number
        connection = self._open()
        execute = connection.execute

        def write(key: str, item: Item) -> None:
            execute("BEGIN IMMEDIATE")
            execute("REPLACE INTO items VALUES (?, ?)", (key, encode_item(item)))
            execute("COMMIT")

        try:
            yield write
        finally:
            connection.close()

    @contextmanager
    def reader(self) -> Iterator[Read]:
        execute = self._connection.execute
        select = "SELECT value FROM items WHERE key = ?"
        yield lambda key: decode_item(execute(select, (key,)).fetchone()[0])

    def scan(self) -> int:
        rows = self._connection.execute("SELECT key, value FROM items ORDER BY key")
        return _count(decode_item(value) for _, value in rows)

    def close(self) -> None:
        self._connection.close()

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        return connection


PEERS: tuple[Callable[[Path], Peer], ...] = (DiskCache, SqliteDict, Zodb, Sqlite)


def _count(found: Iterable[object]) -> int:
    return sum(1 for _ in found)


def _parts(items: Iterable[tuple[str, Item]]) -> Iterator[list[tuple[str, Item]]]:
    waiting = iter(items)
    while part := list(islice(waiting, LOADED_AT_ONCE)):
        yield part
