"""Tokens of Microsoft Entra ID for accounts of Azure, by the package azure-identity if installed.

A location that is only the https address of an account is opened with them. Which identity it is
(`az login`, variables, a managed identity) is decided by `DefaultAzureCredential`.
"""

import asyncio
import importlib
from typing import Any

from partita.errors import ConfigurationError, NotAuthorizedError
from partita.ticks import TICKS_PER_SECOND, Clock

SCOPE = "https://storage.azure.com/.default"
RENEW_SECONDS = 300
"""A token is replaced so long before it expires."""


def default_credential(module: str = "azure.identity") -> Any:
    """Return the credential of this machine; `azure.identity.aio` has those of asyncio."""
    try:
        return importlib.import_module(module).DefaultAzureCredential()
    except ImportError as error:
        raise ConfigurationError(
            "NotInstalled",
            "The address of the account has no key or signature, and the package azure-identity, "
            "which signs in to Microsoft Entra ID, is not installed.",
            hint="Run: pip install azure-identity; or give a connection string or a SAS URL.",
        ) from error


class TokenSource:
    """The token of one credential, kept until shortly before it expires."""

    def __init__(self, credential: Any, clock: Clock) -> None:
        self._credential = credential
        self._clock = clock
        self._text = ""
        self._renew_at = 0.0
        self._renewing = asyncio.Lock()

    async def get(self) -> str:
        async with self._renewing:
            now = self._clock.ticks() / TICKS_PER_SECOND
            if now >= self._renew_at:
                found = await asyncio.to_thread(self._ask)
                self._text = found.token
                self._renew_at = found.expires_on - RENEW_SECONDS
            return self._text

    def _ask(self) -> Any:
        from azure.core.exceptions import AzureError  # noqa: PLC0415 - installed with its identity

        try:
            return self._credential.get_token(SCOPE)
        except AzureError as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise NotAuthorizedError(
                "AuthenticationFailed",
                f"No token of Microsoft Entra ID: {reason.rstrip('.')}.",
                hint="Run `az login`, or give a connection string or a SAS URL.",
            ) from error
