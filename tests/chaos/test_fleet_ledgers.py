"""The ledgers of the fleet: what they must find, and what they must allow."""

import pytest

from chaos.fleet.history import CLOSE_TICKS, NEVER, Doubt, unexplained
from chaos.fleet.ledgers import content_of, version_of
from crash.version_order import Event

WRITTEN = [
    Event("insert", "k", 0, 1, 10),
    Event("update", "k", 2, 3, 20, 10),
    Event("read", "k", 4, 5, 20),
]


def test_a_history_without_doubts_is_checked_as_it_is() -> None:
    assert unexplained(WRITTEN, [], {}) == []
    assert unexplained([*WRITTEN, Event("read", "k", 6, 7, 10)], [], {}) != []


def test_a_change_without_an_answer_happened_if_its_value_was_read() -> None:
    events = [*WRITTEN, Event("read", "k", 6, 7, 30)]
    doubt = Doubt("update", "k", 4, value=5, expected=20)

    assert unexplained(events, [], {("k", 5): 30}) != []
    assert unexplained(events, [doubt], {("k", 5): 30}) == []
    assert unexplained([*events, Event("read", "k", 8, 9, 20)], [doubt], {("k", 5): 30}) != []


def test_a_delete_without_an_answer_explains_that_an_entity_is_absent() -> None:
    events = [*WRITTEN, Event("absent", "k", 6, 7), Event("insert", "k", 8, 9, 40)]

    assert unexplained(events, [], {}) != []
    assert unexplained(events, [Doubt("delete", "k", 4, 0, 20)], {}) == []
    assert unexplained(events, [Doubt("delete", "k", 4, 0, 10)], {}) != []
    assert unexplained(events, [Doubt("delete", "k", 10, 0, 20)], {}) != []


def test_a_version_that_nobody_saw_explains_refusals() -> None:
    events = [*WRITTEN, Event("unequal", "k", 6, 7, 0, 20)]

    assert unexplained(events, [], {}) != []
    assert unexplained(events, [Doubt("put", "k", 4, 0)], {}) == []
    assert unexplained(events, [Doubt("put", "k", 8, 0)], {}) != []


def late(invoked: int, returned: int = 30, earlier: int = 10 * CLOSE_TICKS) -> list[Event]:
    """An insert with an earlier version than one that was deleted before."""
    deleted = 10 + 20 * CLOSE_TICKS
    version = deleted - earlier
    return [
        Event("insert", "k", 0, 1, 10),
        Event("update", "k", 2, 3, deleted, 10),
        Event("delete", "k", 8, 9, deleted),
        Event("absent", "k", 10, 11),
        Event("insert", "k", invoked, returned, version),
        Event("read", "k", 31, 32, version),
        Event("update", "k", 33, 34, 2 * deleted, version),
    ]


@pytest.mark.parametrize("returned", [30, NEVER])
def test_an_insert_that_was_on_its_way_may_have_an_earlier_version(returned: int) -> None:
    assert unexplained(late(invoked=1, returned=returned), [], {}) == []


def test_an_insert_has_a_later_version_than_all_changes_before_it() -> None:
    assert unexplained(late(invoked=4), [], {}) != []
    assert unexplained(late(invoked=12), [], {}) != []


def test_an_insert_may_have_an_earlier_version_by_as_much_as_clocks_may_differ() -> None:
    assert unexplained(late(invoked=12, earlier=CLOSE_TICKS // 2), [], {}) == []
    assert unexplained(late(invoked=12, earlier=2 * CLOSE_TICKS), [], {}) != []


def test_an_etag_that_repeats_is_found() -> None:
    again = [Event("delete", "k", 6, 7, 20), Event("insert", "k", 8, 9, 20)]

    assert unexplained([*WRITTEN, *again], [], {}) != []


def test_etags_and_timestamps_have_the_order_of_their_times() -> None:
    etag = "W/\"datetime'2026-01-02T03%3A04%3A05.1234567Z'\""

    assert version_of(etag) == version_of("2026-01-02T03:04:05.1234567Z")
    assert version_of(etag) < version_of("2026-01-02T03:04:05.2Z")
    assert version_of("2026-01-02T03:04:05Z") < version_of(etag)


def test_a_content_tells_its_version() -> None:
    assert content_of("b", 7, 900) == content_of("b", 7, 900)
    assert content_of("b", 7, 900)[4:] != content_of("b", 8, 900)[4:]
    assert len(content_of("b", 7, 900)) == 900
