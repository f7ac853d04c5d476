import msgspec
import pytest

from partita.patterns.protocol.untrusted_json import decode


def test_a_value_of_the_type_is_read() -> None:
    assert decode('[["a", "b"]]', list[list[str]]) == [["a", "b"]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a": 1}',
        pytest.param('["\ud800"]', id="half of a pair"),
        pytest.param('["\\ud800"]', id="half of a pair, escaped"),
        pytest.param(b'["\xff"]', id="no UTF-8"),
    ],
)
def test_whatever_is_wrong_is_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(text, list[str])


def test_a_thousand_brackets_are_the_same_kind_of_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode("[" * 5000, object)
