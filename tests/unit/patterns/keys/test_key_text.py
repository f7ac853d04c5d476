import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from partita.patterns.keys.key_text import ceiling, is_legal, just_above, successor

NEIGHBOURS = (
    ' !"#$./09>?@[\\]A_az}~\x00\x1f\x7f\x9f\xa0é\ud7ff\ud800\udfff\ue000\uffff\U00010000\U0010ffff'
)
LEGAL = "".join(filter(is_legal, NEIGHBOURS))

neighbours = st.text(NEIGHBOURS, max_size=4)
legal_texts = st.text(LEGAL, max_size=4) | st.text(max_size=5).filter(is_legal)
padding = st.sampled_from(["", "x" * 510, "é" * 509, "\U00010000" * 254])


@given(padding, st.text(LEGAL, max_size=3), padding, legal_texts)
def test_keys_below_the_successor_of_a_prefix_begin_with_it_or_lie_before_it(
    before: str, prefix: str, more: str, key: str
) -> None:
    prefix, key = before + prefix, before + more + key
    assume(is_legal(prefix) and is_legal(key))
    found = successor(prefix)

    assert found is None or (is_legal(found) and found > prefix)
    assert (found is None or key < found) == (key.startswith(prefix) or key < prefix)


@given(padding, neighbours, padding, legal_texts)
def test_the_ceiling_of_any_text_divides_keys_as_the_text_does(
    before: str, text: str, more: str, key: str
) -> None:
    text, key = before + text, before + more + key
    assume(is_legal(key))
    found = ceiling(text)

    assert found is None or (is_legal(found) and found >= text)
    assert (key >= text) == (found is not None and key >= found)


@given(st.text(LEGAL, max_size=4), legal_texts)
def test_nothing_lies_between_a_key_and_what_is_just_above(key: str, other: str) -> None:
    found = just_above(key)

    assert found is not None
    assert (other > key) == (other >= found)


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("emp_", "emp`"),
        ("v1.", "v10"),
        ('say"', "say$"),
        ("a>", "a@"),
        ("a[", "a]"),
        ("a~", "a\xa0"),
        ("\ud7ff", "\ue000"),
        ("a\U0010ffff", "b"),
        ("\U0010ffff\U0010ffff", None),
        ("", None),
        ("a" * 511 + "\uffff", "a" * 510 + "b"),
    ],
)
def test_a_successor_skips_what_no_key_holds(prefix: str, expected: str | None) -> None:
    assert successor(prefix) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b", "a0"),
        ("a\ud800", "a\ue000"),
        ("a" * 512, "a" * 512),
        ("a" * 513, "a" * 511 + "b"),
        ("a" * 511 + "\U00010000", "a" * 510 + "b"),
        ("a" * 513 + "/", "a" * 511 + "b"),
        ("\U0010ffff" * 257, None),
    ],
)
def test_a_ceiling_is_the_least_key_that_there_can_be(text: str, expected: str | None) -> None:
    assert ceiling(text) == expected


def test_nothing_can_be_put_behind_the_longest_keys() -> None:
    assert just_above("a" * 512) == "a" * 511 + "b"
    assert just_above("a" * 511) == "a" * 511 + " "
