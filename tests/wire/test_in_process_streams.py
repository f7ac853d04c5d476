"""The official blob clients in this process: what they hand in and take out goes in pieces.

The service here is a stand-in of one blob: what is tested is the way to it and back.
"""

import asyncio
import gc
import gzip
import io
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, IncompleteReadError
from azure.storage.blob import BlobClient
from azure.storage.blob.aio import BlobClient as AsyncBlobClient

from partita.errors import PartitaError, UsageError
from partita.loop_thread import LoopThread
from partita.service.accounts.account import DEVELOPMENT_KEY
from partita.service.hosting.azure_transport import AsyncInProcessTransport
from partita.service.hosting.azure_transport_sync import InProcessTransport
from partita.service.hosting.in_process import account_closed
from partita.service.http.request import PIECE_BYTES_MAX, Request, Response

MEBIBYTE = 1024 * 1024
PATIENCE_SECONDS = 60
URL = "http://127.0.0.1:10000/devstoreaccount1/c/b"
CREDENTIAL: Any = {"account_name": "devstoreaccount1", "account_key": DEVELOPMENT_KEY}
CONTENT = bytes(range(256)) * 4096 * 5
DATED = [("ETag", '"1"'), ("Last-Modified", "Tue, 14 Nov 2023 22:13:20 GMT")]


class Pieces:
    """A download of the stand-in."""

    def __init__(self, content: bytes, *, fault_at: int | None = None) -> None:
        self.length = len(content)
        self.closes = 0
        self._content = content
        self._fault_at = fault_at

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._content), 100_000):
            if self._fault_at is not None and start >= self._fault_at:
                raise ValueError("the disk is gone")
            await asyncio.sleep(0)
            yield self._content[start : start + 100_000]

    async def close(self) -> None:
        self.closes += 1


