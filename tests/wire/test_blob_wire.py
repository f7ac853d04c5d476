"""The blob protocol without an SDK: the exact bytes, headers and codes of single answers."""

import re
import socket
import uuid
from email.utils import formatdate
from urllib.parse import urlsplit

import pytest

from wire.live import LiveServer
from wire.raw_blob import BLOCK, RawBlobClient
from wire.raw_queue import VERSION

PATIENCE_SECONDS = 60


@pytest.fixture
def blobs(server: LiveServer) -> RawBlobClient:
    return RawBlobClient(server.blob_endpoint)


@pytest.fixture
def container(blobs: RawBlobClient) -> str:
    """A container of the test's own."""
    name = f"c{uuid.uuid4().hex}"
    assert blobs.send("PUT", f"/{name}?restype=container").status == 201
    return name


def put(
    blobs: RawBlobClient, container: str, name: str = "b", content: bytes = b"0123456789"
) -> str:
    """Write a blob and return its etag."""
    answer = blobs.send("PUT", f"/{container}/{name}", content, BLOCK)
    assert answer.status == 201
    return answer["ETag"]


def a_delete(blobs: RawBlobClient, target: str, number: int, **headers: str) -> str:
    """Return one signed part of a batch."""
    whole = f"/{blobs.account}{target}"
    fields = {"x-ms-date": formatdate(usegmt=True), **headers}
    fields["Authorization"] = blobs.authorization("DELETE", whole, fields)
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return (
        f"--x\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
        f"DELETE {whole} HTTP/1.1\r\n{lines}\r\n\r\n"
    )


# Batches


def test_a_batch_answer_ends_with_its_closing_delimiter(
    server: LiveServer, blobs: RawBlobClient, container: str
) -> None:
    put(blobs, container)
    body = (a_delete(blobs, f"/{container}/b", 0) + "--x--\r\n").encode()
    fields = {
        "Host": blobs.host,
        "Connection": "close",
        "Content-Type": "multipart/mixed; boundary=x",
        "Content-Length": str(len(body)),
        "x-ms-date": formatdate(usegmt=True),
        "x-ms-version": VERSION,
    }
    target = f"/{blobs.account}/?comp=batch"
    fields["Authorization"] = blobs.authorization("POST", target, fields)
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    port = urlsplit(server.blob_endpoint).port
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
        connection.sendall(f"POST {target} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        received = b"".join(iter(lambda: connection.recv(65536), b""))

    head, _, answered = received.partition(b"\r\n\r\n")
    named = re.search(rb"boundary=(batchresponse_[-0-9a-f]+)\r\n", head)
    assert named is not None
    assert answered.startswith(b"--" + named[1] + b"\r\n")
    assert b"HTTP/1.1 202 Accepted\r\n" in answered
    assert answered.endswith(b"\r\n--" + named[1] + b"--")
    assert f"Content-Length: {len(answered)}\r\n".encode() in head + b"\r\n"
