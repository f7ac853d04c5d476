import pytest

from partita.tables.advice import advise
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
