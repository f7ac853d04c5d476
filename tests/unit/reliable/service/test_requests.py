from collections import Counter

import msgspec
import pytest

from partita.errors import (
    ConflictError,
    DamageError,
    InDoubtError,
    InvalidKeyError,
    LimitExceededError,
    LockTimeoutError,
    NotPrimaryError,
    PartitaError,
    Retry,
    StateClosedError,
    UsageError,
)
from partita.keys import Key
from partita.reliable.service.requests import (
    Envelope,
    Request,
    RequestAnswer,
    RequestFailure,
    answered,
    checked_key,
    checked_payload,
    decode_answer,
    decode_request,
    encode,
    error_of,
    failed,
    partition_of,
)


def failure_of(answer: RequestAnswer) -> RequestFailure:
    assert answer.failure is not None
    return answer.failure


@pytest.mark.parametrize(
    ("key", "of_8", "of_100"),
    [("user-17", 0, 44), (17, 7, 95), (b"user-17", 4, 56), ("", 2, 6), (-1, 0, 36)],
)
def test_a_key_stays_in_its_partition_for_ever(key: Key, of_8: int, of_100: int) -> None:
    assert (partition_of(key, 8), partition_of(key, 100)) == (of_8, of_100)


def test_keys_spread_over_all_partitions() -> None:
    found = Counter(partition_of(f"user-{n}", 8) for n in range(4_000))

    assert sorted(found) == list(range(8))
    assert min(found.values()) > 400


@pytest.mark.parametrize("key", ["ada", b"\x00\xff", 7, ("ada", 7)])
def test_a_request_arrives_as_it_was_sent(key: Key) -> None:
    raw = encode(Envelope("id-1", checked_key(key), b"payload"))

    assert decode_request(raw) == Request(key, b"payload", "id-1")


def test_an_invalid_request_is_refused() -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_request(b"GET / HTTP/1.1")
    with pytest.raises(DamageError):
        decode_request(encode(Envelope("id", b"\xff", b"")))


def test_a_key_that_cannot_be_encoded_or_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidKeyError):
        partition_of(float("nan"), 8)
    with pytest.raises(LimitExceededError):
        partition_of("x" * 5_000, 8)


@pytest.mark.parametrize("payload", ["text", None, 7])
def test_a_payload_is_bytes(payload: object) -> None:
    with pytest.raises(UsageError) as caught:
        checked_payload(payload)

    assert caught.value.code == "InvalidPayload"


@pytest.mark.parametrize(
    ("error", "is_tried_again"),
    [
        (NotPrimaryError("NotPrimary", "."), True),
        (StateClosedError("StateClosed", "."), True),
        (InDoubtError("InDoubt", "."), True),
        (LockTimeoutError.of("tx", "users", "ada", 4.0), False),
        (ConflictError("OutOfStock", "."), False),
        (RuntimeError("fell"), False),
    ],
)
def test_only_what_a_new_primary_mends_is_tried_again(
    error: Exception, is_tried_again: bool
) -> None:
    assert failure_of(failed(error)).is_tried_again is is_tried_again


def test_an_error_keeps_its_code_facts_and_worth_on_the_way() -> None:
    sent = ConflictError(
        "OutOfStock", "None left.", facts={"item": "lamp", "left": (1, 2), "n": 2**70}, hint="Wait."
    )
    arrived = error_of(failure_of(decode_answer(encode(failed(sent)))))

    assert isinstance(arrived, PartitaError)
    assert (arrived.code, arrived.message, arrived.hint) == ("OutOfStock", "None left.", "Wait.")
    assert arrived.facts == {"item": "lamp", "left": "(1, 2)", "n": str(2**70)}
    assert arrived.retry is Retry.REREAD


def test_a_foreign_error_shows_its_type_and_text_only() -> None:
    failure = failure_of(failed(KeyError("lamp")))

    assert failure.code == "HandlerFailed"
    assert failure.message.endswith("KeyError: 'lamp'")


def test_only_bytes_are_an_answer() -> None:
    assert answered(b"x") == RequestAnswer(b"x")
    assert failure_of(answered("x")).code == "HandlerFailed"
