import math
import sys
import time
import timeit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.errors import FilterSyntaxError, NotSupportedError, PartitaError
from partita.tables import edm, limits
from partita.tables.filters import (
    And,
    Comparison,
    Constant,
    Filter,
    Literal,
    Not,
    Or,
    Truth,
    compile_filter,
    compile_table_filter,
    parse,
    parse_table_filter,
    to_text,
)
from support.filter_strategies import (
    OPERATORS,
    POOLS,
    filters,
    many_entities,
    typed_entities,
)
from support.reference_filter import Typed, TypedEntity, Value, build, decode, evaluate
from support.repeats import repeat

NOT_VALID = "One of the request inputs is not valid."
NOT_IMPLEMENTED = "The requested operation is not implemented on the specified resource."
POOL = [(typed, decode(build(typed))) for typed in many_entities(60)]
GUID_TEXT = "c9da6455-213d-42c9-9a79-3e9149a57833"


def an_entity(**custom: Typed) -> TypedEntity:
    return {
        "PartitionKey": (edm.STRING, "p"),
        "RowKey": (edm.STRING, "r"),
        "Timestamp": (edm.DATETIME, 16_000_000_000_000_005),
        **custom,
    }


def selects(text: str, **custom: Typed) -> bool:
    tree = parse(text)
    assert tree is not None
    return compile_filter(tree)(decode(build(an_entity(**custom))))


def literal_of(text: str) -> Literal:
    tree = parse(f"A eq {text}")
    assert isinstance(tree, Comparison)
    return tree.literal


def is_a(name: str, comparison: str, value: int) -> Comparison:
    return Comparison(name, comparison, Literal(edm.INT32, value))


def refusal(text: str) -> PartitaError:
    with pytest.raises(PartitaError) as caught:
        parse(text)
    return caught.value


# Grammar


@pytest.mark.parametrize("text", ["", " ", "\t \r\n"])
def test_blank_filter_is_not_a_filter(text: str) -> None:
    assert parse(text) is None


def test_and_binds_tighter_than_or() -> None:
    a, b, c = (is_a(name, "eq", 1) for name in "ABC")

    assert parse("A eq 1 or B eq 1 and C eq 1") == Or((a, And((b, c))))
    assert parse("A eq 1 and B eq 1 or C eq 1") == Or((And((a, b)), c))


def test_not_binds_tighter_than_and_but_looser_than_comparison() -> None:
    assert parse("not A eq 1 and B") == And((Not(is_a("A", "eq", 1)), Truth("B")))


def test_not_may_be_repeated() -> None:
    assert parse("not not A") == Not(Not(Truth("A")))


def test_parentheses_override_precedence() -> None:
    tree = parse("(A or B) and not (C and D)")

    assert tree == And((Or((Truth("A"), Truth("B"))), Not(And((Truth("C"), Truth("D"))))))


def test_chains_are_flat_however_they_are_parenthesised() -> None:
    flat = And((Truth("A"), Truth("B"), Truth("C"), Truth("D")))

    assert parse("A and B and C and D") == flat
    assert parse("((A and B) and C) and D") == flat
    assert parse("A and (B and (C and D))") == flat


def test_spaces_are_free_and_not_needed_next_to_parentheses() -> None:
    assert parse("not(A eq 1)and(B  ge\t2)") == And((Not(is_a("A", "eq", 1)), is_a("B", "ge", 2)))


def test_operands_may_be_parenthesised() -> None:
    assert parse("((A) eq (1))") == is_a("A", "eq", 1)


@pytest.mark.parametrize(
    ("written", "turned"),
    [("eq", "eq"), ("ne", "ne"), ("lt", "gt"), ("le", "ge"), ("gt", "lt"), ("ge", "le")],
)
def test_constant_on_the_left_is_turned_around(written: str, turned: str) -> None:
    assert parse(f"1 {written} A") == is_a("A", turned, 1)