class OneBlob:
    """Answers as a service with one blob would."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.pieces: list[int] = []
        self.requests: list[Request] = []
        self.downloads: list[Pieces] = []
        self.errors: list[str] = []
        self.headers: list[tuple[str, str]] = []
        self.fault_at: int | None = None
        self.takes_pieces = 1 << 40

    async def respond(self, request: Request) -> Response:
        self.requests.append(request)
        if request.method == "PUT":
            return await self._put(request)
        return self._get(request)

    async def _put(self, request: Request) -> Response:
        if request.upload is None:
            self.content = request.body
            return Response(201, DATED)
        received = bytearray()
        try:
            async for piece in request.upload:
                received += piece
                self.pieces.append(len(piece))
                if len(self.pieces) == self.takes_pieces:
                    return Response(403, [("x-ms-error-code", "AuthorizationFailure")])
        except PartitaError as error:
            self.errors.append(error.code)
            return Response(400, [("x-ms-error-code", error.code)])
        self.content = bytes(received)
        return Response(201, DATED)

    def _get(self, request: Request) -> Response:
        first, _, last = (
            request.headers.get("x-ms-range", "bytes=0-").partition("=")[2].partition("-")
        )
        start, end = int(first), min(int(last or len(self.content)), len(self.content) - 1)
        whole = f"bytes {start}-{end}/{len(self.content)}"
        content = self.content[start : end + 1]
        self.downloads.append(Pieces(content, fault_at=self.fault_at))
        headers = [("Content-Range", whole), ("x-ms-blob-type", "BlockBlob"), *DATED, *self.headers]
        return Response(
            200 if request.method == "HEAD" else 206, headers, download=self.downloads[-1]
        )


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test-account", account_closed)
    yield thread
    thread.stop()


@pytest.fixture
def blob() -> OneBlob:
    return OneBlob()


OpenClient = Callable[..., Any]


@pytest.fixture
def open_sync(blob: OneBlob, thread: LoopThread) -> Callable[..., BlobClient]:
    def open_client(**options: Any) -> BlobClient:
        transport = InProcessTransport(blob.respond, thread, stream_above_bytes=65_536)
        return BlobClient.from_blob_url(
            URL, credential=CREDENTIAL, transport=transport, retry_total=0, **options
        )

    return open_client


@pytest.fixture
def open_async(blob: OneBlob, thread: LoopThread) -> Callable[..., AsyncBlobClient]:
    def open_client(**options: Any) -> AsyncBlobClient:
        transport = AsyncInProcessTransport(blob.respond, thread, stream_above_bytes=65_536)
        return AsyncBlobClient.from_blob_url(
            URL, credential=CREDENTIAL, transport=transport, retry_total=0, **options
        )

    return open_client


def in_parts() -> Iterator[bytes]:
    for start in range(0, len(CONTENT), 700_001):
        yield CONTENT[start : start + 700_001]


async def in_async_parts() -> AsyncIterator[bytes]:
    for part in in_parts():
        await asyncio.sleep(0)
        yield part


# Uploads of the synchronous client


@pytest.mark.parametrize(
    "content",
    [lambda: CONTENT, lambda: io.BytesIO(CONTENT), in_parts],
    ids=["bytes", "file", "iterator"],
)
def test_upload_reaches_the_service_in_pieces(
    blob: OneBlob, open_sync: OpenClient, content: Callable[[], Any]
) -> None:
    open_sync().upload_blob(content(), length=len(CONTENT), overwrite=True)

    assert blob.content == CONTENT
    assert max(blob.pieces) <= PIECE_BYTES_MAX
    assert len(blob.pieces) > 10


class Trickle(io.RawIOBase):
    """A stream that can be read only once and counts what was asked of it."""

    def __init__(self, length: int) -> None:
        self.read_bytes = 0
        self._left = length

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        count = min(self._left, size if size >= 0 else self._left)
        self._left -= count
        self.read_bytes += count
        return bytes(count)


def send(open_client: OpenClient, content: Any, *, length: int | None) -> Any:
    """Put a blob by the client's own pipeline, with any content."""
    headers = {} if length is None else {"Content-Length": str(length)}
    return open_client()._client.block_blob.upload(
        length or 0, content, headers=headers, content_type="a/b"
    )


def code_of(error: HttpResponseError) -> str:
    response: Any = error.response
    code: str = response.headers["x-ms-error-code"]
    return code


def test_file_is_read_only_as_fast_as_the_service_takes_it(
    blob: OneBlob, open_sync: OpenClient
) -> None:
    blob.takes_pieces = 3
    file = Trickle(100 * MEBIBYTE)

    with pytest.raises(HttpResponseError) as caught:
        send(open_sync, file, length=100 * MEBIBYTE)

    assert code_of(caught.value) == "AuthorizationFailure"
    assert file.read_bytes <= 4 * PIECE_BYTES_MAX


