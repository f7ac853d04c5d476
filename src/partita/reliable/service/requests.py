"""Requests and answers between a caller of a service and the primary of a partition; pure.

A request has the same id in all attempts, so that the primary can recognize a repetition; an
answer is bytes, or a failure that says whether the request is retried.
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
"""The size of a payload and of an answer: the default limit of NATS, less a margin."""
MESSAGE_CHARACTERS_MAX = 2_000
"""The length of the message of a failure."""

RETRIED = (
    InDoubtError,
    NotPrimaryError,
    NotReadableError,
    QuorumLostError,
    StateClosedError,
    StoreBusyError,
    TransactionAbortedError,
)
"""Errors after which a request is sent again; all others are raised to the caller."""


class Request(msgspec.Struct, frozen=True):
    """A request to the primary; `id` is the same in every attempt of one request.

    `state.run(..., idempotency_key=request.id)` therefore does the work exactly once.
    """

    key: Key
    payload: bytes
    id: str


class Envelope(msgspec.Struct, frozen=True):
    """The encoded form of a request."""

    id: str
    key: bytes
    payload: bytes


class RequestFailure(msgspec.Struct, frozen=True):
    """An error of the primary in an answer."""

    code: str
    message: str
    facts: dict[str, str | int | float | bool | None]
    hint: str
    retry: str
    is_tried_again: bool


class RequestAnswer(msgspec.Struct, frozen=True):
    payload: bytes = b""
    failure: RequestFailure | None = None


class RemoteError(PartitaError):
    """An error that the primary raised for a request, with its code, facts and hint."""


encode = msgspec.msgpack.Encoder().encode
decode_answer = msgspec.msgpack.Decoder(RequestAnswer).decode
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode


def decode_request(raw: bytes) -> Request:
    """Decode a request. Raises msgspec.MsgspecError or DamageError if it is malformed."""
    envelope = _decode_envelope(raw)
    return Request(decode_key(envelope.key), envelope.payload, envelope.id)


def checked_key(key: Key) -> bytes:
    """Return the key's bytes, which are the same in every process."""
    encoded = encode_key(key)
    if len(encoded) > limits.KEY_BYTES_MAX:
        raise LimitExceededError(
            "KeyTooLarge",
            f"An encoded key may have at most {limits.KEY_BYTES_MAX} bytes.",
            facts={"bytes": len(encoded), "limit": limits.KEY_BYTES_MAX},
            hint="Use a short key, such as the id of a user, a device or an order.",
        )
    return encoded


def partition_of(key: Key, partitions: int) -> int:
    """Return the partition of a key, which is the same in every process and never changes.

    >>> partition_of("user-17", 8), partition_of(17, 8)
    (0, 7)
    """
    digest = hashlib.blake2b(checked_key(key), digest_size=8).digest()
    return int.from_bytes(digest) % partitions


def checked_payload(payload: object) -> bytes:
    """Return a payload as bytes; raise if it has the wrong type or is too large."""
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise UsageError(
            "InvalidPayload",
            f"The payload of a request must be bytes, not {type(payload).__name__}.",
            hint="Encode it, for example with msgspec.msgpack.encode(...) or text.encode().",
        )
    raw = bytes(payload)
    if len(raw) > PAYLOAD_BYTES_MAX:
        raise LimitExceededError(
            "RequestTooLarge",
            f"The payload of a request may have at most {PAYLOAD_BYTES_MAX} bytes.",
            facts={"bytes": len(raw), "limit": PAYLOAD_BYTES_MAX},
            hint="Send it in parts, or send its address instead.",
        )
    return raw


def answered(payload: object) -> RequestAnswer:
    """Return the answer for the result of handle()."""
    if not isinstance(payload, bytes):
        return failed(
            RemoteError(
                "HandlerFailed",
                f"handle() returned {type(payload).__name__} instead of bytes.",
                hint="Return bytes from handle(), b'' for nothing.",
            )
        )
    if len(payload) > PAYLOAD_BYTES_MAX:
        return failed(
            LimitExceededError(
                "AnswerTooLarge",
                f"An answer may have at most {PAYLOAD_BYTES_MAX} bytes; the work was done.",
                facts={"bytes": len(payload), "limit": PAYLOAD_BYTES_MAX},
                hint="Return less from handle(), or in pages.",
            )
        )
    return RequestAnswer(payload)


def failed(error: Exception) -> RequestAnswer:
    """Return the answer for an error; of a foreign error only its type and text."""
    if not isinstance(error, PartitaError):
        error = RemoteError(
            "HandlerFailed",
            f"handle() raised {type(error).__name__}: {error}",
            hint="Check the traceback in the logging output of the primary.",
        )
    return RequestAnswer(
        failure=RequestFailure(
            error.code,
            error.message[:MESSAGE_CHARACTERS_MAX],
            {name: _plain(value) for name, value in error.facts.items()},
            error.hint[:MESSAGE_CHARACTERS_MAX],
            error.retry.value,
            isinstance(error, RETRIED),
        )
    )


def error_of(failure: RequestFailure) -> RemoteError:
    """Return the error for the caller."""
    error = RemoteError(failure.code, failure.message, facts=failure.facts, hint=failure.hint)
    error.retry = Retry(failure.retry)
    return error


def _plain(value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, str | float | bool):
        return value[:MESSAGE_CHARACTERS_MAX] if isinstance(value, str) else value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    return repr(value)[:MESSAGE_CHARACTERS_MAX]
