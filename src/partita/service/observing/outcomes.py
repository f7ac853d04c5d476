"""The outcomes of requests, as the metrics of Storage Analytics count them. Pure.

Eight kinds for requests by key, anonymous ones and those by SAS make 24. The kinds follow Azure's
list of logged status messages.
"""

from typing import Final

KINDS: Final = (
    "Success",
    "ThrottlingError",
    "ClientTimeoutError",
    "ServerTimeoutError",
    "ClientOtherError",
    "ServerOtherError",
    "AuthorizationError",
    "NetworkError",
)
OUTCOMES: Final = tuple(prefix + kind for prefix in ("", "Anonymous", "SAS") for kind in KINDS)
"""By number: the offset of the credentials plus that of the kind."""

(
    SUCCESS,
    THROTTLING,
    CLIENT_TIMEOUT,
    SERVER_TIMEOUT,
    CLIENT_OTHER,
    SERVER_OTHER,
    AUTHORIZATION,
    NETWORK,
) = range(len(KINDS))


def kind_of(status: int, code: str, *, is_lost: bool = False) -> int:
    """Return the kind of an outcome; `code` is that of the error, also inside a batch."""
    if is_lost or code == "ClientGone":
        return NETWORK
    if code == "ServerBusy":
        return THROTTLING
    if code == "OperationTimedOut":
        return SERVER_TIMEOUT if status >= 500 else CLIENT_TIMEOUT
    if status in (401, 403):
        return AUTHORIZATION
    if status >= 500:
        return SERVER_OTHER
    return CLIENT_OTHER if status >= 300 or code else SUCCESS
