"""Markers and prefixes of listings. Pure.

A marker names the first item of the next page, not the last of this one: it stays valid when
blobs are added or removed. Names are in the order of their UTF-8 bytes.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Set as AbstractSet

import msgspec

from partita.blobs.rules.model import Blob, Include
from partita.blobs.rules.names import LIVE
from partita.blobs.rules.stored_format import (
    DELETED,
    DELETED_SNAPSHOT,
    DELETED_VERSION,
    PLAIN,
    VERSION,
    StoredBlob,
    blob_of,
)
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


FoundPlace = tuple[int, str]
"""The start of a page of a search: the number of a container and a name."""

_found_decoder: msgspec.msgpack.Decoder[FoundPlace] = msgspec.msgpack.Decoder(FoundPlace)


def found_marker_of(place: FoundPlace) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(place)).decode()


def found_place_of(marker: str) -> FoundPlace:
    """Parse a marker of a search; an empty one is the first page."""
    if not marker:
        return 0, ""
    try:
        container, name = _found_decoder.decode(urlsafe_b64decode(marker))
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise _bad_marker(marker) from None
    if not 0 <= container <= LIVE:
        raise _bad_marker(marker)
    return container, name


def _bad_marker(marker: str) -> InvalidRequestError:
    return invalid_parameter("marker", marker, "Send the NextMarker of the previous page, or none.")


class Shown(msgspec.Struct, frozen=True):
    """The states of the rows that a listing shows besides the blobs themselves."""

    always: tuple[int, ...] = ()
    if_last: tuple[int, ...] = ()
    """Shown if no later version of the blob exists, current or deleted."""

    @property
    def asks_for_last(self) -> bool:
        """Return whether the listing must know which rows are the last of their blob."""
        return bool(self.if_last) or DELETED in self.always


def states_shown(include: AbstractSet[Include]) -> Shown:
    """Return what a listing shows.

    >>> states_shown({"snapshots"}).always == (PLAIN,)
    True
    """
    has_snapshots, has_versions = "snapshots" in include, "versions" in include
    always = [PLAIN] * has_snapshots + [VERSION] * has_versions
    if_last: list[int] = []
    if "deleted" in include:
        (always if has_snapshots else if_last).append(DELETED)
        always += [DELETED_SNAPSHOT] * has_snapshots + [DELETED_VERSION] * has_versions
    if "deletedwithversions" in include and not has_versions:
        if_last.append(VERSION)
    return Shown(tuple(always), tuple(if_last))


def shown_blob(place: Place, stored: StoredBlob, now: int, *, is_last: bool) -> Blob:
    """Return an item of a listing; `is_last` is known where `Shown.asks_for_last`."""
    blob = blob_of(*place, stored, now)
    if not is_last or stored.history is None:
        return blob
    if stored.history.was_blob:
        return msgspec.structs.replace(blob, snapshot=None)
    return msgspec.structs.replace(blob, has_only_versions=True)


def shared_prefix(name: str, prefix: str, delimiter: str) -> str | None:
    """Return the prefix that stands for a name with a delimiter; None without one."""
    if not delimiter:
        return None
    end = name.find(delimiter, len(prefix))
    return None if end < 0 else name[: end + len(delimiter)]


def end_of(prefix: str) -> str | None:
    """Return the first text after all texts with a prefix (None: there is none)."""
    return prefix_range(prefix)[1]
