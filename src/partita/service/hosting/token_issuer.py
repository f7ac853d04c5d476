"""The token issuer of a server: its keys, read from a file or a URL and kept, and checked tokens.

Keys are read again once an hour, and for a token with an unknown `kid`, but at most once in
`READ_SECONDS_MIN`: a flood of invented tokens causes no flood of requests. While the issuer cannot
be reached, the keys that were read last are used for `KEPT_SECONDS_MAX`.
"""

import asyncio
import hashlib
import logging
import urllib.request
from collections import OrderedDict
from http.client import HTTPException
from pathlib import Path
from typing import IO

import jwt
import msgspec

from partita.errors import ConfigurationError, UnavailableError
from partita.service.auth import tokens
from partita.service.auth.bearer import (
    NO_CHALLENGE,
    SKEW_SECONDS,
    Bearer,
    TokenRefusedError,
    is_fit_for_keys,
)
from partita.service.auth.tokens import Checked, TokenRules
from partita.service.hosting.redirects import NoRedirects
from partita.ticks import TICKS_PER_SECOND, Clock

READ_SECONDS_MIN = 60.0
"""The shortest time between two attempts to read the keys."""
FRESH_SECONDS_MAX = 3600.0
"""After this time the keys are read again: a withdrawn key is not accepted for longer."""
KEPT_SECONDS_MAX = 86_400.0
"""How long keys are used if the issuer cannot be reached."""
READ_TIMEOUT_SECONDS = 10.0
DOCUMENT_BYTES_MAX = 512 * 1024
"""Of a key set, and of the description of an issuer."""
TOKENS_KEPT_MAX = 1024
"""How many checked tokens are kept: a client sends the same token for an hour."""
WELL_KNOWN = "/.well-known/openid-configuration"

logger = logging.getLogger("partita.oauth")


class Issuer:
    """Checks tokens of one issuer. `source` is the path or URL of its keys; None: ask the issuer.

    >>> from partita.clock import SystemClock
    >>> issuer = Issuer(TokenRules("https://login.test"), Path("keys.json"), SystemClock())
    >>> issuer.challenge
    'Bearer authorization_uri=https://login.test/oauth2/authorize resource_id=https://storage.azure.com'
    """

    is_development = False

    def __init__(self, rules: TokenRules, source: Path | str | None, clock: Clock) -> None:
        self.challenge = rules.challenge
        self._rules = rules
        self._source = source
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at: float | None = None
        """When the keys were read last; None: never."""
        self._tried_at: float | None = None
        self._reading: asyncio.Task[None] | None = None
        self._checked: OrderedDict[bytes, Checked] = OrderedDict()
        """By the digest of the token; it is emptied when the keys change."""

    async def accept(self, token: str, account: str, _service: str, now: int) -> Bearer:
        checked = await self._check(token)
        checked.check_times(now / TICKS_PER_SECOND, self._rules.skew_seconds)
        return checked.bearer(self._rules, account)

    async def _check(self, token: str) -> Checked:
        if self._is_older_than(FRESH_SECONDS_MAX):
            await self._read_again()
            if self._is_older_than(KEPT_SECONDS_MAX):
                raise _keys_unknown()
        digest = hashlib.sha256(token.encode()).digest()
        checked = self._checked.get(digest)
        if checked is None:
            key = await self._key_of(tokens.key_id_of(token))
            checked = tokens.check_token(token, key, self._rules)
            self._checked[digest] = checked
            if len(self._checked) > TOKENS_KEPT_MAX:
                self._checked.popitem(last=False)
        return checked

    async def _key_of(self, kid: str) -> jwt.PyJWK:
        if kid not in self._keys:
            await self._read_again()
        key = self._keys.get(kid)
        if key is None:
            raise TokenRefusedError("The token is signed with an unknown key.")
        return key

    def _is_older_than(self, seconds: float) -> bool:
        return self._read_at is None or self._clock.monotonic() - self._read_at > seconds

    async def _read_again(self) -> None:
        """Read the keys, unless that was tried a short time ago; concurrent calls share a read."""
        if self._reading is None:
            now = self._clock.monotonic()
            if self._tried_at is not None and now - self._tried_at < READ_SECONDS_MIN:
                return
            self._tried_at = now
            self._reading = asyncio.create_task(self._read())
        # A client that disconnects must not end the read that others wait for.
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        try:
            await self.read()
        except ConfigurationError as error:
            logger.warning("%s %s %s", error.message, error.facts.get("reason", ""), error.hint)
        finally:
            self._reading = None

    async def read(self) -> None:
        """Read the keys now. Raises ConfigurationError if they cannot be read."""
        try:
            keys = tokens.parse_keys(await asyncio.to_thread(self._document))
        except (OSError, ValueError, HTTPException) as error:
            raise ConfigurationError(
                "Configuration",
                "The signing keys of the token issuer cannot be read.",
                facts={"source": str(self._source or self._rules.issuer), "reason": str(error)},
                hint="Check --oauth-jwks, and that the server reaches the issuer.",
            ) from error
        if keys.keys() != self._keys.keys() or any(
            keys[kid].key != self._keys[kid].key for kid in keys
        ):
            self._checked.clear()
        self._keys, self._read_at = keys, self._clock.monotonic()

    def _document(self) -> bytes:
        match self._source:
            case Path():
                with self._source.open("rb") as file:
                    return _bounded(file)
            case str():
                return _fetched(self._source)
            case None:
                return _fetched(self._keys_url())

    def _keys_url(self) -> str:
        """Return the address of the keys, as the issuer describes itself."""
        found = msgspec.json.decode(_fetched(self._rules.issuer.rstrip("/") + WELL_KNOWN))
        url = found.get("jwks_uri") if isinstance(found, dict) else None
        if not isinstance(url, str) or found.get("issuer") != self._rules.issuer:
            raise ValueError("the issuer describes itself as another one, or without jwks_uri")
        return url


class DevelopmentIssuer:
    """Accepts tokens of any issuer for everything; signatures are not verified.

    `bearer.check_transport` limits them to https and to this machine.
    """

    is_development = True
    challenge = NO_CHALLENGE

    async def accept(self, token: str, account: str, service: str, now: int) -> Bearer:
        checked = tokens.check_unsigned(token, tokens.development_audiences(account, service))
        checked.check_times(now / TICKS_PER_SECOND, SKEW_SECONDS)
        return tokens.development_bearer(checked.identity)


def _fetched(url: str) -> bytes:
    if not is_fit_for_keys(url):
        raise ValueError("keys are read by https, or by http from this machine")
    with urllib.request.build_opener(NoRedirects).open(url, timeout=READ_TIMEOUT_SECONDS) as found:
        return _bounded(found)


def _bounded(source: IO[bytes]) -> bytes:
    content = source.read(DOCUMENT_BYTES_MAX + 1)
    if len(content) > DOCUMENT_BYTES_MAX:
        msg = f"longer than {DOCUMENT_BYTES_MAX} bytes"
        raise ValueError(msg)
    return content


def _keys_unknown() -> UnavailableError:
    return UnavailableError(
        "ServerBusy",
        "The server is currently unable to receive requests. Please retry your request.",
        hint="The signing keys of the token issuer cannot be read: see the log of the server.",
        facts={"retry_after": int(READ_SECONDS_MIN)},
    )
