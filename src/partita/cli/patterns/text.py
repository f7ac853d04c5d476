"""The facts of `partita patterns` as aligned text for people."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from partita.cli.patterns.facts import (
    Checked,
    Collected,
    Created,
    Disabled,
    Explained,
    Facts,
    Forgotten,
    IndexFacts,
    LockFacts,
    Poison,
    Rebuilt,
    Rotated,
    Started,
    Status,
    TypeFacts,
    Verified,
    Worked,
)
from partita.cli.shards.text import table

SHOWN_MAX = 100
"""Differences that are shown to people; of an index that was never built there are millions."""


def as_text(facts: Facts | Started) -> str:
    """Write the facts for people."""
    return "\n".join(_WRITERS[type(facts)](facts))


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "-"


def _created_lines(facts: Created) -> Iterator[str]:
    if facts.tables:
        yield f"Made in {facts.place}: {_listed(facts.tables)}."
    else:
        yield f"Every table is in {facts.place} already."
    yield from _index_lines(facts.indexes)


def _index_lines(indexes: list[IndexFacts]) -> Iterator[str]:
    if indexes:
        yield from table(
            ("type", "index", "table", "way", "state"),
            ((one.type, one.name, one.table, _way(one), one.state) for one in indexes),
        )
    if any(one.state == "write-only" for one in indexes):
        yield "What is write-only cannot be read before `partita patterns rebuild`."


def _way(one: IndexFacts) -> str:
    words = [one.way if one.way == "copy" else f"list in {one.way}"]
    words += ["unique"] if one.is_unique else []
    words.append("same group" if one.is_local else "by worker")
    return ", ".join(words)


def _rebuilt_lines(facts: Rebuilt) -> Iterator[str]:
    told = "entity" if facts.entities == 1 else "entities"
    yield f"{facts.index} of {facts.type}: {facts.entities:,} {told}; it is {facts.state}."


def _disabled_lines(facts: Disabled) -> Iterator[str]:
    yield f"{facts.index} of {facts.type} is disabled, {_count(facts.rows, 'row')} removed."


def _verified_lines(facts: Verified) -> Iterator[str]:
    for name, count in facts.entities.items():
        yield f"{name}: {count:,} looked at."
    if facts.drifts:
        yield from table(
            ("type", "wrong", "what", "table", "partition key", "row key"),
            (
                (one.type, one.kind, one.what, one.table, one.partition_key, one.row_key)
                for one in facts.drifts[:SHOWN_MAX]
            ),
        )
    if len(facts.drifts) > SHOWN_MAX:
        yield f"... and {len(facts.drifts) - SHOWN_MAX:,} more; --json has them all."
    if not facts.drifts:
        yield "What follows them is as it should be."
    elif facts.repaired:
        rest = "all is well now" if facts.is_sound else f"{facts.left} still wrong"
        yield f"{_count(facts.repaired, 'repair')}, {rest}."
    else:
        yield f"{_count(len(facts.drifts), 'difference')}: --repair puts them right."


def _collected_lines(facts: Collected) -> Iterator[str]:
    if not facts.blobs:
        yield "No type keeps values in blobs."
    for container, count in facts.blobs.items():
        yield f"{container}: {_count(count, 'blob')} that no entity names, removed."


def _rotated_lines(facts: Rotated) -> Iterator[str]:
    for name, count in facts.rows.items():
        yield f"{name}: {_count(count, 'row')} wrapped with the key {facts.key!r}."
    for name, count in facts.periods.items():
        yield f"{name}, by period: {_count(count, 'row')} wrapped with the key {facts.key!r}."


def _started_lines(facts: Started) -> Iterator[str]:
    yield f"Working for {facts.place}, process {facts.process}"
    yield f"  queues        {_listed(facts.queues) if facts.queues else 'none: sweeps only'}"
    yield f"  types         {_listed(facts.types)}"
    if facts.transactions:
        yield f"  transactions  {_listed(facts.transactions)}"
    if facts.views:
        yield f"  views         {_listed(facts.views)}"
    yield f"  tasks         {facts.tasks}"
    yield "  Ctrl-C stops it; what is in hand is finished."


def _worked_lines(facts: Worked) -> Iterator[str]:
    left = f", {facts.left:,} left to a newer program" if facts.left else ""
    yield (
        f"{_entries(facts.entries)} of the outbox, {_count(facts.transactions, 'transaction')} "
        f"done; {_count(facts.failures, 'failure')}, {facts.poisoned:,} put aside{left}."
    )
    yield from (f"  {trouble}" for trouble in facts.troubles)


def _forgotten_lines(facts: Forgotten) -> Iterator[str]:
    yield f"{_listed(facts.names)}: taken out of {_entries(facts.entries)}."


def _status_lines(facts: Status) -> Iterator[str]:
    yield from _index_lines(facts.indexes)
    yield from table(
        ("outbox of", "entries", "oldest"),
        ((one.table, one.entries, _age(one.oldest_seconds)) for one in facts.outbox),
    )
    unknown: Counter[str] = Counter()
    for one in facts.outbox:
        unknown.update(one.unknown)
    if unknown:
        yield from table(("not declared here", "entries"), sorted(unknown.items()))
        yield "A newer worker does them; `partita patterns forget` drops what is declared no more."
    if facts.queues:
        rows = [(one.queue, one.messages) for one in facts.queues]
        if facts.poison is not None:
            rows.append((f"{facts.poison.queue} (poison)", facts.poison.messages))
        yield from table(("queue", "messages, about"), rows)
    if facts.poison is not None and facts.poison.messages:
        yield "`partita patterns poison` shows what failed too often."
    if any((one.oldest_seconds or 0) > facts.late_seconds for one in facts.outbox):
        yield f"Entries are older than {facts.late_seconds:g} s: is a worker running?"


def _age(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:g} s"


def _poison_lines(facts: Poison) -> Iterator[str]:
    if facts.retried:
        yield f"{_count(facts.retried, 'message')} put back on the queues."
    if facts.messages:
        yield from table(
            ("what", "tries", "reason"),
            ((one.what, one.deliveries, one.reason) for one in facts.messages),
        )
        more = facts.count - len(facts.messages)
        if more > 0:
            yield f"About {more:,} more."
        yield "When the reason is gone: `partita patterns poison --retry`."
    elif not facts.retried:
        yield f"{facts.queue} is empty."


def _checked_lines(facts: Checked) -> Iterator[str]:
    for one in facts.types:
        yield from _type_lines(one)
    if facts.transactions:
        yield f"transactions: {_listed(facts.transactions)}"
    if facts.lock is not None:
        yield from _lock_lines(facts.lock)
    refused = sum(access.is_refused for one in facts.types for access in one.access)
    if refused:
        yield (
            f"{_count(refused, 'access pattern')} would scan: change the keys, add an index, or "
            'say allow="scan".'
        )


def _type_lines(one: TypeFacts) -> Iterator[str]:
    version = f", version {one.version}" if one.version > 1 else ""
    yield f"{one.name}{version}: {one.table}, {one.partition!r} and {one.row!r}"
    yield f"  fields  {_listed(one.fields)}"
    for index in one.indexes:
        place = "" if index.is_local else f"{index.table}, {index.partition!r} and "
        yield f"  index   {index.name}: {place}{index.row!r} ({_way(index)})"
    for view in one.views:
        yield f"  view    {view}"
    for access in one.access:
        yield f"  access  {'REFUSED ' if access.is_refused else ''}{access.name}: {access.plan}"
    for lint in one.lints:
        yield f"  lint    {lint.code}: {lint.message} {lint.hint}"


def _lock_lines(lock: LockFacts) -> Iterator[str]:
    told = {
        "written": f"{lock.file} was written: keep it with the code.",
        "current": f"{lock.file} is current.",
        "outdated": f"{lock.file} lacks what is new: --update writes it.",
        "broken": f"{lock.file} and the code disagree: what is stored does not fit any more.",
    }
    yield told[lock.state]
    yield from (f"  {each.code} {each.message} {each.hint}" for each in lock.differences)


def _explained_lines(facts: Explained) -> Iterator[str]:
    yield facts.text


_WRITERS: dict[type, Callable[[Any], Iterable[str]]] = {
    Created: _created_lines,
    Rebuilt: _rebuilt_lines,
    Disabled: _disabled_lines,
    Verified: _verified_lines,
    Collected: _collected_lines,
    Rotated: _rotated_lines,
    Started: _started_lines,
    Worked: _worked_lines,
    Forgotten: _forgotten_lines,
    Status: _status_lines,
    Poison: _poison_lines,
    Checked: _checked_lines,
    Explained: _explained_lines,
}
