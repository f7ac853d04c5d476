"""Are the histories of entities linearizable, if the outcome of some operations is not known?

An operation of unknown outcome happened at some time after it was sent, perhaps long after, or
never. If its value was read, it happened, and has the version that was read. If not, it explains
refusals; a delete explains that an entity was absent.

The versions of an entity are ticks, and rise, also when it is deleted and inserted again.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from crash.version_order import Event, violations

NEVER = 1 << 61
"""The return of an operation that had no answer."""


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
    return found
