"""Markers and prefixes of listings. Pure.

A marker names the first item of the next page, not the last of this one: it stays valid when
blobs are added or removed. Names are in the order of their UTF-8 bytes.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from partita.blobs.rules.names import LIVE
from partita.errors import InvalidRequestError
from partita.keys import prefix_range
from partita.refusals import invalid_parameter

Place = tuple[str, int]
"""The start of a page: a name and the time of a snapshot."""

_decoder: msgspec.msgpack.Decoder[Place] = msgspec.msgpack.Decoder(Place)


def marker_of(place: Place) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(place)).decode()


def place_of(marker: str) -> Place:
    """Parse a marker; an empty one is the first page."""
    if not marker:
        return "", 0
    try:
        name, snapshot = _decoder.decode(urlsafe_b64decode(marker))
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise _bad_marker(marker) from None
    if not 0 <= snapshot <= LIVE:
        raise _bad_marker(marker)
    return name, snapshot


def _bad_marker(marker: str) -> InvalidRequestError:
    return invalid_parameter("marker", marker, "Send the NextMarker of the previous page, or none.")


def shared_prefix(name: str, prefix: str, delimiter: str) -> str | None:
    """Return the prefix that stands for a name with a delimiter; None without one."""
    if not delimiter:
        return None
    end = name.find(delimiter, len(prefix))
    return None if end < 0 else name[: end + len(delimiter)]


def end_of(prefix: str) -> str | None:
    """Return the first text after all texts with a prefix (None: there is none)."""
    return prefix_range(prefix)[1]
