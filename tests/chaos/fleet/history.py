"""Are the histories of entities linearizable, if the outcome of some operations is not known?

An operation of unknown outcome happened at some time after it was sent, perhaps long after, or
never. If its value was read, it happened, and has the version that was read. If not, it explains
refusals; a delete explains that an entity was absent.

The versions of an entity are ticks, and rise while it exists. One that was deleted leaves nothing
behind. So an insert may have an earlier version than those that were deleted if they were made
while it was on its way, or if the clocks of two front ends differ by so little that both are ready.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from crash.version_order import Event, violations
from partita.scaleout.catalog.fleet_clock import CLOSE_SECONDS_MAX
from partita.ticks import TICKS_PER_SECOND

NEVER = 1 << 61
"""The return of an operation that had no answer."""


CHANGES = ("put", "insert", "update", "delete")
ROOM = 16
"""Versions are multiplied by it to have places between them."""
CLOSE_TICKS = int(CLOSE_SECONDS_MAX * TICKS_PER_SECOND)


class Doubt(NamedTuple):
    """A change of unknown outcome."""

    kind: str
    """put, insert, update or delete."""
    key: str
    invoked: int
    value: int
    """What it writes, different for each change."""
    expected: int = 0
    """The version that an update or delete names."""


def unexplained(
    events: Sequence[Event], doubts: Sequence[Doubt], seen: Mapping[tuple[str, int], int]
) -> list[str]:
    """Return what no order of the operations can explain; `seen` has versions by key and value."""
    by_key: dict[str, tuple[list[Event], list[Doubt]]] = defaultdict(lambda: ([], []))
    for event in events:
        by_key[event.key][0].append(event)
    for doubt in doubts:
        by_key[doubt.key][1].append(doubt)
    found: list[str] = []
    for key in sorted(by_key):
        found += _unexplained_of_one(*by_key[key], seen)
    return found


def _unexplained_of_one(
    events: list[Event], doubts: list[Doubt], seen: Mapping[tuple[str, int], int]
) -> list[str]:
    known, first_unseen = list(events), NEVER
    deletes: list[Event] = []
    for kind, key, invoked, value, expected in doubts:
        if kind == "delete":
            deletes.append(Event(kind, key, invoked, NEVER, expected))
        elif (version := seen.get((key, value))) is not None:
            known.append(Event(kind, key, invoked, NEVER, version, expected))
        else:
            first_unseen = min(first_unseen, invoked)
    # A version that nobody saw may have been there at any time since.
    known = [
        event
        for event in known
        if event.kind not in ("exists", "unequal") or event.returned < first_unseen
    ]
    found = violations(known)
    for delete in deletes:
        if not found:
            break
        fewer = violations([*known, delete])
        if len(fewer) < len(found):
            known.append(delete)
            found = fewer
    return _with_late_inserts(known, found) if found else found


def _with_late_inserts(events: list[Event], found: list[str]) -> list[str]:
    """Try to place inserts with early versions behind the deletes of later ones."""
    events = [_moved(event, {}) for event in events]
    is_better = True
    while found and is_better:
        is_better = False
        for moved in _with_one_moved(events):
            fewer = violations(moved)
            if len(fewer) < len(found):
                events, found, is_better = moved, fewer, True
                break
    return found


def _with_one_moved(events: list[Event]) -> Iterator[list[Event]]:
    inserts = [event for event in events if event.kind in ("insert", "put")]
    for insert in sorted(inserts, key=lambda event: event.version):
        for place in _places_behind_deletes(insert, events):
            yield [_moved(event, {insert.version: place}, 1) for event in events]


def _places_behind_deletes(insert: Event, events: Sequence[Event]) -> list[int]:
    changes = sorted(
        (event for event in events if event.kind in CHANGES and event.version > insert.version),
        key=lambda event: (event.version, event.kind == "delete"),
    )
    places = []
    for event in changes:
        is_close = event.version - insert.version <= CLOSE_TICKS * ROOM
        if event.returned < insert.invoked and not is_close:
            break  # it was over before the insert began: the insert must have a later version
        if event.kind == "delete" and event.invoked < insert.returned:
            places.append(event.version + 1)
    return places


def _moved(event: Event, places: Mapping[int, int], factor: int = ROOM) -> Event:
    """Return the event with other versions; between two of them is room for one."""
    version, expected = event.version * factor, event.expected * factor
    return event._replace(
        version=places.get(version, version), expected=places.get(expected, expected)
    )
