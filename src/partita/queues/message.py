"""A message, its identifier and its receipt. Pure.

An identifier is a GUID of the message's place in the store and a nonce, so that it needs no
index. A receipt is the time of the last claim of a message and a secret; a claim, an update or a
delete invalidates all earlier receipts. A text is stored with a checksum:

    text in UTF-8 | CRC-32C, 4 bytes big-endian, begun with the low 32 bits of the nonce

Texts of format 1 are text in the database, not bytes, and have no checksum.
"""

import base64
import binascii
import re
import uuid
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from partita.errors import ChecksumError, LimitExceededError
from partita.queues import limits
from partita.refusals import body_too_large
from partita.ticks import TICKS_PER_SECOND

NONCE_BYTES = 8
SECRET_BYTES = 16
RECEIPT_BYTES_MIN = 16
"""The minimal bytes of a receipt: those of Partita have 24, those of Azure 20 to 30."""

_GUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_LOW_32_BITS = 0xFFFFFFFF
_VERSION = 0x4000
_VERSION_BITS = 0xF000
_VARIANT = 1 << 63
_VARIANT_BITS = 3 << 62


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message after an operation. Times are ticks."""

    id: str
    text: str
    inserted_at: int
    expires_at: int
    visible_at: int
    """Hidden until then."""
    dequeue_count: int
    receipt: str


class MessagePlace(msgspec.Struct, frozen=True, gc=False):
    """The content of an identifier: the place of the message, and its nonce."""

    sequence: int
    nonce: int


class StoredMessage(NamedTuple):
    """A message as a store keeps it."""

    sequence: int
    nonce: int
    text: str | None
    """None if it is damaged."""
    inserted_at: int
    expires_at: int
    visible_at: int
    dequeue_count: int
    receipt: bytes

    def message(self) -> Message:
        """Return what callers get; raise ChecksumError if the text is damaged."""
        place = MessagePlace(self.sequence, self.nonce)
        if self.text is None:
            raise message_damaged(place)
        return Message(
            print_id(place),
            self.text,
            self.inserted_at,
            self.expires_at,
            self.visible_at,
            self.dequeue_count,
            print_receipt(self.receipt),
        )


def nonce_of(chance: bytes) -> int:
    """Return a nonce from random bytes: the first half of a GUID of version 4."""
    return (int.from_bytes(chance, "big") & ~_VERSION_BITS | _VERSION) - _VARIANT


def pack_text(nonce: int, text: str) -> bytes:
    """Return the stored form of a text."""
    raw = text.encode()
    return raw + crc32c(raw, nonce & _LOW_32_BITS).to_bytes(4)


def unpack_text(nonce: int, stored: str | bytes) -> str | None:
    """Return the text of a stored form; None if it is damaged."""
    if isinstance(stored, str):
        return stored
    raw = stored[:-4]
    if crc32c(raw, nonce & _LOW_32_BITS).to_bytes(4) != stored[-4:]:
        return None
    return raw.decode()


def message_damaged(place: MessagePlace) -> ChecksumError:
    return ChecksumError(
        "MessageDamaged",
        "The stored message is damaged: its text does not match its checksum.",
        facts={"message": print_id(place)},
        hint="Update the message with its text, or delete it.",
    )


def print_id(place: MessagePlace) -> str:
    """Return the identifier of a message.

    >>> print_id(MessagePlace(7, nonce_of(bytes(8))))
    '00000000-0000-4000-8000-000000000007'
    """
    whole = (place.nonce + _VARIANT) << 64 | _VARIANT | place.sequence
    return str(uuid.UUID(int=whole))


def find_place(message_id: str) -> MessagePlace | None:
    """Parse an identifier; None if it is invalid."""
    text = message_id.lower()
    if not _GUID.fullmatch(text):
        return None
    front, back = divmod(int(text.replace("-", ""), 16), 1 << 64)
    return MessagePlace(back & ~_VARIANT_BITS, front - _VARIANT)


def new_receipt(stamp: int, secret: bytes) -> bytes:
    return stamp.to_bytes(8, "big") + secret


def print_receipt(receipt: bytes) -> str:
    return base64.b64encode(receipt).decode()


def find_receipt(text: str) -> bytes | None:
    """Parse a receipt; None if it is malformed. One of another server never matches."""
    try:
        receipt = base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError):
        return None
    return receipt if len(receipt) >= RECEIPT_BYTES_MIN else None


def expiry_of(now: int, lifetime_seconds: int | None) -> int:
    """Return the expiry of a message with this lifetime; None: it does not expire."""
    if lifetime_seconds is None:
        return limits.NEVER
    return min(now + lifetime_seconds * TICKS_PER_SECOND, limits.NEVER)


def check_text(text: str) -> str:
    """Return the text of a message, or raise LimitExceededError."""
    # Counting bytes needs a copy; a text of few characters cannot be too long.
    if len(text) * 4 > limits.MESSAGE_BYTES_MAX:
        size = len(text.encode())
        if size > limits.MESSAGE_BYTES_MAX:
            raise message_too_large()
    return text


def message_too_large() -> LimitExceededError:
    longest = limits.MESSAGE_BYTES_MAX
    return body_too_large(longest, f"Send at most {longest} bytes of UTF-8 in a message.")