@pytest.mark.parametrize("name", ["_id", "a1", "Größe", "ꀕ", "X", "datetime", "guid", "Eq", "L"])
def test_identifiers_may_be_unicode_and_look_like_prefixes(name: str) -> None:
    assert parse(f"{name} eq 1") == is_a(name, "eq", 1)


def test_bare_constant_is_a_filter() -> None:
    assert parse("true") == Constant(True)
    assert parse("not false") == Not(Constant(False))


def test_fifty_one_and_three_thousand_comparisons_are_allowed() -> None:
    for count in (51, 3000):
        tree = parse(" or ".join(["A eq 1"] * count))
        assert isinstance(tree, Or)
        assert len(tree.children) == count


# Literals


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("'a''b'", edm.STRING, "a'b"),
        ("''", edm.STRING, ""),
        ("''''", edm.STRING, "'"),
        ("'?\"\\{}<>%/`'", edm.STRING, '?"\\{}<>%/`'),
        ("' and or '", edm.STRING, " and or "),
        ("42", edm.INT32, 42),
        ("-1", edm.INT32, -1),
        ("-2147483648", edm.INT32, -(2**31)),
        ("42L", edm.INT64, 42),
        ("-42l", edm.INT64, -42),
        ("2147483647", edm.INT32, 2**31 - 1),
        ("2147483648L", edm.INT64, 2**31),
        ("4294967295L", edm.INT64, 2**32 - 1),
        ("-9223372036854775808L", edm.INT64, -(2**63)),
        ("4.1", edm.DOUBLE, 4.1),
        ("1.0", edm.DOUBLE, 1.0),
        ("1e3", edm.DOUBLE, 1000.0),
        ("1E+3", edm.DOUBLE, 1000.0),
        ("-1.5e-3", edm.DOUBLE, -0.0015),
        (".5", edm.DOUBLE, 0.5),
        ("5d", edm.DOUBLE, 5.0),
        ("5.5D", edm.DOUBLE, 5.5),
        ("INF", edm.DOUBLE, math.inf),
        ("Infinity", edm.DOUBLE, math.inf),
        ("-INF", edm.DOUBLE, -math.inf),
        ("-Infinity", edm.DOUBLE, -math.inf),
        ("true", edm.BOOLEAN, True),
        ("False", edm.BOOLEAN, False),
        ("datetime'1970-01-01T00:00:00.0000001Z'", edm.DATETIME, 1),
        ("datetime'1970-01-01T00:00:01'", edm.DATETIME, 10_000_000),
        ("datetime'1970-01-01T01:00:00+01:00'", edm.DATETIME, 0),
        ("datetime'0001-01-01T00:00:00Z'", edm.DATETIME, -621_355_968_000_000_000),
        (f"guid'{GUID_TEXT.upper()}'", edm.GUID, GUID_TEXT),
        ("X'6269'", edm.BINARY, b"bi"),
        ("binary'fF00'", edm.BINARY, b"\xff\x00"),
        ("X''", edm.BINARY, b""),
    ],
)
def test_literal_has_type_and_value(text: str, kind: str, value: Value) -> None:
    literal = literal_of(text)

    assert (literal.type, literal.value) == (kind, value)
    assert type(literal.value) is type(value)


def test_nan_is_a_double() -> None:
    literal = literal_of("NaN")

    assert literal.type == edm.DOUBLE
    assert math.isnan(float(literal.value))


@pytest.mark.parametrize(
    "text", ["2147483648", "-2147483649", "4294967295", "4294967296", str(2**63), "1" * 65]
)
def test_a_whole_number_beyond_int32_needs_its_suffix(text: str) -> None:
    shown = text[:64]
    for written, place in ((f"A eq {text}", 5), (f"{text} lt A", 0)):
        with pytest.raises(FilterSyntaxError) as caught:
            parse(written)

        assert caught.value.code == "InvalidInput"
        assert caught.value.message == (
            f"Unrecognized 'Edm.Int32' literal '{shown}' at '{place}' in '{written}'."
        )
        assert f"{shown}L" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "9223372036854775808L",
        "1" * 65 + "L",
        "1e400",
        "datetime'yesterday'",
        "datetime'0001-01-01T00:00:00+14:00'",
        "guid'c9da6455'",
        "X'6'",
        "X'6 '",
        "X'zz'",
        "5m",
        "+5",
        "5.",
        "--5",
        "-true",
        "'open",
        "time'12:00'",
        "a\u00a0b",
        "n" * 256,
    ],
)
def test_malformed_literal_is_a_syntax_error(text: str) -> None:
    error = refusal(f"A eq {text}")

    assert isinstance(error, FilterSyntaxError)
    assert error.code == "InvalidInput"
    assert error.message.startswith("Syntax error at position ")


