"""What travels between a caller of a service and the primary of a partition, as bytes.

Pure. A request keeps its id over all attempts, so that the primary can tell a repetition from
new work; an answer is bytes, or a failure that says whether another attempt may help.
"""

import hashlib

import msgspec

from partita.errors import (
    InDoubtError,
    LimitExceededError,
    NotPrimaryError,
    NotReadableError,
    PartitaError,
    QuorumLostError,
    Retry,
    StateClosedError,
    StoreBusyError,
    TransactionAbortedError,
    UsageError,
)
from partita.keys import Key, decode_key, encode_key
from partita.reliable.values import limits

PAYLOAD_BYTES_MAX = 1_000_000
"""Of what a request carries, and of its answer: the least that a NATS node takes, less a margin."""
MESSAGE_CHARACTERS_MAX = 2_000
"""Of the text of a failure on its way to the caller."""

TRIED_AGAIN = (
    InDoubtError,
    NotPrimaryError,
    NotReadableError,
    QuorumLostError,
    StateClosedError,
    StoreBusyError,
    TransactionAbortedError,
)
"""What passes when a primary was found again; all else is the caller's to decide."""


class Request(msgspec.Struct, frozen=True):
    """What the primary is asked: `id` is the same in every attempt of one request.

    `state.run(..., idempotency_key=request.id)` therefore does the work exactly once.
    """

    key: Key
    payload: bytes
    id: str


class Envelope(msgspec.Struct, frozen=True):
    """A request as bytes."""

    id: str
    key: bytes
    payload: bytes


class Failure(msgspec.Struct, frozen=True):
    """An error on its way to the caller."""

    code: str
    message: str
    facts: dict[str, str | int | float | bool | None]
    hint: str
    retry: str
    is_tried_again: bool


class Answer(msgspec.Struct, frozen=True):
    payload: bytes = b""
    failure: Failure | None = None


class RemoteError(PartitaError):
    """The primary refused a request, or failed at it; `code`, facts and hint are its own."""


encode = msgspec.msgpack.Encoder().encode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode


def decode_request(raw: bytes) -> Request:
    """Read a request. Raises msgspec.MsgspecError and DamageError for what is none."""
    envelope = _decode_envelope(raw)
    return Request(decode_key(envelope.key), envelope.payload, envelope.id)


def checked_key(key: Key) -> bytes:
    """Return the key's bytes, which are the same in every process."""
    encoded = encode_key(key)
    if len(encoded) > limits.KEY_BYTES_MAX:
        raise LimitExceededError(
            "KeyTooLarge",
            f"An encoded key has {limits.KEY_BYTES_MAX} bytes at most.",
            facts={"bytes": len(encoded), "limit": limits.KEY_BYTES_MAX},
            hint="Choose what names the thing: a user, a device, an order.",
        )
    return encoded


def partition_of(key: Key, partitions: int) -> int:
    """Return the partition of a key: the same in every process, on every machine, for ever.

    >>> partition_of("user-17", 8), partition_of(17, 8)
    (0, 7)
    """
    digest = hashlib.blake2b(checked_key(key), digest_size=8).digest()
    return int.from_bytes(digest) % partitions


def checked_payload(payload: object) -> bytes:
    """Refuse what no message can carry."""
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise UsageError(
            "InvalidPayload",
            f"A request carries bytes, not {type(payload).__name__}.",
            hint="Encode it: msgspec.msgpack.encode(...), or text.encode().",
        )
    raw = bytes(payload)
    if len(raw) > PAYLOAD_BYTES_MAX:
        raise LimitExceededError(
            "RequestTooLarge",
            f"A request carries {PAYLOAD_BYTES_MAX} bytes at most.",
            facts={"bytes": len(raw), "limit": PAYLOAD_BYTES_MAX},
            hint="Send it in parts, or send where it lies instead.",
        )
    return raw


def answered(payload: object) -> Answer:
    """Turn what was returned for a request into an answer."""
    if not isinstance(payload, bytes):
        return failed(
            RemoteError(
                "HandlerFailed",
                f"What handles the request returned {type(payload).__name__} instead of bytes.",
                hint="Let handle() return bytes, b'' for nothing.",
            )
        )
    if len(payload) > PAYLOAD_BYTES_MAX:
        return failed(
            LimitExceededError(
                "AnswerTooLarge",
                f"An answer carries {PAYLOAD_BYTES_MAX} bytes at most; the work was done.",
                facts={"bytes": len(payload), "limit": PAYLOAD_BYTES_MAX},
                hint="Answer less, or in pages.",
            )
        )
    return Answer(payload)


def failed(error: Exception) -> Answer:
    """Turn an error into an answer; one that is not Partita's shows its type and text only."""
    if not isinstance(error, PartitaError):
        error = RemoteError(
            "HandlerFailed",
            f"What handles the request raised {type(error).__name__}: {error}",
            hint="See the traceback in the log of the process that is primary.",
        )
    return Answer(
        failure=Failure(
            error.code,
            error.message[:MESSAGE_CHARACTERS_MAX],
            {name: _plain(value) for name, value in error.facts.items()},
            error.hint[:MESSAGE_CHARACTERS_MAX],
            error.retry.value,
            isinstance(error, TRIED_AGAIN),
        )
    )


def error_of(failure: Failure) -> RemoteError:
    """Make the error that the caller sees."""
    error = RemoteError(failure.code, failure.message, facts=failure.facts, hint=failure.hint)
    error.retry = Retry(failure.retry)
    return error


def _plain(value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, str | float | bool):
        return value[:MESSAGE_CHARACTERS_MAX] if isinstance(value, str) else value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    return repr(value)[:MESSAGE_CHARACTERS_MAX]
