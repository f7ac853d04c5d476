import pytest

from partita.errors import ConflictError, GroupRuleError
from partita.tables.entity import EntityKey, build
from partita.tables.operations import Delete, EntityGroup, Insert, Merge, Operation

NOW = 17_000_000_000_000_000


def an_insert(row_key: str, partition_key: str = "p") -> Insert:
    return Insert(EntityKey(partition_key, row_key), {"A": 1})


def refused(*operations: Operation) -> tuple[str, object]:
    with pytest.raises(GroupRuleError) as error:
        EntityGroup(operations).check()
    return error.value.code, error.value.facts["index"]


def test_a_group_may_have_1_to_100_operations() -> None:
    EntityGroup([an_insert("1")]).check()
    EntityGroup([an_insert(str(number)) for number in range(100)]).check()


def test_the_101st_operation_is_refused_at_index_99() -> None:
    assert refused(*(an_insert(str(number)) for number in range(101))) == ("InvalidInput", 99)


def test_a_second_partition_is_refused_at_its_first_operation() -> None:
    assert refused(an_insert("1"), an_insert("2"), an_insert("3", "q"), an_insert("4", "q")) == (
        "CommandsInBatchActOnDifferentPartitions",
        2,
    )


def test_partitions_that_differ_in_case_are_different() -> None:
    assert refused(an_insert("1", "p"), an_insert("2", "P")) == (
        "CommandsInBatchActOnDifferentPartitions",
        1,
    )


def test_a_key_named_twice_is_refused_at_its_second_operation() -> None:
    assert refused(an_insert("1"), an_insert("2"), Delete(EntityKey("p", "1"))) == (
        "InvalidDuplicateRow",
        2,
    )


def test_count_and_repeated_keys_are_judged_before_partitions() -> None:
    twice = [an_insert("1"), an_insert("2", "q"), an_insert("1")]
    many = [an_insert(str(number), f"p{number}") for number in range(101)]

    assert refused(*twice) == ("InvalidDuplicateRow", 2)
    assert refused(*many) == ("InvalidInput", 99)


def test_one_row_key_in_two_partitions_is_not_a_repeated_key() -> None:
    assert refused(an_insert("1"), an_insert("1", "q")) == (
        "CommandsInBatchActOnDifferentPartitions",
        1,
    )


def test_applying_gives_an_outcome_for_each_operation_in_order() -> None:
    before = {"1": build(("p", "1"), NOW - 5, {}), "2": build(("p", "2"), NOW - 5, {"B": 2})}
    group = EntityGroup(
        [
            an_insert("3"),
            Delete(EntityKey("p", "1")),
            Merge(EntityKey("p", "2"), {"A": 1}),
        ]
    )

    inserted, deleted, changed = group.apply(before, NOW)

    assert inserted is not None
    assert inserted.key == ("p", "3")
    assert deleted is None
    assert changed is not None
    assert changed.properties() == {"B": 2, "A": 1}
    assert inserted.ticks == changed.ticks == NOW


def test_the_first_failing_operation_is_named() -> None:
    before = {"2": build(("p", "2"), NOW - 5, {}), "4": build(("p", "4"), NOW - 5, {})}
    group = EntityGroup([an_insert(text) for text in "12345"])

    with pytest.raises(ConflictError) as error:
        group.apply(before, NOW)

    assert error.value.code == "EntityAlreadyExists"
    assert error.value.facts["index"] == 1


def test_only_deletes_free_space() -> None:
    delete = Delete(EntityKey("p", "1"))

    assert EntityGroup([delete]).only_deletes
    assert not EntityGroup([delete, an_insert("2")]).only_deletes