# Refusals


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("aaa bbb ccc", 7),
        ("property1 eq 1'invalid'", 23),
        ("A eq", 4),
        ("A eq 1 and", 10),
        ("(A eq 1", 7),
        ("A eq 1)", 7),
        ("()", 2),
        ("A eq 1 eq 2", 9),
        ("A eq not B", 8),
        ("and A", 3),
        ("A = 1", 3),
        ("A eq 1,", 7),
        ("unknown(A)", 8),
        ("A/B eq 1", 2),
        ("A EQ 1", 4),
    ],
)
def test_syntax_error_names_the_end_of_the_offending_token(text: str, position: int) -> None:
    error = refusal(text)

    assert isinstance(error, FilterSyntaxError)
    assert error.code == "InvalidInput"
    assert error.message == f"Syntax error at position {position} in '{text}'."


@pytest.mark.parametrize(
    "text",
    [
        "startswith(A,'x')",
        "A eq tolower('x')",
        "substringof ('x', A)",
        "A add 1 eq 2",
        "A mod 2 eq 0",
        "A eq B",
        "1 eq 2",
        "'a' eq 'a'",
        "(A eq 1) eq true",
        "true eq (A and B)",
    ],
)
def test_what_the_service_lacks_is_not_implemented(text: str) -> None:
    error = refusal(text)

    assert isinstance(error, NotSupportedError)
    assert (error.code, error.message) == ("NotImplemented", NOT_IMPLEMENTED)


@pytest.mark.parametrize("text", ["A eq null", "null ne A", "A lt null and B"])
def test_null_is_refused(text: str) -> None:
    error = refusal(text)

    assert isinstance(error, FilterSyntaxError)
    assert (error.code, error.message) == ("InvalidInput", NOT_VALID)


@pytest.mark.parametrize(
    ("text", "left", "right", "kind"),
    [
        ("(PartitionKey ) and (A eq 1)", "Edm.String", "Edm.Boolean", "And"),
        ("A eq 1 and B and RowKey", "Edm.Boolean", "Edm.String", "And"),
        ("Timestamp or A", "Edm.DateTime", "Edm.Boolean", "Or"),
        ("PartitionKey and Timestamp", "Edm.String", "Edm.DateTime", "And"),
        ("A or 5", "Edm.Boolean", "Edm.Int32", "Or"),
    ],
)
def test_operands_known_not_to_be_boolean_are_refused(
    text: str, left: str, right: str, kind: str
) -> None:
    error = refusal(text)

    assert isinstance(error, FilterSyntaxError)
    assert error.code == "InvalidInput"
    assert error.message == (
        "A binary operator with incompatible types was detected."
        f" Found operand types '{left}' and '{right}' for operator kind '{kind}'."
    )


def test_not_of_a_key_is_refused() -> None:
    assert refusal("not PartitionKey").message == (
        "A unary operator with an incompatible type was detected."
        " Found operand type 'Edm.String' for operator kind 'Not'."
    )


@pytest.mark.parametrize("text", ["PartitionKey", "5", "'x'", "(Timestamp)"])
def test_whole_filter_must_be_boolean(text: str) -> None:
    error = refusal(text)

    assert error.code == "InvalidInput"
    assert error.message == "The $filter expression must evaluate to a single boolean value."


def test_nesting_is_allowed_up_to_its_limit() -> None:
    depth = limits.FILTER_DEPTH_MAX

    assert parse("(" * depth + "A eq 1" + ")" * depth) == is_a("A", "eq", 1)
    assert refusal("(" * (depth + 1) + "A eq 1" + ")" * (depth + 1)).message == NOT_VALID
    assert refusal("not " * (depth + 1) + "A").message == NOT_VALID


