"""A filter that is read the short way is the one that the parser returns."""

from hypothesis import example, given
from hypothesis import strategies as st

from partita.errors import PartitaError
from partita.tables.filters import Filter, parse
from partita.tables.reading.usual_filters import read_filter

names = st.sampled_from(
    [
        "PartitionKey",
        "Age",
        "_x",
        "a" * 255,
        "a" * 256,
        "true",
        "NaN",
        "null",
        "not",
        "eq",
        "datetime",
        "é",
    ]
)
values = st.sampled_from(
    [
        *("'a'", "''", "'it''s'", "'a and b'", "' and Age eq '", "5", "-0", "007", "-3", "5L"),
        *("999999999", "2147483648", "1.5", "true", "guid'x'", "datetime'2024-01-01'", "Age"),
        *("'é\u0000'", "'"),
    ]
)
comparisons = st.builds(
    lambda name, blank, operator, value: f"{name}{blank}{operator} {value}",
    names,
    st.sampled_from([" ", " ", " ", "  ", "\t"]),
    st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge", "add"]),
    values,
)
texts = st.lists(comparisons, min_size=1, max_size=4).flatmap(
    lambda parts: st.sampled_from([" and ", " and ", " or ", " and not ", "  and "]).map(
        lambda joint: joint.join(parts)
    )
)


def outcome(text: str, read: object) -> Filter | tuple[str, str] | None:
    try:
        return read(text)  # type: ignore[operator,no-any-return]
    except PartitaError as error:
        return error.code, str(error)


@given(texts)
@example("")
@example(" ")
@example("PartitionKey eq 'a' and ")
@example(" and ".join(["A eq 1"] * 40))
@example("A eq '" + "x" * 40_000 + "'")
def test_the_filter_or_the_error_is_that_of_the_parser(text: str) -> None:
    assert outcome(text, read_filter) == outcome(text, parse)
