"""Joining in the client: references loaded together, and a cache that is never too old.

The guide's client-side join: entities of few, small types are kept for a while, so that each
distinct key costs one request. An entry is never older than its time to live; that there is no
entity is remembered as well; what this process writes replaces what it remembered.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from partita.errors import PartitaError
from partita.patterns.operations.verbs import key_of
from partita.patterns.protocol.calls import Parallel, Steps, ask
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import EntityType
from partita.patterns.writing.context import Context
from partita.patterns.writing.load import find_any
from partita.ticks import Clock

CACHE_ENTRIES_MAX = 10_000


class _Entry(msgspec.Struct, frozen=True):
    entity: Any
    until: float


class Cache:
    """Entities of one type by key, each for at most `ttl` seconds from when it was asked for."""

    def __init__(self, clock: Clock, ttl: float, entries_max: int = CACHE_ENTRIES_MAX) -> None:
        self._clock = clock
        self._ttl = ttl
        self._entries_max = entries_max
        self._entries: dict[RowKey, _Entry] = {}
        self._lock = threading.Lock()  # threads of the synchronous face share a cache

    def find(self, key: RowKey) -> _Entry | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and self._clock.monotonic() >= entry.until:
                del self._entries[key]
                return None
            return entry

    def put(self, key: RowKey, entity: Any, asked_at: float) -> None:
        """Remember what was stored at `asked_at`, or that nothing was.

        A slow answer does not take the place of what was found out after it was asked for.
        """
        with self._lock:
            known = self._entries.pop(key, None)
            if known is not None and known.until > asked_at + self._ttl:
                self._entries[key] = known
                return
            while len(self._entries) >= self._entries_max:
                del self._entries[next(iter(self._entries))]
            self._entries[key] = _Entry(entity, asked_at + self._ttl)

    @contextmanager
    def doubting(self, key: RowKey) -> Iterator[None]:
        """Put what is known out of mind if a write fails: it was not what is stored, or is not now.

        Who reads again to decide again would else be given the same until its time is over.
        """
        try:
            yield
        except PartitaError:
            with self._lock:
                self._entries.pop(key, None)
            raise

    def missing(self, keys: Iterable[RowKey]) -> list[RowKey]:
        """Return the keys of which nothing is known now."""
        return [key for key in keys if self.find(key) is None]

    def now(self) -> float:
        return self._clock.monotonic()


def load_many(
    context: Context,
    model: EntityType[Any],
    keys: Sequence[RowKey],
    cache: Cache | None = None,
) -> Steps[dict[RowKey, Any]]:
    """Read entities by their keys, each distinct one once; None for those that are not there."""
    found: dict[RowKey, Any] = {}
    for key in keys:
        entry = None if cache is None else cache.find(key)
        if entry is not None:
            found[key] = entry.entity
    missing = [key for key in dict.fromkeys(keys) if key not in found]
    if missing:
        asked_at = 0.0 if cache is None else cache.now()
        entities = yield from ask(
            Parallel(
                tuple(find_any(context, model, key) for key in missing), context.options.parallel
            )
        )
        for key, entity in zip(missing, entities, strict=True):
            found[key] = entity
            if cache is not None:
                cache.put(key, entity, asked_at)
    return found


Aimed = list[tuple[Any, RowKey | None]]
"""Entities, each with the key of the one that it refers to."""


def aim(
    left: Iterable[Any], model: EntityType[Any], on: Callable[[Any], Mapping[str, Any] | None]
) -> Aimed:
    """Tell to what each entity refers; a function that returns None says to nothing."""
    given = [(entity, on(entity)) for entity in left]
    return [(entity, None if key is None else key_of(model, key)) for entity, key in given]


def join(
    context: Context, aimed: Aimed, model: EntityType[Any], cache: Cache | None = None
) -> Steps[list[tuple[Any, Any]]]:
    """Pair each entity with the one that it refers to, or with None."""
    keys = [key for _, key in aimed if key is not None]
    found = yield from load_many(context, model, keys, cache)
    return [(entity, None if key is None else found[key]) for entity, key in aimed]