def test_file_is_read_on_the_thread_of_the_client(blob: OneBlob, open_sync: OpenClient) -> None:
    threads = []

    class Noting(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            threads.append(threading.current_thread())
            return super().read(size)

    send(open_sync, Noting(CONTENT), length=len(CONTENT))

    assert set(threads) == {threading.current_thread()}
    assert blob.content == CONTENT


def test_error_of_the_file_reaches_the_caller_and_ends_the_request(
    blob: OneBlob, open_sync: OpenClient
) -> None:
    def failing() -> Iterator[bytes]:
        yield b"x" * 100_000
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        send(open_sync, failing(), length=300_000)

    wait_until(lambda: blob.errors == ["ClientGone"])


def test_content_shorter_than_its_length_is_not_taken(blob: OneBlob, open_sync: OpenClient) -> None:
    with pytest.raises(HttpResponseError) as caught:
        send(open_sync, io.BytesIO(b"x" * 100_000), length=100_001)

    assert (code_of(caught.value), blob.content) == ("ClientGone", CONTENT)


def test_content_longer_than_its_length_is_not_taken(blob: OneBlob, open_sync: OpenClient) -> None:
    with pytest.raises(HttpResponseError) as caught:
        send(open_sync, io.BytesIO(b"x" * 100_001), length=100_000)

    assert (code_of(caught.value), blob.content) == ("InvalidInput", CONTENT)


def test_short_content_is_a_whole_body(blob: OneBlob, open_sync: OpenClient) -> None:
    open_sync().upload_blob(io.BytesIO(b"short"), overwrite=True)

    assert blob.content == b"short"
    assert blob.requests[0].upload is None


# Downloads of the synchronous client


def test_download_comes_back_in_pieces_and_is_closed(blob: OneBlob, open_sync: OpenClient) -> None:
    client = open_sync(max_single_get_size=2 * MEBIBYTE, max_chunk_get_size=MEBIBYTE)

    content = client.download_blob().readall()

    assert content == CONTENT
    assert [download.closes for download in blob.downloads] == [1] * 4


def test_pieces_of_a_response_are_made_when_they_are_asked_for(
    blob: OneBlob, open_sync: OpenClient
) -> None:
    response = send_get(open_sync)
    pieces = response.iter_raw()
    assert next(pieces) == CONTENT[:100_000]
    assert blob.downloads[0].closes == 0

    response.close()

    assert blob.downloads[0].closes == 1


def send_get(open_client: OpenClient, **options: Any) -> Any:
    client = open_client()
    request = client._client._client.get(URL)
    return client._client._client._pipeline.run(request, stream=True, **options).http_response


def test_forgotten_response_is_closed(blob: OneBlob, open_sync: OpenClient) -> None:
    send_get(open_sync)
    gc.collect()

    wait_until(lambda: blob.downloads[0].closes == 1)


def test_broken_download_is_what_the_client_knows_to_retry(
    blob: OneBlob, open_sync: OpenClient
) -> None:
    blob.fault_at = 300_000
    response = send_get(open_sync)

    with pytest.raises(IncompleteReadError):
        b"".join(response.iter_raw())

    assert blob.downloads[0].closes == 1


def test_head_has_the_length_and_no_body(blob: OneBlob, open_sync: OpenClient) -> None:
    properties = open_sync().get_blob_properties()

    assert properties.size == len(CONTENT)
    assert [download.closes for download in blob.downloads] == [1]


def test_names_of_metadata_keep_their_case_both_ways(blob: OneBlob, open_sync: OpenClient) -> None:
    blob.headers = [("x-ms-meta-UP", "1"), ("x-ms-meta-low", "2")]
    client = open_sync()

    client.upload_blob(b"x", metadata={"UP": "1", "low": "2"}, overwrite=True)

    assert client.get_blob_properties().metadata == {"UP": "1", "low": "2"}
    assert dict(blob.requests[0].spelled) == {
        "x-ms-meta-up": "x-ms-meta-UP",
        "x-ms-meta-low": "x-ms-meta-low",
    }


def test_compressed_content_is_inflated_as_http_clients_do(
    blob: OneBlob, open_sync: OpenClient
) -> None:
    blob.content = gzip.compress(CONTENT)
    blob.headers = [("Content-Encoding", "gzip")]

    assert open_sync().download_blob().readall() == CONTENT
    assert open_sync().download_blob(decompress=False).readall() == blob.content


def test_closed_account_says_so(blob: OneBlob) -> None:
    thread = LoopThread("test-account", account_closed)
    thread.stop()
    transport = InProcessTransport(blob.respond, thread, stream_above_bytes=65_536)
    client = BlobClient.from_blob_url(URL, credential=CREDENTIAL, transport=transport)

    with pytest.raises(UsageError, match="AccountClosed"):
        client.upload_blob(CONTENT)


# The asynchronous client


class AsyncFile:
    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)

    async def read(self, size: int = -1) -> bytes:
        await asyncio.sleep(0)
        return self._file.read(size)


