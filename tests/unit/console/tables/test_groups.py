import pytest

from partita.bulk.batches import Change, Kind
from partita.console.tables.groups import CHANGES_MAX, GROUP_BYTES_MAX, Staged, change_of, split
from partita.errors import InvalidRequestError


def a_change(partition_key: str, row_key: str, length: int = 10) -> Change:
    return Change(Kind.INSERT, partition_key, row_key, b"x" * length)


def test_partitions_are_in_the_order_of_their_first_change() -> None:
    groups = split([a_change("B", "1"), a_change("A", "1"), a_change("B", "2")])

    assert [(group.partition_key, group.indices) for group in groups] == [("B", [0, 2]), ("A", [1])]


def test_a_group_is_not_larger_than_the_service_accepts() -> None:
    groups = split([a_change("A", str(n), 1024 * 1024) for n in range(9)])

    assert [len(group.changes) for group in groups] == [3, 3, 3]
    assert all(group.wire_bytes <= GROUP_BYTES_MAX for group in groups)


def test_two_changes_of_one_entity_are_in_two_groups_and_stay_in_order() -> None:
    groups = split([a_change("A", "1"), a_change("A", "2"), a_change("A", "1")])

    assert [group.indices for group in groups] == [[0, 1], [2]]


def test_too_many_changes_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="More than 5,000 changes"):
        split([a_change("A", str(n)) for n in range(CHANGES_MAX + 1)])


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="not a kind of change"):
        change_of(Staged("drop", "A", "1"))