def test_nesting_counts_only_what_is_open() -> None:
    text = " and ".join(["(not (A eq 1))"] * 500)

    assert isinstance(parse(text), And)


def test_deepest_filter_is_compiled_and_printed_with_a_small_stack() -> None:
    depth = limits.FILTER_DEPTH_MAX
    tree = parse("(A or B and " * depth + "C" + ")" * depth)
    assert tree is not None
    limit = sys.getrecursionlimit()

    sys.setrecursionlimit(600)
    try:
        assert compile_filter(tree)({"A": True})
        assert to_text(tree).startswith("A or B and (A or B and (")
    finally:
        sys.setrecursionlimit(limit)


def test_filter_longer_than_its_limit_is_refused() -> None:
    text = "A eq '" + "x" * limits.FILTER_CHARACTERS_MAX + "'"

    assert refusal(text).message == NOT_VALID


@pytest.mark.parametrize(
    "text",
    [
        "(" * 50_000,
        "(" * 30_000,
        "not " * 8_000,
        "'" * 32_001,
        "A eq 1 and " * 2_900,
        "1" * 32_000,
        "é" * 32_000,
        "-" * 32_000,
        "A eq " + "." * 32_000,
    ],
    ids=lambda text: text[:8],
)
def test_hostile_text_is_refused_at_once(text: str) -> None:
    seconds = min(timeit.repeat(lambda: refusal(text), timer=time.process_time, number=1, repeat=3))

    assert seconds < 0.05


@given(st.text(alphabet="()'AeqandotX1.-L \u00e9", max_size=40))
def test_any_text_is_a_filter_or_a_usage_error(text: str) -> None:
    try:
        tree = parse(text)
    except (FilterSyntaxError, NotSupportedError):
        return
    assert tree is None or parse(to_text(tree)) == tree


# Semantics

SAMPLES: dict[str, tuple[Value, Value, Value]] = {
    edm.STRING: ("a", "b", "ba"),
    edm.INT32: (-1, 5, 40),
    edm.INT64: (-1, 5, 2**40),
    edm.DOUBLE: (-1.0, 5.0, 5.5),
    edm.DATETIME: (16_000_000_000_000_000, 16_000_000_000_000_001, 16_000_000_010_000_000),
    edm.GUID: (
        "00000000-0000-0000-0000-000000000000",
        GUID_TEXT,
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    ),
    edm.BINARY: (b"", b"a", b"a\x00"),
}
"""Of each type three values in their natural order."""

FITS = {
    *((kind, kind) for kind in POOLS),
    (edm.INT32, edm.INT64),
    (edm.INT32, edm.DOUBLE),
    (edm.INT64, edm.DOUBLE),
}
"""Types of literal and property that are compared by value."""


def compares(kind: str, value: Value, comparison: str, literal: Literal) -> bool:
    tree = Comparison("A", comparison, literal)
    return compile_filter(tree)(decode(build(an_entity(A=(kind, value)))))


def answers(kind: str, value: Value, literal: Literal) -> str:
    """Spell the six answers in the order eq ne lt le gt ge."""
    order = ("eq", "ne", "lt", "le", "gt", "ge")
    return "".join("FT"[compares(kind, value, comparison, literal)] for comparison in order)


@pytest.mark.parametrize("kind", SAMPLES)
def test_equal_types_compare_in_natural_order(kind: str) -> None:
    low, middle, high = SAMPLES[kind]
    literal = Literal(kind, middle)

    assert answers(kind, low, literal) == "FTTTFF"
    assert answers(kind, middle, literal) == "TFFTFT"
    assert answers(kind, high, literal) == "FTFFTT"


def test_false_is_less_than_true() -> None:
    assert answers(edm.BOOLEAN, False, Literal(edm.BOOLEAN, True)) == "FTTTFF"
    assert answers(edm.BOOLEAN, True, Literal(edm.BOOLEAN, True)) == "TFFTFT"
    assert answers(edm.BOOLEAN, True, Literal(edm.BOOLEAN, False)) == "FTFFTT"


