"""Credentials that are not valid, for asynchronous clients."""

from typing import Any

from azure.core.credentials import AccessToken


class AsyncFakeCredential:
    def __init__(self) -> None:
        self.token = AccessToken("YOU SHALL NOT PASS", 0)
        self.get_token_count = 0

    async def get_token(self, *_: Any, **__: Any) -> AccessToken:
        self.get_token_count += 1
        return self.token
