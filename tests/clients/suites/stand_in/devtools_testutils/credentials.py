"""Credentials that make their own tokens: the server runs with `--oauth development`."""

import time
from typing import Any

import jwt
from azure.core.credentials import AccessToken

TENANT = "72f988bf-86f1-41af-91ab-2d7cd011db47"
OWNER = "68390a19-a643-458b-b726-408abf67b4fc"


def token_for(scope: str) -> AccessToken:
    now = int(time.time())
    claims = {
        "iss": f"https://sts.windows.net/{TENANT}/",
        "aud": scope.removesuffix("/.default"),
        "oid": OWNER,
        "tid": TENANT,
        "nbf": now,
        "exp": now + 3600,
    }
    return AccessToken(jwt.encode(claims, "any secret of 32 bytes or more ..."), now + 3600)


class DevelopmentCredential:
    def __init__(self, **_: Any) -> None: ...

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        return token_for(scopes[0])

    def close(self) -> None: ...


class AsyncDevelopmentCredential:
    def __init__(self, **_: Any) -> None: ...

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        return token_for(scopes[0])

    async def __aenter__(self) -> "AsyncDevelopmentCredential":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def close(self) -> None: ...