@pytest.mark.parametrize(
    ("literal", "kind"), [(edm.INT32, edm.INT64), (edm.INT32, edm.DOUBLE), (edm.INT64, edm.DOUBLE)]
)
def test_smaller_number_types_widen(literal: str, kind: str) -> None:
    low, middle, high = SAMPLES[kind]

    assert answers(kind, low, Literal(literal, 5)) == "FTTTFF"
    assert answers(kind, middle, Literal(literal, 5)) == "TFFTFT"
    assert answers(kind, high, Literal(literal, 5)) == "FTFFTT"


@pytest.mark.parametrize(
    ("literal", "kind"),
    [(literal, kind) for literal in POOLS for kind in POOLS if (literal, kind) not in FITS],
)
def test_property_is_less_than_a_literal_of_another_type(literal: str, kind: str) -> None:
    for value in POOLS[kind]:
        for other in POOLS[literal]:
            assert answers(kind, value, Literal(literal, other)) == "FTTTFF"


@pytest.mark.parametrize("comparison", OPERATORS)
@pytest.mark.parametrize("kind", POOLS)
def test_comparison_with_a_missing_property_is_false(comparison: str, kind: str) -> None:
    for value in POOLS[kind]:
        tree = Comparison("Missing", comparison, Literal(kind, value))
        assert not compile_filter(tree)(decode(build(an_entity())))


def test_logic_is_two_valued() -> None:
    assert selects("not (X eq 1)")
    assert selects("not (X ne 1)")
    assert selects("not (X ne 1 and Y ne 2)")


def test_greater_than_empty_selects_strings_only() -> None:
    assert selects("A gt ''", A=(edm.STRING, "x"))
    assert not selects("A gt ''", A=(edm.STRING, ""))
    assert not selects("A gt ''", A=(edm.DOUBLE, 1.5))
    assert not selects("A gt ''", A=(edm.DATETIME, 0))


def test_quoted_guid_or_date_is_a_string() -> None:
    assert not selects(f"A eq '{GUID_TEXT}'", A=(edm.GUID, GUID_TEXT))
    assert not selects(f"A eq guid'{GUID_TEXT}'", A=(edm.STRING, GUID_TEXT))
    assert not selects("A eq '1970-01-01T00:00:00Z'", A=(edm.DATETIME, 0))
    assert not selects("A eq guid'00000000-0000-0000-0000-000000000000'", A=(edm.STRING, ""))


def test_bare_property_is_true_only_where_it_is_true() -> None:
    assert selects("A", A=(edm.BOOLEAN, True))
    assert not selects("A", A=(edm.BOOLEAN, False))
    assert not selects("A", A=(edm.STRING, "true"))
    assert not selects("A", A=(edm.INT32, 1))
    assert not selects("A")
    assert selects("not A", A=(edm.BOOLEAN, False))


def test_names_are_case_sensitive() -> None:
    assert not selects("a eq 1", A=(edm.INT32, 1))


def test_timestamp_is_a_datetime_to_the_tick() -> None:
    shown = edm.text_of(16_000_000_000_000_005)
    cut = edm.text_of(16_000_000_000_000_000)

    assert selects(f"Timestamp eq datetime'{shown}'")
    assert selects(f"Timestamp gt datetime'{cut}'")
    assert not selects(f"Timestamp eq '{shown}'")
    assert selects(f"Timestamp lt '{cut}'")


def test_keys_are_strings() -> None:
    assert selects("PartitionKey eq 'p' and 'r' eq RowKey")
    assert selects("PartitionKey lt 5 and PartitionKey ne 5")
    assert not selects("PartitionKey gt 5")


def test_strings_are_ordered_by_code_point() -> None:
    assert selects("A gt 'Z'", A=(edm.STRING, "a"))
    assert selects("A gt '\uffee'", A=(edm.STRING, "\U0001f600"))


