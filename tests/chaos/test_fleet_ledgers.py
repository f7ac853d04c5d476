"""The ledgers of the fleet: what they must find, and what they must allow."""

import pytest

from chaos.fleet.history import NEVER, Doubt, unexplained
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


@pytest.mark.parametrize(("invoked", "returned"), [(1, 30), (1, NEVER), (12, 30)])
def test_an_insert_has_a_later_version_than_all_that_were_deleted(
    invoked: int, returned: int
) -> None:
    def after_a_delete(version: int) -> list[Event]:
        return [
            *WRITTEN,
            Event("delete", "k", 8, 9, 20),
            Event("absent", "k", 10, 11),
            Event("insert", "k", invoked, returned, version),
            Event("read", "k", 31, 32, version),
        ]

    assert unexplained(after_a_delete(30), [], {}) == []
    assert unexplained(after_a_delete(15), [], {}) != []


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
