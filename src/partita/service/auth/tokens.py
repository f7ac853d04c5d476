"""The check of a bearer token: signature, issuer, audience, times, roles. Pure.

PyJWT verifies signatures; it is in the extra `oauth`. Only asymmetric algorithms are accepted, and
each key verifies one algorithm, so that a token cannot choose how it is verified.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jwt
import msgspec
from jwt.types import Options

from partita.service.auth.bearer import (
    AUDIENCE,
    ROLES_CLAIM,
    SKEW_SECONDS,
    Bearer,
    Identity,
    TokenRefusedError,
)
from partita.service.auth.roles import EVERYTHING, RoleRule, rights_of, roles_in

TOKEN_BYTES_MAX = 16 * 1024
"""The longest token that is decoded."""
ROLE_VALUES_MAX = 256
"""How many values of the roles claim are read."""
KEYS_MAX = 64
"""How many keys of a key set are read."""
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"),
)
"""The algorithms of keys that are accepted: none with a shared secret."""
STORAGE_APPLICATION = "e406a681-f3d4-42a8-90b6-c2b029497af1"
"""The application of Azure Storage, which tokens can name as their audience."""
NO_TENANT = "00000000-0000-0000-0000-000000000000"

_ID = re.compile(r"[\x21-\x7e]{1,256}")
_ENTRA = re.compile(
    r"https://(?:sts\.windows\.net|login\.microsoftonline\.com)/([0-9a-f-]+)(?:/|$)"
)
_SIGNED: Options = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_sub": False,
    "verify_jti": False,
    "enforce_minimum_key_length": True,
    "require": ["exp", "iss", "aud"],
}
"""The times are compared with the clock of the server, which tests replace."""
_UNSIGNED: Options = {"verify_signature": False}


class TokenRules(msgspec.Struct, frozen=True):
    """Which tokens are accepted, and what their claims mean."""

    issuer: str
    audiences: tuple[str, ...] = (AUDIENCE,)
    roles_claim: str = ROLES_CLAIM
    role_rules: tuple[RoleRule, ...] = ()
    skew_seconds: int = SKEW_SECONDS

    @property
    def challenge(self) -> str:
        """The value of WWW-Authenticate: where clients get a token, and for which audience."""
        found = _ENTRA.match(self.issuer)
        front = (
            f"https://login.microsoftonline.com/{found[1]}" if found else self.issuer.rstrip("/")
        )
        resource = self.audiences[0]
        return f"Bearer authorization_uri={front}/oauth2/authorize resource_id={resource}"


class Checked(msgspec.Struct, frozen=True):
    """A token whose signature, issuer and audience are right."""

    identity: Identity
    roles: tuple[str, ...]
    """The values of the roles claim."""
    starts: float
    expires: float
    """In seconds since 1970."""

    def check_times(self, seconds: float, skew_seconds: int) -> None:
        """Raise unless the token is valid at this time."""
        if seconds >= self.expires + skew_seconds:
            raise TokenRefusedError("Lifetime validation failed: the token is expired.")
        if seconds < self.starts - skew_seconds:
            raise TokenRefusedError("Lifetime validation failed: the token is not yet valid.")

    def bearer(self, rules: TokenRules, account: str) -> Bearer:
        """Return what the token permits in an account."""
        roles = roles_in(self.roles, rules.role_rules, account)
        return Bearer(self.identity, {letter: rights_of(roles, letter) for letter in "tqb"})


def parse_keys(document: bytes) -> dict[str, jwt.PyJWK]:
    """Parse a JSON Web Key Set: the public keys for signatures, by their `kid`.

    Keys of unknown kinds, shared secrets and keys for encryption are skipped, as RFC 7517 demands.
    Raises ValueError if the document is not a key set.

    >>> parse_keys(b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "1"}]}')
    {}
    """
    read = msgspec.json.decode(document)
    listed = read.get("keys") if isinstance(read, dict) else None
    if not isinstance(listed, list):
        raise ValueError("not a JSON Web Key Set")  # noqa: TRY004 - of the document, not of a type
    keys: dict[str, jwt.PyJWK] = {}
    for each in listed[:KEYS_MAX]:
        if not isinstance(each, dict) or each.get("use", "sig") != "sig":
            continue
        kid = each.get("kid", "")
        try:
            key = jwt.PyJWK(each)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        if isinstance(kid, str) and key.algorithm_name in ALGORITHMS:
            keys[kid] = key
    return keys


def key_id_of(token: str) -> str:
    """Return the `kid` that a token names; it is not verified yet."""
    if len(token) > TOKEN_BYTES_MAX:
        msg = f"The token is longer than {TOKEN_BYTES_MAX} bytes."
        raise TokenRefusedError(msg)
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise TokenRefusedError("The token is not a JSON Web Token.") from error
    if header.get("alg") not in ALGORITHMS:
        raise TokenRefusedError("The token is signed with an algorithm that is not accepted.")
    kid = header.get("kid", "")
    return kid if isinstance(kid, str) else ""


def check_token(token: str, key: jwt.PyJWK, rules: TokenRules) -> Checked:
    """Return the content of a token with a right signature, issuer and audience."""
    try:
        claims = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=[*_spellings(rules.audiences)],
            issuer=rules.issuer,
            options=_SIGNED,
        )
    except jwt.InvalidAudienceError as error:
        raise TokenRefusedError(
            "Audience validation failed: give the audience of the token with --oauth-audience."
        ) from error
    except jwt.InvalidIssuerError as error:
        raise TokenRefusedError(
            "Issuer validation failed: give the issuer of the token with --oauth-issuer."
        ) from error
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise TokenRefusedError("The token or its signature is not valid.") from error
    return _content_of(claims, rules.roles_claim)


def check_unsigned(token: str, audiences: Sequence[str]) -> Checked:
    """Return the content of a token of `--oauth development`: the signature is not verified."""
    if len(token) > TOKEN_BYTES_MAX:
        msg = f"The token is longer than {TOKEN_BYTES_MAX} bytes."
        raise TokenRefusedError(msg)
    try:
        claims = jwt.decode(
            token,
            audience=[*_spellings(audiences)],
            options=_UNSIGNED,
        )
        given = claims["aud"]
        named = given if isinstance(given, list) else [given]
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise TokenRefusedError("The token is not a JSON Web Token with aud and exp.") from error
    if not set(_spellings(audiences)).intersection(map(str, named)):
        raise TokenRefusedError("Audience validation failed: it is not an audience of Azure.")
    return _content_of(claims, ROLES_CLAIM)


def development_bearer(identity: Identity) -> Bearer:
    """Return what a token of `--oauth development` permits: everything."""
    return Bearer(identity, dict.fromkeys("tqb", EVERYTHING))


def development_audiences(account: str, service: str) -> tuple[str, ...]:
    """Return the audiences that Azure accepts for a service of an account.

    >>> development_audiences("orders", "table")[1]
    'https://orders.table.core.windows.net'
    """
    return (AUDIENCE, f"https://{account}.{service}.core.windows.net", STORAGE_APPLICATION)


def _spellings(audiences: Sequence[str]) -> list[str]:
    """Return the audiences with and without a final slash: clients add it."""
    plain = [audience.rstrip("/") for audience in audiences]
    return [*plain, *(f"{audience}/" for audience in plain)]


def _content_of(claims: Mapping[str, Any], roles_claim: str) -> Checked:
    expires, starts = _time(claims.get("exp")), _time(claims.get("nbf", 0))
    oid, tid = claims.get("oid", claims.get("sub", "")), claims.get("tid", NO_TENANT)
    if not all(isinstance(each, str) and _ID.fullmatch(each) for each in (oid, tid)):
        raise TokenRefusedError("The token has no usable oid or sub, or an invalid tid.")
    return Checked(Identity(oid, tid), _roles_of(claims, roles_claim), starts, expires)


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise TokenRefusedError("exp and nbf must be numbers of seconds.")
    return float(value)


def _roles_of(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the values of the roles claim, which may be inside others: `realm_access.roles`."""
    found: object = claims.get(name)
    if found is None:
        found = claims
        for part in name.split("."):
            found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, str):
        found = [found, *found.split()]
    if not isinstance(found, list):
        return ()
    return tuple(each for each in found[:ROLE_VALUES_MAX] if isinstance(each, str))
