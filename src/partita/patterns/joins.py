"""Joining in the client: references loaded together, and a cache that is never too old.

The guide's client-side join: entities of few, small types are kept for a while, so that each
distinct key costs one request. An entry is never older than its time to live; that there is no
entity is remembered as well; what this process writes replaces what it remembered.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from partita.clock import Clock
from partita.patterns.calls import Parallel, Steps, ask
from partita.patterns.context import Context
from partita.patterns.model import EntityType
from partita.patterns.reading import find
from partita.patterns.values import RowKey
from partita.patterns.verbs import key_of

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

    def find(self, key: RowKey) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is not None and self._clock.monotonic() >= entry.until:
            del self._entries[key]
            return None
        return entry

    def put(self, key: RowKey, entity: Any, asked_at: float) -> None:
        """Remember what was stored at `asked_at`, or that nothing was.

        A slow answer does not take the place of what was found out after it was asked for.
        """
        known = self._entries.pop(key, None)
        if known is not None and known.until > asked_at + self._ttl:
            self._entries[key] = known
            return
        while len(self._entries) >= self._entries_max:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = _Entry(entity, asked_at + self._ttl)

    def forget(self, key: RowKey) -> None:
        self._entries.pop(key, None)

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
            Parallel(tuple(find(context, model, key) for key in missing), context.options.parallel)
        )
        for key, entity in zip(missing, entities, strict=True):
            found[key] = entity
            if cache is not None:
                cache.put(key, entity, asked_at)
    return found


def join(
    context: Context,
    left: Iterable[Any],
    model: EntityType[Any],
    on: Callable[[Any], Mapping[str, Any] | None],
    cache: Cache | None = None,
) -> Steps[list[tuple[Any, Any]]]:
    """Pair each entity with the one that it refers to, or with None."""
    rows = list(left)
    given = [on(entity) for entity in rows]
    keys = [None if fields is None else key_of(model, fields) for fields in given]
    found = yield from load_many(context, model, [key for key in keys if key is not None], cache)
    return [
        (entity, None if key is None else found[key])
        for entity, key in zip(rows, keys, strict=True)
    ]
