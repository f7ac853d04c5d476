import pytest

from partita.tables.advice import advise, advise_on_types
from partita.tables.filters import parse
from partita.tables.plan import plan


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "Age gt 40 and Name eq 'Ann'",
            (
                "It reads the whole table: give PartitionKey, or keep a second entity with Age,"
                " Name in its key."
            ),
        ),
        (
            "PartitionKey ge 'a' and PartitionKey lt 'c' and Age eq 1",
            (
                "It reads many partitions: give one PartitionKey, or keep a second entity with Age"
                " in its key."
            ),
        ),
        (
            "PartitionKey eq 'a' and Age eq 1",
            (
                "It reads the whole partition: give a range of RowKey, or keep a second entity with"
                " Age in its key."
            ),
        ),
        (
            "PartitionKey eq 'a' and RowKey gt 'b' and Age eq 1",
            (
                "It reads a long range: give a shorter range of RowKey, or keep a second entity"
                " with Age in its key."
            ),
        ),
        ("PartitionKey eq 'a' and RowKey eq 'b' and Age eq 1", ""),
    ],
)
def test_a_query_that_reads_much_and_returns_little_gets_advice(text: str, advice: str) -> None:
    assert advise(plan(parse(text)), 1000, 1) == advice


def test_a_query_that_returns_what_it_reads_gets_none() -> None:
    assert advise(plan(None), 1000, 1000) == ""


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("At ge '2026-03-01'", "datetime'2026-03-01T00:00:00Z'"),
        ("Age eq 1 and not (At lt '2026-03-01T10:00:00.5Z')", "datetime'2026-03-01T10:00:00.5Z'"),
        ("Age eq '40' or Name eq 'Ann'", "write 40:"),
        ("Open eq 'true'", "write true:"),
        (
            "Id eq '9bd2b4c1-6c0e-4d50-9c1c-2f3a4b5c6d7e'",
            "guid'9bd2b4c1-6c0e-4d50-9c1c-2f3a4b5c6d7e'",
        ),
    ],
)
def test_a_text_that_looks_like_another_type_is_named_with_how_to_write_it(
    text: str, written: str
) -> None:
    assert written in advise_on_types(parse(text))


@pytest.mark.parametrize(
    "text", ["PartitionKey eq '2026-03-01' and RowKey eq '7'", "Name eq 'Ann'", "Age gt 40", "Open"]
)
def test_keys_and_plain_texts_get_no_advice_on_types(text: str) -> None:
    assert not advise_on_types(parse(text))
