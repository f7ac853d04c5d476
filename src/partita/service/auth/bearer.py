"""Bearer tokens: who sent a request, and the refusals of tokens. Pure.

A refusal has the form that the version of the client understands: since 2020-12-06 a challenge,
from which clients read the tenant to get a token from. Tokens are checked in `tokens`, which needs
an extra; a server without a token issuer refuses all.
"""

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from partita.addresses import is_loopback
from partita.errors import NotAuthorizedError
from partita.service.auth.roles import NOTHING, Rights
from partita.service.auth.shared_key import authentication_failed
from partita.service.http.request import Request

CHALLENGE_VERSION_MIN = "2020-12-06"
"""The first API version whose clients read a challenge."""
AUTHORIZATION_URI = "https://login.microsoftonline.com/common/oauth2/authorize"
AUDIENCE = "https://storage.azure.com"
"""The audience that Azure's clients ask tokens for."""
NO_CHALLENGE = f"Bearer authorization_uri={AUTHORIZATION_URI} resource_id={AUDIENCE}"
"""The challenge of a server without an issuer."""
ROLES_CLAIM = "roles"
SKEW_SECONDS, SKEW_SECONDS_MAX = 300, 3600
"""How far the clock of the issuer may differ by default, and the most that can be set."""

_SETTING = "credential"


class Identity(msgspec.Struct, frozen=True):
    """The owner of a token: the identifiers of the object and of its tenant."""

    oid: str
    tid: str


class Bearer(msgspec.Struct, frozen=True):
    """What an accepted token permits."""

    identity: Identity
    rights: Mapping[str, Rights]
    """By letter of the service; a missing one permits nothing."""

    def rights_in(self, service: str) -> Rights:
        return self.rights.get(service, NOTHING)


class TokenIssuer(Protocol):
    """The interface of a token issuer to the request path."""

    challenge: str
    """The value of WWW-Authenticate in the answer to a request without a valid token."""
    is_development: bool
    """Whether tokens are accepted whose issuer is unknown."""

    async def accept(self, token: str, account: str, service: str, now: int) -> Bearer:
        """Return what a token permits in an account; `service` is the name of the service.

        Raises TokenRefusedError, or UnavailableError if the keys of the issuer cannot be read.
        """
        ...


class TokenRefusedError(Exception):
    """A token is not accepted; the text is the reason, for the log."""


def challenge(
    request: Request,
    issuer: TokenIssuer | None = None,
    reason: str = "Bearer tokens are not accepted: use an account key or a SAS, or start the"
    " server with --oauth-issuer.",
) -> NotAuthorizedError:
    """Return the refusal of an `Authorization: Bearer` header.

    If the facts contain `www_authenticate`, the answer is a 401 with that header.
    """
    if request.headers.get("x-ms-version", "") < CHALLENGE_VERSION_MIN:
        return authentication_failed(hint=reason, setting=_SETTING)
    return NotAuthorizedError(
        "InvalidAuthenticationInfo",
        "Server failed to authenticate the request. Please refer to the information in the"
        " www-authenticate header.",
        facts={"www_authenticate": NO_CHALLENGE if issuer is None else issuer.challenge},
        hint=reason,
        setting=_SETTING,
    )


def check_transport(request: Request, issuer: TokenIssuer) -> None:
    """Raise if a token could have been read on its way, or comes from elsewhere in development."""
    is_local = is_loopback(request.peer)
    if issuer.is_development and not (is_local and request.scheme == "https"):
        raise TokenRefusedError(
            "--oauth development accepts tokens over https from this machine only."
        )
    if request.scheme != "https" and not is_local:
        raise TokenRefusedError(
            "A bearer token was sent over http: start the server with --tls-cert and --tls-key."
        )


def is_fit_for_keys(url: str) -> bool:
    """Return whether keys may be read from a URL: by https, or by http from this machine.

    >>> is_fit_for_keys("http://login.test/keys")
    False
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return host is not None and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    )
