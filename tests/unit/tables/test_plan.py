import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.tables.entity import EntityKey
from partita.tables.filters import Filter, compile_filter, parse, to_text
from partita.tables.paging import KeyRange, after
from partita.tables.plan import Plan, PlanKind, describe, plan
from support.filter_strategies import KEYS, key_filters
from support.repeats import repeat

ENTITIES = [
    {"PartitionKey": partition_key, "RowKey": row_key, "A": index % 7}
    for index, (partition_key, row_key) in enumerate((p, r) for p in KEYS for r in KEYS)
]


def planned(text: str, within: KeyRange | None = None) -> Plan:
    return plan(parse(text), within or KeyRange())


def residual_text(text: str) -> str | None:
    residual = planned(text).residual
    return None if residual is None else to_text(residual)


def span(lower: tuple[str, str], upper: tuple[str, str] | None) -> KeyRange:
    return KeyRange(EntityKey(*lower), None if upper is None else EntityKey(*upper))


def test_no_filter_reads_the_table() -> None:
    assert plan(None) == Plan(PlanKind.TABLE, KeyRange())


def test_both_keys_make_a_point() -> None:
    made = planned("PartitionKey eq 'a' and RowKey eq 'b'")

    assert made == Plan(PlanKind.POINT, span(("a", "b"), ("a", after("b"))))


def test_keys_may_be_empty_texts() -> None:
    made = planned("PartitionKey eq '' and RowKey eq ''")

    assert made == Plan(PlanKind.POINT, span(("", ""), ("", after(""))))


def test_partition_key_alone_reads_its_partition() -> None:
    assert planned("PartitionKey eq 'a'") == Plan(PlanKind.PARTITION, KeyRange.of_partition("a"))


@pytest.mark.parametrize(
    ("condition", "lower", "upper"),
    [
        ("RowKey ge 'b'", ("a", "b"), (after("a"), "")),
        ("RowKey gt 'b'", ("a", after("b")), (after("a"), "")),
        ("RowKey lt 'b'", ("a", ""), ("a", "b")),
        ("RowKey le 'b'", ("a", ""), ("a", after("b"))),
        ("RowKey ge 'b' and RowKey lt 'c'", ("a", "b"), ("a", "c")),
        ("RowKey ge 'b' and RowKey gt 'c' and RowKey ge 'a'", ("a", after("c")), (after("a"), "")),
    ],
)
def test_row_key_bounds_make_a_range_in_one_partition(
    condition: str, lower: tuple[str, str], upper: tuple[str, str]
) -> None:
    made = planned(f"PartitionKey eq 'a' and {condition}")

    assert made == Plan(PlanKind.RANGE, span(lower, upper))


def test_partition_key_bounds_span_partitions() -> None:
    made = planned("PartitionKey gt 'a' and PartitionKey le 'c'")

    assert made == Plan(PlanKind.MULTI_PARTITION, span((after("a"), ""), (after("c"), "")))


def test_bounds_that_meet_fix_the_partition() -> None:
    made = planned("PartitionKey ge 'a' and PartitionKey le 'a' and RowKey eq 'b'")

    assert made == Plan(PlanKind.POINT, span(("a", "b"), ("a", after("b"))))


def test_row_key_without_one_partition_stays_in_the_residual() -> None:
    assert residual_text("RowKey eq 'b'") == "RowKey eq 'b'"
    assert residual_text("PartitionKey ge 'a' and RowKey lt 'b'") == "RowKey lt 'b'"
    assert planned("RowKey eq 'b'").kind is PlanKind.TABLE


def test_other_conditions_stay_in_the_residual() -> None:
    text = "PartitionKey eq 'a' and Age lt 40 and RowKey ge 'b' and (X or Y)"

    assert residual_text(text) == "Age lt 40 and (X or Y)"


def test_unequal_keys_stay_in_the_residual() -> None:
    text = "PartitionKey eq 'a' and RowKey ne 'b'"

    assert planned(text).kind is PlanKind.PARTITION
    assert residual_text(text) == "RowKey ne 'b'"


def test_key_compared_with_another_type_makes_no_bounds() -> None:
    assert planned("PartitionKey lt 5").span == KeyRange()
    assert residual_text("PartitionKey lt 5") == "PartitionKey lt 5"


@pytest.mark.parametrize(
    "text",
    [
        "not (not (PartitionKey eq 'a' and RowKey lt 'b'))",
        "not (PartitionKey ne 'a' or RowKey ge 'b')",
        "not (PartitionKey ne 'a') and not (RowKey ge 'b')",
    ],
)
def test_negated_key_conditions_are_turned_around(text: str) -> None:
    assert planned(text) == Plan(PlanKind.RANGE, span(("a", ""), ("a", "b")))


def test_negation_of_other_conditions_is_kept() -> None:
    assert residual_text("not (Age lt 40 or PartitionKey lt 'a')") == "not (Age lt 40)"


