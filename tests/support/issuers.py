"""A token issuer for tests: keys that are generated once, and tokens that they sign."""

import base64
import functools
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER = "https://login.test/tenant1"
AUDIENCE = "https://storage.azure.com"
OID, TID = "6f1a0c1e-0000-4000-8000-000000000001", "6f1a0c1e-0000-4000-8000-000000000002"


@functools.cache
def rsa_key(name: str = "first") -> rsa.RSAPrivateKey:
    """Return the private key of this name, always the same."""
    assert name
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@functools.cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_set(*names: str, **further: Any) -> bytes:
    """Return a JSON Web Key Set with the public keys of these names; `kid` is the name."""
    keys = []
    for name in names:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key(name).public_key()))
        keys.append({**public, "kid": name, "use": "sig", **further})
    elliptic = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(ec_key().public_key()))
    return json.dumps({"keys": [*keys, {**elliptic, "kid": "ec", "use": "sig"}]}).encode()


def claims(seconds: float, *roles: str, **changed: Any) -> dict[str, Any]:
    """Return claims of a token that is valid for an hour; None removes a claim."""
    found = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "oid": OID,
        "tid": TID,
        "nbf": int(seconds) - 60,
        "exp": int(seconds) + 3600,
        "roles": list(roles),
        **changed,
    }
    return {name: value for name, value in found.items() if value is not None}


def token(content: dict[str, Any], key: str = "first", *, kid: str | None = None) -> str:
    """Sign a token with the key of this name."""
    headers = {"kid": key if kid is None else kid}
    return jwt.encode(content, rsa_key(key), algorithm="RS256", headers=headers)


def segments(header: dict[str, Any], content: dict[str, Any], signature: bytes = b"") -> str:
    """Return a token put together by hand, as an attacker does."""
    parts = [json.dumps(header).encode(), json.dumps(content).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
