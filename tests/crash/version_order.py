"""Is a concurrent history of one entity linearizable? The etags give the order of its versions.

The states of an entity in order are: absent, version, version, absent, version… An operation
that tells which state it saw or made has a place in that order; it must not have returned before
one with an earlier place was invoked. One that only excludes states (not found, exists already,
condition not satisfied) must fit somewhere. Deletes are conditional, so that they have a place:
right behind the version that they name.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

ABSENT = 0
"""The state of an entity that does not exist; versions are positive."""


class Event(NamedTuple):
    """One operation on one entity, with the order of its invocation and its return."""

    kind: str
    """read, put, insert, update, delete: succeeded; absent, exists, unequal: refused."""
    key: str
    invoked: int
    returned: int
    version: int = ABSENT
    """The version read or made; of a delete, the version it removed."""
    expected: int = ABSENT
    """The etag that an update named."""


def violations(events: Sequence[Event]) -> list[str]:
    """Return what no order of the operations can explain."""
    by_key: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_key[event.key].append(event)
    return [text for key in sorted(by_key) for text in _violations_of_one(by_key[key])]


def _violations_of_one(events: list[Event]) -> list[str]:
    changes = [event for event in events if event.kind in ("put", "insert", "update", "delete")]
    places = sorted((event.version, event.kind == "delete") for event in changes)
    found = [f"{place} was made twice" for place, after in pairwise(places) if place == after]
    states = [ABSENT] + [ABSENT if is_delete else version for version, is_delete in places]
    index = {place: number for number, place in enumerate(places, start=1)}
    found += _wrong_successors(changes, states, index)

    placed = [(2 * index[event.version, event.kind == "delete"], event) for event in changes]
    for event in events:
        if event.kind != "read":
            continue
        if (event.version, False) not in index:
            found.append(f"{event} shows a version that nobody made")
        else:
            placed.append((2 * index[event.version, False] + 1, event))
    found += _out_of_order(placed)
    return found + _impossible_refusals(events, states, placed)


def _wrong_successors(
    changes: list[Event], states: list[int], index: dict[tuple[int, bool], int]
) -> list[str]:
    found = []
    for event in changes:
        before = states[index[event.version, event.kind == "delete"] - 1]
        wanted = {"insert": ABSENT, "update": event.expected, "delete": event.version}
        if event.kind in wanted and before != wanted[event.kind]:
            found.append(f"{event} followed {before}")
    return found


def _out_of_order(placed: list[tuple[int, Event]]) -> list[str]:
    found = []
    placed.sort(key=lambda each: each[0])
    latest = pending = -1  # invocations at earlier places; and at the present one
    present = -1
    for place, event in placed:
        if place != present:
            latest, present = max(latest, pending), place
        if event.returned < latest:
            found.append(f"{event} had returned before an earlier place was invoked at {latest}")
        pending = max(pending, event.invoked)
    return found


def _impossible_refusals(
    events: list[Event], states: list[int], placed: list[tuple[int, Event]]
) -> list[str]:
    """Check each refusal against the states that may have held while it ran.

    State k has its place at 2k, those who read it at 2k + 1: it cannot begin before all up to
    2k were invoked, nor last until after one from 2k + 2 on had returned.
    """
    begins = [-1] * len(states)
    ends = [1 << 62] * len(states)
    for place, event in placed:
        at_least, at_most = (place + 1) // 2, (place - 2) // 2
        if at_least < len(states):
            begins[at_least] = max(begins[at_least], event.invoked)
        if at_most >= 0:
            ends[at_most] = min(ends[at_most], event.returned)
    for number in range(1, len(states)):
        begins[number] = max(begins[number], begins[number - 1])
    for number in range(len(states) - 2, -1, -1):
        ends[number] = min(ends[number], ends[number + 1])

    found = []
    for event in events:
        if event.kind not in ("absent", "exists", "unequal"):
            continue
        first = bisect_right(ends, event.invoked)
        last = bisect_left(begins, event.returned)
        if not any(_explains(event, state) for state in states[first:last]):
            found.append(f"{event} fits none of {states[first:last]}")
    return found


def _explains(event: Event, state: int) -> bool:
    if event.kind == "absent":
        return state == ABSENT
    if event.kind == "exists":
        return state != ABSENT
    return state not in (ABSENT, event.expected)
