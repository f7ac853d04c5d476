"""One-time tickets: a browser downloads by a link, which cannot carry the token in a header.

A ticket is valid once and for half a minute, and names one download.
"""

import base64
from collections.abc import Awaitable, Callable
from typing import Final

from partita.errors import NotAuthorizedError
from partita.service.http.request import Response
from partita.ticks import Clock

TICKET_SECONDS: Final = 30.0
TICKETS_MAX: Final = 256

Open = Callable[[], Awaitable[Response]]


class Tickets:
    """The tickets that were issued and not used."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._issued: dict[str, tuple[float, Open]] = {}

    def issue(self, download: Open) -> str:
        """Return a ticket; `download` makes the answer when it is used."""
        now = self._clock.monotonic()
        self._issued = {key: each for key, each in self._issued.items() if each[0] > now}
        while len(self._issued) >= TICKETS_MAX:
            del self._issued[next(iter(self._issued))]
        ticket = base64.urlsafe_b64encode(self._clock.random_bytes(32)).rstrip(b"=").decode()
        self._issued[ticket] = now + TICKET_SECONDS, download
        return ticket

    def take(self, ticket: str) -> Open:
        """Use a ticket; NotAuthorizedError if it is unknown, used or too old."""
        until, download = self._issued.pop(ticket, (0.0, None))
        if download is None or self._clock.monotonic() >= until:
            raise NotAuthorizedError(
                "ConsoleTicketInvalid",
                "The link of this download was already used, or is too old.",
                hint="Start the download from the page again.",
            )
        return download
