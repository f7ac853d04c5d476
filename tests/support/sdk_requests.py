"""What the official client sends, caught before it leaves the process."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.pipeline.transport import HttpTransport
from azure.data.tables import TableClient

from partita.patterns.protocol.calls import RowOperation
from support.sdk_oracle import SdkEntity, request_of


class Captured(BaseException):
    """Stops the client: no retry policy catches it."""


class Capture(HttpTransport[Any, Any]):
    """Keeps the first request and sends nothing."""

    request: Any = None

    def open(self) -> None: ...

    def close(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def send(self, request: Any, **_: object) -> Any:
        self.request = request
        raise Captured


def part_of(operation: RowOperation) -> tuple[str, SdkEntity, dict[str, Any]]:
    """Return a write as the client takes it for a part of a transaction."""
    method, entity, options = request_of(operation)
    return method.removesuffix("_entity"), entity, options


def sent_for(endpoint: str, table: str, account: str, operations: Sequence[RowOperation]) -> Any:
    """Return the one request that carries a group."""
    return sent_by(
        endpoint, table, account, lambda client: client.submit_transaction(map(part_of, operations))
    )


def sent_by(endpoint: str, table: str, account: str, use: Callable[[TableClient], Any]) -> Any:
    """Return the first request that a client sends when it is used."""
    transport = Capture()
    credential = AzureNamedKeyCredential(account, "a2V5")
    client = TableClient(endpoint, table, credential=credential, transport=transport)
    with pytest.raises(Captured):
        use(client)
    return transport.request
