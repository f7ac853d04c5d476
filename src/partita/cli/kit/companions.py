"""The official clients of queues and blobs for WHERE: a connection string, a SAS URL, a folder.

They need the extra `azure`. A folder is opened in this process.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.bulk.connecting import FORMS, check_folder, parse_where
from partita.bulk.identity import default_credential
from partita.cli.kit.commands import Given
from partita.cli.kit.target import get_target
from partita.errors import ConfigurationError, PartitaError, UnavailableError
from partita.service.hosting.in_process import open_account
from partita.service.hosting.locations import Folder, Remote

if TYPE_CHECKING:
    from azure.storage.blob import BlobServiceClient
    from azure.storage.queue import QueueServiceClient

CONNECT_SECONDS = 10
BACK_OFF_SECONDS = 1
"""Before the first retry; the SDK waits 15 s by default."""


@contextlib.contextmanager
def opened_queues(given: Given) -> Iterator["QueueServiceClient"]:
    """Open the queues of an account."""
    with _installed():
        from azure.storage.queue import QueueServiceClient  # noqa: PLC0415 - an extra

        with _opened(given, "queues", QueueServiceClient) as client:
            yield client


@contextlib.contextmanager
def opened_blobs(given: Given) -> Iterator["BlobServiceClient"]:
    """Open the blobs of an account."""
    with _installed():
        from azure.storage.blob import BlobServiceClient  # noqa: PLC0415 - an extra

        with _opened(given, "blobs", BlobServiceClient) as client:
            yield client


@contextlib.contextmanager
def _opened(given: Given, service: str, client_class: Any) -> Iterator[Any]:
    where = get_target(given.connect, subject="The account", forms=FORMS)
    place = parse_where(where, service)
    if isinstance(place, Folder):
        path = None if place.path is None else Path(place.path).expanduser()
        if path is not None:
            check_folder(path)
        with open_account(path) as account:
            yield getattr(account, service)
        return
    client = client_class(
        place.endpoints[service],
        credential=_credential(place),
        retry_total=3,
        initial_backoff=BACK_OFF_SECONDS,
        random_jitter_range=BACK_OFF_SECONDS,
        connection_timeout=CONNECT_SECONDS,
    )
    with client:
        yield client


def _credential(place: Remote) -> Any:
    if place.has_identity:
        return default_credential()
    if place.key:
        return {"account_name": place.account, "account_key": place.key}
    return place.sas


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "NotInstalled",
            f"The package {error.name} is not installed.",
            hint='Run: pip install "./partita[azure]"',
        ) from error


def sdk_error(error: Exception) -> PartitaError | None:
    """Return an error of the SDK in one line; None if it is something else."""
    from azure.core.exceptions import AzureError, HttpResponseError  # noqa: PLC0415 - an extra

    if isinstance(error, HttpResponseError):
        code = getattr(error, "error_code", None) or f"Http{error.status_code}"
        message = (error.message or "").splitlines()
        shown = message[0] if message else "The service refused the request"
        hint = _HINTS.get(str(code), "")
        return ConfigurationError(str(code), f"{shown.rstrip('.')}.", hint=hint)
    if isinstance(error, AzureError):
        first = str(error).splitlines()[:1] or [type(error).__name__]
        return UnavailableError(
            "ServerUnreachable", f"{first[0].rstrip('.')}.", hint="Check the address."
        )
    return None


_HINTS = {
    "QueueNotFound": "List the queues with `partita messages ls`.",
    "ContainerNotFound": "List the containers with `partita blobs ls`.",
    "BlobNotFound": "List the blobs with `partita blobs ls CONTAINER`.",
}
