"""The arguments of a trip: keys as texts that the database splits."""

from partita.scaleout.tables.trips import SEPARATOR, _texts


def test_each_key_follows_a_separator() -> None:
    assert _texts(["p", "p"], ["", "r"]) == ("\x1fp\x1fp", "\x1f\x1fr", SEPARATOR)


def test_a_key_with_the_separator_gets_another_one() -> None:
    partitions, rows, separator = _texts(["a" + SEPARATOR, "\x01"], ["\x02", "b"])

    assert separator == "\x03"
    assert partitions.split(separator)[1:] == ["a" + SEPARATOR, "\x01"]
    assert rows.split(separator)[1:] == ["\x02", "b"]