def test_binaries_are_ordered_by_bytes_and_not_by_base64() -> None:
    # In base64 these are "+/8=" and "AAA=", the other way around.
    assert selects("A gt X'0000'", A=(edm.BINARY, b"\xfb\xff"))


def test_large_whole_numbers_are_rounded_when_they_widen_to_double() -> None:
    assert selects("A eq 9007199254740993L", A=(edm.DOUBLE, 2.0**53))
    assert not selects("A eq 9007199254740993L", A=(edm.INT64, 2**53))


def test_nan_is_unequal_to_everything_and_unordered() -> None:
    nan = Literal(edm.DOUBLE, math.nan)

    assert answers(edm.DOUBLE, math.nan, nan) == "FTFFFF"
    assert answers(edm.DOUBLE, 1.0, nan) == "FTFFFF"
    assert answers(edm.DOUBLE, math.nan, Literal(edm.INT32, 1)) == "FTFFFF"


def test_infinities_are_the_ends_of_the_doubles() -> None:
    assert answers(edm.DOUBLE, math.inf, Literal(edm.DOUBLE, math.inf)) == "TFFTFT"
    assert answers(edm.DOUBLE, -math.inf, Literal(edm.INT32, 0)) == "FTTTFF"


@pytest.mark.repeated
@settings(max_examples=repeat(100, 800, 4000), deadline=None)
@given(filters())
def test_closure_decides_as_the_obvious_interpreter_does(tree: Filter) -> None:
    matches = compile_filter(tree)

    for typed, members in POOL:
        assert matches(members) == evaluate(tree, typed)


@settings(max_examples=200, deadline=None)
@given(filters(), typed_entities())
def test_closure_decides_on_any_entity(tree: Filter, typed: TypedEntity) -> None:
    assert compile_filter(tree)(decode(build(typed))) == evaluate(tree, typed)


@pytest.mark.repeated
@settings(max_examples=repeat(30, 500, 500), deadline=None)
@given(filters())
def test_printed_filter_parses_to_the_same_tree(tree: Filter) -> None:
    text = to_text(tree)

    # Trees with NaN are not equal to themselves; their texts are.
    assert parse(text) == tree or ("NaN" in text and to_text(parsed(text)) == text)


def parsed(text: str) -> Filter:
    tree = parse(text)
    assert tree is not None
    return tree


# Lists of tables


def names_matching(text: str) -> list[str]:
    tree = parse_table_filter(text)
    assert tree is not None
    matches = compile_table_filter(tree)
    return [name for name in ("Alpha", "beta", "Beta2", "Gamma") if matches(name)]


def test_table_names_compare_without_case() -> None:
    assert names_matching("TableName eq 'BETA'") == ["beta"]
    assert names_matching("'alpha' eq TableName") == ["Alpha"]
    assert names_matching("TableName ne 'alpha'") == ["beta", "Beta2", "Gamma"]


def test_table_prefix_is_a_range() -> None:
    assert names_matching("TableName ge 'Be' and TableName lt 'Bf'") == ["beta", "Beta2"]
    assert names_matching("not (TableName ge 'b')") == ["Alpha"]
    assert names_matching("TableName le 'a' or TableName gt 'BETA2'") == ["Gamma"]


def test_blank_table_filter_is_not_a_filter() -> None:
    assert parse_table_filter(" ") is None


@pytest.mark.parametrize(
    "text", ["Name eq 'x'", "TableName eq 'x' and Other", "not (tablename eq 'x')"]
)
def test_unknown_property_of_tables_is_refused(text: str) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        parse_table_filter(text)

    assert (caught.value.code, caught.value.message) == ("InvalidInput", NOT_VALID)


@pytest.mark.parametrize("text", ["TableName eq", "aaa bbb", "startswith(TableName,'a')"])
def test_unparsable_table_filter_is_not_implemented(text: str) -> None:
    with pytest.raises(NotSupportedError) as caught:
        parse_table_filter(text)

    assert (caught.value.code, caught.value.message) == ("NotImplemented", NOT_IMPLEMENTED)
