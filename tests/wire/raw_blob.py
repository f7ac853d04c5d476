"""HTTP to the blob service without an SDK: what is common with queues is in raw_queue."""

import socket
from collections.abc import Mapping
from email.utils import formatdate
from urllib.parse import urlsplit

from wire import hostile
from wire.raw_queue import VERSION, RawQueueClient

BLOCK = {"x-ms-blob-type": "BlockBlob"}
APPEND = {"x-ms-blob-type": "AppendBlob"}
PAGE = {"x-ms-blob-type": "PageBlob"}


class RawBlobClient(RawQueueClient):
    """Signs with Shared Key Lite and sends what it is told, one connection a request."""

    def exchange(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        sent: bytes,
        *,
        ends: bool = False,
    ) -> hostile.Answer:
        """Send a signed head that claims what it likes, then these bytes; `ends`: and no more."""
        whole = f"/{self.account}{target}"
        fields = {"Host": self.host, "x-ms-version": VERSION, "x-ms-date": formatdate(usegmt=True)}
        fields |= headers
        fields["Authorization"] = self.authorization(method, whole, fields)
        head = f"{method} {whole} HTTP/1.1\r\n{hostile.as_lines(fields)}\r\n"
        port = urlsplit(self.root).port
        patience = hostile.PATIENCE_SECONDS
        with socket.create_connection(("127.0.0.1", port), patience) as connection:
            connection.sendall(head.encode("latin-1") + sent)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            return hostile.read_answer(connection)
