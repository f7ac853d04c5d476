"""Where a listing goes on, and which names hide behind a prefix. Pure.

A marker names the first item of the next page, not the last of this one: it stays right when
blobs come and go. Names are in the order of their UTF-8 bytes.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from partita.blobs.rules.names import LIVE
from partita.errors import InvalidRequestError
from partita.keys import prefix_range
from partita.refusals import invalid_parameter

Place = tuple[str, int]
"""A name and the time of a snapshot: where a page begins."""

_decoder: msgspec.msgpack.Decoder[Place] = msgspec.msgpack.Decoder(Place)


def marker_of(place: Place) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(place)).decode()


def place_of(marker: str) -> Place:
    """Read a marker; an empty one begins at the beginning."""
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
    """Return what a name is listed as when it goes on behind a delimiter, else None."""
    if not delimiter:
        return None
    end = name.find(delimiter, len(prefix))
    return None if end < 0 else name[: end + len(delimiter)]


def end_of(prefix: str) -> str | None:
    """Return the first text behind all that start with a prefix (None: there is none)."""
    return prefix_range(prefix)[1]
