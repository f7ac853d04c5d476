"""What an operation takes on the wire is never reckoned too small."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from partita.patterns.protocol.calls import RowOperation, Verb
from partita.patterns.protocol.values import Int32, Row, RowKey, Value
from partita.patterns.protocol.wire_size import ENVELOPE_BYTES, wire_bytes
from support.fake_world import EPOCH
from support.sdk_requests import sent_for


def a_large_operation(row: str, length: int) -> RowOperation:
    properties: dict[str, Value] = {f"P{number}": "x" * length for number in range(8)}
    return RowOperation(Verb.INSERT, Row(RowKey("Sales", row), properties))


def sent_by_the_sdk(operations: list[RowOperation]) -> int:
    account = "a" * 24
    sent = sent_for(f"https://{account}.table.core.windows.net", "t" * 63, account, operations)
    return len(sent.data)


KEY_TEXT = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\#?"),
    min_size=1,
    max_size=20,
)
VALUES: st.SearchStrategy[Value] = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    st.binary(max_size=50),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1).map(Int32),
    st.floats(),
    st.integers(-(10**10), 10**11).map(lambda seconds: EPOCH + timedelta(seconds=seconds)),
    st.uuids(),
)
NAMES = st.text(st.sampled_from("abcXYZ_éλ"), min_size=1, max_size=12)


@settings(max_examples=50)
@given(
    partition=KEY_TEXT,
    rows=st.lists(KEY_TEXT, min_size=1, max_size=6, unique=True),
    verbs=st.lists(st.sampled_from(Verb), min_size=6, max_size=6),
    properties=st.dictionaries(NAMES, VALUES, max_size=8),
)
def test_the_official_client_never_sends_more_than_was_reckoned(
    partition: str, rows: list[str], verbs: list[Verb], properties: dict[str, Value]
) -> None:
    operations = [
        RowOperation(verb, Row(RowKey(partition, row), properties))
        for row, verb in zip(rows, verbs, strict=False)
    ]

    sent = sent_by_the_sdk(operations)

    assert sent <= ENVELOPE_BYTES + sum(map(wire_bytes, operations))


def test_the_reckoning_is_close_for_large_entities() -> None:
    operations = [a_large_operation(f"{row}", 30_000) for row in range(10)]

    reckoned = ENVELOPE_BYTES + sum(map(wire_bytes, operations))

    assert sent_by_the_sdk(operations) >= 0.98 * reckoned


def test_every_type_of_value_is_reckoned() -> None:
    values: dict[str, Value] = {
        "B": True,
        "I": 2**63 - 1,
        "F": -1.7976931348623157e308,
        "D": datetime(9999, 12, 31, tzinfo=UTC),
        "U": UUID(int=2**128 - 1),
        "X": bytes(100),
        "S": "\x01\U0001f600",
    }
    operations = [RowOperation(Verb.INSERT, Row(RowKey("'é'", "%"), values))]

    assert sent_by_the_sdk(operations) <= ENVELOPE_BYTES + wire_bytes(operations[0])
