import pytest

from partita.console.tables.advice import Condition, describe_filter


def titles(text: str) -> list[str]:
    return [each.title for each in describe_filter(text).advice]


def test_a_filter_that_the_keys_express_needs_no_advice() -> None:
    assert titles("PartitionKey eq 'A' and RowKey ge '1'") == []


def test_a_search_without_a_partition_is_advised_to_name_one_and_to_keep_an_index() -> None:
    assert titles("Name eq 'Ken' and Age gt 30") == [
        "Name the partition",
        "Keep index entities by Name, Age",
        "Keep index entities by Name, Age in each partition",
    ]


def test_equal_properties_come_before_the_one_that_is_compared_by_order() -> None:
    (advice,) = describe_filter("PartitionKey eq 'A' and Age gt 30 and Name eq 'Ken'").advice

    assert advice.title == "Keep index entities by Name, Age"
    assert "'{Name}_{Age}_{RowKey}'" in advice.text


def test_a_row_key_alone_does_not_narrow() -> None:
    assert "RowKey alone does not narrow a query" in titles("RowKey eq '1'")


def test_several_partitions_are_separate_queries() -> None:
    text = "(PartitionKey eq 'A' and Age gt 3) or (PartitionKey eq 'B' and Age gt 3)"

    assert "Send one query for each partition" in titles(text)


@pytest.mark.parametrize("text", ["Age ne 3", "not (Age eq 3)", "Active"])
def test_conditions_that_no_key_expresses_propose_no_index(text: str) -> None:
    assert titles(text) == ["Name the partition"]


@pytest.mark.parametrize("text", ["Age gt", "'", "startswith(Name, 'K')", "x" * 40_000])
def test_a_filter_with_an_error_is_described_by_it(text: str) -> None:
    described = describe_filter(text)

    assert described.kind == ""
    assert described.error


def test_an_index_by_order_alone_needs_one_partition_for_all_its_rows() -> None:
    _, index, _ = describe_filter("Age gt 30").advice

    assert "PartitionKey 'Age' and RowKey '{Age}_{PartitionKey}_{RowKey}'" in index.text
    assert index.kind == "range"


def test_comparisons_joined_by_and_are_conditions_with_their_types() -> None:
    text = (
        "Name eq 'Ken''s' and Total ge 3.0 and Badge lt 42L and Active eq true"
        " and Hired gt datetime'2026-01-31T00:00:00Z' and Photo eq X'00ff'"
    )

    assert describe_filter(text).conditions == [
        Condition("Name", "eq", "s", "Ken's"),
        Condition("Total", "ge", "d", "3.0"),
        Condition("Badge", "lt", "l", "42"),
        Condition("Active", "eq", "b", "true"),
        Condition("Hired", "gt", "t", "2026-01-31T00:00:00Z"),
        Condition("Photo", "eq", "x", "AP8="),
    ]
    assert describe_filter("").conditions == []


@pytest.mark.parametrize("text", ["Age gt 3 or Age lt 1", "not (Age gt 3)", "Active"])
def test_other_filters_have_no_conditions(text: str) -> None:
    assert describe_filter(text).conditions is None
