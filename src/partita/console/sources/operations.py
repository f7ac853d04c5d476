"""The operations endpoint that the console asks: that of its own process, or a remote one.

The endpoint of the own process is called without HTTP and without a token; a remote one has both.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

from partita.bulk.http_client import HttpSender
from partita.errors import ConfigurationError, UnavailableError
from partita.service.http.request import Request, Response

ANSWER_SECONDS_MAX: Final = 10.0
"""How long a remote endpoint may take for an answer."""

Operations = Callable[[str, str], Awaitable[Response]]
"""Answers a path and a query: /api/v1/now, /api/v1/slow, /api/v1/heat."""


class RemoteOperations:
    """Asks the operations endpoint of a server by HTTP."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ConfigurationError(
                "Configuration",
                "The address of the operations endpoint is not valid.",
                hint="Give --metrics http://HOST:PORT, as `partita serve --metrics-port` prints"
                " it.",
            )
        self._scheme = parts.scheme
        self._token = token
        self._sender = HttpSender(url)

    async def __call__(self, path: str, query: str) -> Response:
        """Ask the endpoint; raises UnavailableError if it does not answer."""
        headers = {"authorization": f"Bearer {self._token}"}
        request = Request("GET", path, query, headers, b"", peer="127.0.0.1", scheme=self._scheme)
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await self._sender.respond(request)
        except TimeoutError as error:
            raise UnavailableError(
                "AnswerLate",
                f"The operations endpoint did not answer within {ANSWER_SECONDS_MAX:g} s.",
                hint="Check the load of the server.",
            ) from error

    async def close(self) -> None:
        await self._sender.close()
