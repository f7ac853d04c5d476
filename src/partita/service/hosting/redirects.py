"""Requests of the server itself follow no redirect: it could lead to another host, or to http."""

import urllib.request
from http.client import HTTPMessage
from typing import IO


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error, for `urllib.request.build_opener`."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        """Follow no redirect."""
