"""The ceiling: the least that a Python process can do with HTTP and still answer it.

uvloop, httptools, a fixed answer of 1 KB with ten headers; no limits, no order, no errors. What
Partita does is measured against this. `python bench/bare_http.py [port]` prints its port.
"""

import asyncio
import sys
from typing import cast

import httptools
import uvloop

BODY = b"x" * 1024
ANSWER = (
    b"HTTP/1.1 200 OK\r\n"
    b"Cache-Control: no-cache\r\n"
    b"Content-Type: application/json;odata=minimalmetadata;streaming=true;charset=utf-8\r\n"
    b"Server: Windows-Azure-Table/1.0 Microsoft-HTTPAPI/2.0\r\n"
    b"Date: Mon, 18 Oct 2021 21:58:33 GMT\r\n"
    b"X-Content-Type-Options: nosniff\r\n"
    b"ETag: W/\"datetime'2021-10-18T21%3A58%3A33.8431842Z'\"\r\n"
    b"x-ms-request-id: 5b3c9b6e-6002-0010-7d5a-c4a0b9000000\r\n"
    b"x-ms-client-request-id: 5b3c9b6e-6002-0010-7d5a-c4a0b9000001\r\n"
    b"x-ms-version: 2019-02-02\r\n"
    b"Content-Length: 1024\r\n\r\n"
) + BODY


class BareProtocol(asyncio.Protocol):
    """Parses, takes note of every part, answers."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.parser = httptools.HttpRequestParser(self)
        self.headers: dict[bytes, bytes] = {}
        self.url = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name] = value

    def on_message_complete(self) -> None:
        self.headers = {}
        self.transport.write(ANSWER)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(BareProtocol, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
