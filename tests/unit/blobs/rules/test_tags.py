import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.blobs.rules.tags import check_tags, matches
from partita.errors import PartitaError

TAGS = {"tag1": "first", "Project": "x/y", "n": "10"}


@pytest.mark.parametrize(
    ("expression", "is_met"),
    [
        ("\"tag1\" = 'first'", True),
        ("tag1='first'", True),
        ("\"tag1\" = 'other'", False),
        ("\"Tag1\" = 'first'", False),
        ("\"missing\" = ''", False),
        ("\"missing\" <> 'x'", True),
        ("\"tag1\" <> 'first'", False),
        ("\"n\" > '09' AND \"n\" < '11'", True),
        ("\"n\" >= '10' and \"n\" <= '10'", True),
        ("\"tag1\" = 'other' OR \"n\" = '10'", True),
        ("\"tag1\" = 'first' AND \"n\" = '1' OR \"Project\" = 'x/y'", True),
        ("\"tag1\" = 'first' AND (\"n\" = '1' OR \"Project\" = 'no')", False),
        ("NOT \"tag1\" = 'other'", True),
        ("not not (\"tag1\" = 'first')", True),
    ],
)
def test_an_expression_is_judged_on_the_tags(expression: str, is_met: bool) -> None:
    assert matches(expression, TAGS) is is_met


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "tag1",
        "tag1 =",
        "= 'x'",
        "tag1 = x",
        "(tag1 = 'x'",
        "tag1 = 'x' AND",
        "tag1 ! 'x'",
        "tag1 = 'x' tag1 = 'x'",
        "(" * 100 + "tag1 = 'x'" + ")" * 100,
        "x" * 9000,
        "'a' = 'b'",
    ],
)
def test_an_invalid_expression_is_refused(expression: str) -> None:
    with pytest.raises(PartitaError) as refused:
        matches(expression, TAGS)

    assert refused.value.code == "InvalidHeaderValue"


@given(st.text(st.sampled_from("ab'\"=<>() ANDORNT"), max_size=40))
def test_no_text_does_worse_than_be_refused(expression: str) -> None:
    try:
        matches(expression, {"a": "b"})
    except PartitaError as error:
        assert error.code == "InvalidHeaderValue"  # noqa: PT017 - both may happen


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        ({f"t{n}": "" for n in range(11)}, "TagsTooLarge"),
        ({"": "x"}, "EmptyTagName"),
        ({"k" * 129: ""}, "InvalidTag"),
        ({"k": "v" * 257}, "InvalidTag"),
        ({"k!": ""}, "InvalidTag"),
        ({"k": "\u00e9"}, "InvalidTag"),
    ],
)
def test_tags_have_rules(tags: dict[str, str], code: str) -> None:
    with pytest.raises(PartitaError) as refused:
        check_tags(tags)

    assert refused.value.code == code


def test_good_tags_pass() -> None:
    tags = {"k" * 128: "v" * 256, "a b+c-d.e/f:g=h_i": ""}

    assert check_tags(tags) == tags
