"""Client-side joins: references loaded together, and a cache with a time to live.

The guide's client-side join: entities of few, small types are cached, so that each distinct key
costs one request. An entry is never older than its time to live. The absence of an entity is cached
as well, and the writes of this process update the cache. A small table can be read as a whole.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from partita.errors import LimitExceededError, PartitaError
from partita.patterns.operations.continuations import Position
from partita.patterns.operations.run_query import Ask, read_slice
from partita.patterns.operations.verbs import key_of
from partita.patterns.planning.plans import plan_query
from partita.patterns.protocol.calls import Steps
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import EntityType
from partita.patterns.writing.context import Context
from partita.patterns.writing.load import find_any, in_parallel
from partita.ticks import Clock

CACHE_ENTRIES_MAX = 10_000


class _CacheEntry(msgspec.Struct, frozen=True):
    entity: Any
    until: float


class Cache:
    """Entities of one type by key, each for at most `ttl` seconds after it was requested."""

    def __init__(self, clock: Clock, ttl: float, entries_max: int = CACHE_ENTRIES_MAX) -> None:
        self._clock = clock
        self._ttl = ttl
        self._entries_max = entries_max
        self._entries: dict[RowKey, _CacheEntry] = {}
        self._complete_until = 0.0
        """Until then a key without an entry has no entity: the whole table was read."""
        self._lock = threading.Lock()  # threads of the synchronous API share a cache

    def find(self, key: RowKey) -> _CacheEntry | None:
        with self._lock:
            entry, now = self._entries.get(key), self._clock.monotonic()
            if entry is not None and now >= entry.until:
                del self._entries[key]
                entry = None
            if entry is None and now < self._complete_until:
                return _CacheEntry(None, self._complete_until)
            return entry

    def put(self, key: RowKey, entity: Any, asked_at: float) -> None:
        """Cache the entity, or its absence, as of `asked_at`.

        A slow answer does not replace one that was requested later.
        """
        with self._lock:
            known = self._entries.pop(key, None)
            if known is not None and known.until > asked_at + self._ttl:
                self._entries[key] = known
                return
            while len(self._entries) >= self._entries_max:
                del self._entries[next(iter(self._entries))]
                self._complete_until = 0.0
            self._entries[key] = _CacheEntry(entity, asked_at + self._ttl)

    def put_all(self, entities: Mapping[RowKey, Any], asked_at: float) -> None:
        """Cache a whole table as of `asked_at`."""
        if len(entities) > self._entries_max:
            raise LimitExceededError(
                "CacheTooSmall",
                f"The table has more than {self._entries_max} entities.",
                hint="Raise entries_max= of cached(), or cache without preload=True.",
            )
        until = asked_at + self._ttl
        with self._lock:
            later = {key: each for key, each in self._entries.items() if each.until > until}
            read = {key: _CacheEntry(entity, until) for key, entity in entities.items()}
            self._entries = read | later  # a write of this process after the read started
            self._complete_until = until

    @property
    def is_complete(self) -> bool:
        """Whether the whole table was read and has not expired."""
        with self._lock:
            return self._clock.monotonic() < self._complete_until

    @contextmanager
    def doubting(self, key: RowKey) -> Iterator[None]:
        """Remove an entry if a write fails: the cached entity differs from the stored one.

        A caller that reads it again would otherwise get the same entity until the entry expires.
        """
        try:
            yield
        except PartitaError:
            with self._lock:
                self._entries.pop(key, None)
                self._complete_until = 0.0
            raise

    def missing(self, keys: Iterable[RowKey]) -> list[RowKey]:
        """Return the keys that are not in the cache."""
        return [key for key in keys if self.find(key) is None]

    def now(self) -> float:
        return self._clock.monotonic()


def load_many(
    context: Context,
    model: EntityType[Any],
    keys: Sequence[RowKey],
    cache: Cache | None = None,
) -> Steps[dict[RowKey, Any]]:
    """Read entities by their keys, each distinct key once; None for missing entities."""
    found: dict[RowKey, Any] = {}
    for key in keys:
        entry = None if cache is None else cache.find(key)
        if entry is not None:
            found[key] = entry.entity
    missing = [key for key in dict.fromkeys(keys) if key not in found]
    if missing:
        asked_at = 0.0 if cache is None else cache.now()
        entities = yield from in_parallel(
            context, (find_any(context, model, key) for key in missing)
        )
        for key, entity in zip(missing, entities, strict=True):
            found[key] = entity
            if cache is not None:
                cache.put(key, entity, asked_at)
    return found


def preload(
    context: Context, model: EntityType[Any], cache: Cache, entries_max: int
) -> Steps[None]:
    """Read a whole small table into a cache."""
    asked_at = cache.now()
    query = Ask(plan_query(model, {}), is_scan_allowed=True)
    found: dict[RowKey, Any] = {}
    position: Position | None = Position()
    while position is not None and len(found) <= entries_max:
        piece = yield from read_slice(context, query, position, None)
        found |= {model.key(model.values(each)): each for each in piece.entities}
        position = piece.position
    cache.put_all(found, asked_at)


Aimed = list[tuple[Any, RowKey | None]]
"""Entities, each with the key that it refers to."""


def aim(
    left: Iterable[Any], model: EntityType[Any], on: Callable[[Any], Mapping[str, Any] | None]
) -> Aimed:
    """Return each entity with the key that it refers to; `on` returns None for none."""
    given = [(entity, on(entity)) for entity in left]
    return [(entity, None if key is None else key_of(model, key)) for entity, key in given]


def join(
    context: Context, aimed: Aimed, model: EntityType[Any], cache: Cache | None = None
) -> Steps[list[tuple[Any, Any]]]:
    """Pair each entity with the entity that it refers to, or with None."""
    keys = [key for _, key in aimed if key is not None]
    found = yield from load_many(context, model, keys, cache)
    return [(entity, None if key is None else found[key]) for entity, key in aimed]