@pytest.mark.parametrize(
    "content",
    [lambda: CONTENT, lambda: io.BytesIO(CONTENT), in_parts, in_async_parts],
    ids=["bytes", "file", "iterator", "async iterator"],
)
async def test_async_upload_reaches_the_service_in_pieces(
    blob: OneBlob, open_async: OpenClient, content: Callable[[], Any]
) -> None:
    async with open_async() as client:
        await client.upload_blob(content(), length=len(CONTENT), overwrite=True)

    assert blob.content == CONTENT
    assert max(blob.pieces) <= PIECE_BYTES_MAX


@pytest.mark.parametrize(
    "content",
    [lambda: io.BytesIO(CONTENT), in_parts, in_async_parts, lambda: AsyncFile(CONTENT)],
    ids=["file", "iterator", "async iterator", "async file"],
)
@pytest.mark.parametrize("is_declared", [True, False])
async def test_async_transport_takes_every_kind_of_content(
    blob: OneBlob, open_async: OpenClient, content: Callable[[], Any], *, is_declared: bool
) -> None:
    request = a_put(content())
    if is_declared:
        request.headers["Content-Length"] = str(len(CONTENT))
    async with open_async() as client:
        response = await client._client._client.send_request(request)

    assert (response.status_code, blob.content == CONTENT) == (201, True)
    assert blob.requests[0].upload is not None
    assert blob.requests[0].upload.length == (len(CONTENT) if is_declared else None)


def a_put(content: Any) -> Any:
    from azure.core.rest import HttpRequest

    return HttpRequest("PUT", URL, content=content)


async def test_cancelled_async_client_does_not_cancel_the_request(
    blob: OneBlob, thread: LoopThread
) -> None:
    notes: list[str] = []
    release = threading.Event()

    async def respond(_: Request) -> Response:
        notes.append("began")
        await asyncio.to_thread(release.wait)
        notes.append("finished")
        return Response(201, DATED)

    transport = AsyncInProcessTransport(respond, thread)
    client = AsyncBlobClient.from_blob_url(URL, credential=CREDENTIAL, transport=transport)
    asking = asyncio.ensure_future(client.upload_blob(b"x", overwrite=True))
    await async_wait_until(lambda: notes == ["began"])

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    release.set()

    await async_wait_until(lambda: notes == ["began", "finished"])


async def test_cancelled_async_upload_fails_its_reader(
    blob: OneBlob, open_async: OpenClient
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        await asyncio.sleep(1000)

    async with open_async() as client:
        sending = asyncio.ensure_future(client._client._client.send_request(a_put(endless())))
        await async_wait_until(lambda: len(blob.pieces) == 1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

    await async_wait_until(lambda: blob.errors == ["ClientGone"])


async def test_async_download_comes_back_in_pieces_and_is_closed(
    blob: OneBlob, open_async: OpenClient
) -> None:
    async with open_async(max_single_get_size=2 * MEBIBYTE, max_chunk_get_size=MEBIBYTE) as client:
        stream = await client.download_blob()
        content = await stream.readall()

    assert content == CONTENT
    assert [download.closes for download in blob.downloads] == [1] * 4


async def test_broken_async_download_is_what_the_client_knows_to_retry(
    blob: OneBlob, open_async: OpenClient
) -> None:
    blob.fault_at = 300_000
    async with open_async() as client:
        response = await client._client._client.send_request(a_get(), stream=True)
        with pytest.raises(IncompleteReadError):
            async for _ in response.iter_raw():
                pass

    assert blob.downloads[0].closes == 1


def a_get() -> Any:
    from azure.core.rest import HttpRequest

    return HttpRequest("GET", URL)


def wait_until(is_so: Callable[[], bool]) -> None:
    asyncio.run(async_wait_until(is_so))


async def async_wait_until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():  # noqa: ASYNC110 - what is waited for happens on another thread
            await asyncio.sleep(0.005)