@pytest.mark.parametrize(
    "text",
    [
        "PartitionKey eq 'a' and PartitionKey eq 'b'",
        "PartitionKey gt 'b' and PartitionKey lt 'b'",
        "PartitionKey eq 'a' and RowKey gt 'b' and RowKey le 'b'",
        "PartitionKey lt ''",
        "false",
        "Age lt 40 and not true",
        "(PartitionKey eq 'a' or PartitionKey eq 'b') and PartitionKey eq 'c'",
    ],
)
def test_contradiction_reads_nothing(text: str) -> None:
    made = planned(text)

    assert made.span.is_empty
    assert made.residual is None
    assert made.kind is PlanKind.RANGE
    assert describe(made) == "nothing"


def test_alternatives_are_read_as_the_range_around_them() -> None:
    text = "PartitionKey eq 'a' and (RowKey eq 'x' or RowKey eq 'b' or RowKey eq 'm')"
    made = planned(text)

    assert made.span == span(("a", "b"), ("a", after("x")))
    assert residual_text(text) == "RowKey eq 'x' or RowKey eq 'b' or RowKey eq 'm'"


def test_alternatives_in_several_partitions_are_read_as_the_range_around_them() -> None:
    text = "PartitionKey eq 'a' and RowKey eq '1' or PartitionKey eq 'c' and RowKey eq '0'"

    assert planned(text).kind is PlanKind.MULTI_PARTITION
    assert planned(text).span == span(("a", ""), (after("c"), ""))
    assert residual_text(text) == text


def test_impossible_alternative_does_not_widen_the_range() -> None:
    text = "PartitionKey eq 'c' or PartitionKey eq 'a' and PartitionKey eq 'z'"

    assert planned(text).kind is PlanKind.PARTITION


def test_true_says_nothing() -> None:
    assert planned("true and PartitionKey eq 'a'") == planned("PartitionKey eq 'a'")


def test_plan_stays_within_its_range() -> None:
    within = span(("a", "k"), ("b", "k"))

    assert planned("", within) == Plan(PlanKind.MULTI_PARTITION, within)
    assert planned("PartitionKey eq 'a'", within).span == span(("a", "k"), (after("a"), ""))
    assert planned("PartitionKey eq 'a'", within).kind is PlanKind.RANGE
    assert planned("PartitionKey eq 'a' and RowKey eq 'm'", within).kind is PlanKind.POINT


def test_point_outside_its_range_reads_nothing() -> None:
    within = span(("a", "k"), ("b", "k"))

    assert planned("PartitionKey eq 'a' and RowKey eq 'b'", within).span.is_empty


@pytest.mark.repeated
@settings(max_examples=repeat(50, 800, 800), deadline=None)
@given(key_filters(), st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(KEYS)), max_size=2))
def test_span_and_residual_select_what_the_filter_selects(
    tree: Filter, ends: list[tuple[str, str]]
) -> None:
    first, *rest = sorted(ends) or [("", "")]
    within = span(first, rest[0] if rest else None)

    made = plan(tree, within)

    whole = compile_filter(tree)
    remaining = (lambda _: True) if made.residual is None else compile_filter(made.residual)
    for entity in ENTITIES:
        key = EntityKey(str(entity["PartitionKey"]), str(entity["RowKey"]))
        expected = within.contains(key) and whole(entity)
        assert (made.span.contains(key) and remaining(entity)) == expected
    if made.kind is PlanKind.POINT:
        assert made.span == span(made.span.lower, (made.span.lower[0], after(made.span.lower[1])))


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("", "table"),
        ("Age lt 40", "table residual: Age lt 40"),
        ("PartitionKey eq 'a' and RowKey eq 'b'", "point pk='a' rk='b'"),
        ("PartitionKey eq 'a'", "partition pk='a'"),
        (
            "PartitionKey eq 'a' and RowKey ge 'b' and RowKey lt 'c' and Age lt 40",
            "range pk='a' rk>='b' rk<'c' residual: Age lt 40",
        ),
        ("PartitionKey eq 'a' and RowKey gt 'b'", "range pk='a' rk>'b'"),
        ("PartitionKey eq 'a' and RowKey le 'b'", "range pk='a' rk<='b'"),
        ("PartitionKey ge 'a' and PartitionKey lt 'c'", "multi-partition pk>='a' pk<'c'"),
        ("PartitionKey lt 'c'", "multi-partition pk<'c'"),
        ("PartitionKey eq '\u00e9%\n'", "partition pk='%C3%A9%25%0A'"),
        ("Gr\u00f6\u00dfe eq 1", "table residual: Gr%C3%B6%C3%9Fe eq 1"),
    ],
)
def test_plan_is_described_in_one_line(text: str, described: str) -> None:
    assert describe(planned(text)) == described


def test_range_that_cuts_partitions_is_described_by_pairs() -> None:
    made = planned("", span(("a", "k"), ("b", "m")))

    assert describe(made) == "multi-partition (pk,rk)>=('a','k') (pk,rk)<('b','m')"


@pytest.mark.parametrize("character", ["x", "\u00e9", "\U0001f600", "%"])
def test_description_of_long_texts_is_cut_between_escapes(character: str) -> None:
    made = planned(f"A eq '{character * 400}'")

    line = describe(made)

    assert len(line) < 250
    assert line.isascii()
    assert line.isprintable()
    assert line.endswith("...")
    tail = line.removesuffix("...")
    assert tail[-1] == "x" or tail[-3] == "%"
