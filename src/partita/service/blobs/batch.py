"""Batches of the blob service: many deletes, or many changes of tier, in one request.

Each part is a complete request with its own signature and is answered independently.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from partita.errors import InvalidRequestError
from partita.refusals import invalid_input
from partita.service.accounts.respond import AuthorizedRequest
from partita.service.formats.multipart import REASONS, read_parts
from partita.service.http.request import Request, Response
from partita.ticks import Clock

PARTS_MAX = 256


async def run_batch(
    authorized: AuthorizedRequest,
    body: bytes,
    respond: Callable[[Request], Awaitable[Response]],
    clock: Clock,
) -> Response:
    """Answer the parts of a batch, one after another."""
    request, target = authorized.request, authorized.target
    root = f"/{target.account}" if target.root.endswith(f"/{target.account}") else ""
    parts = read_parts(body, request.headers.get("content-type", ""), root, PARTS_MAX)
    _check_alike([part for _, part in parts])
    answers = [(number, await respond(_as_sent(part, request))) for number, part in parts]
    boundary = f"batchresponse_{clock.new_id()}"
    printed = b"".join(_print(boundary, number, answer) for number, answer in answers)
    return Response(
        202,
        [("Content-Type", f"multipart/mixed; boundary={boundary}")],
        # Nothing follows the closing delimiter: the C++ SDK refuses a line end after it.
        printed + f"--{boundary}--".encode(),
    )


def _as_sent(part: Request, outer: Request) -> Request:
    """Return the part as a request of its own on this connection."""
    # Add only the host: a part is signed with the headers that it has.
    headers = {"host": outer.headers.get("host", ""), **part.headers}
    return msgspec.structs.replace(part, headers=headers, peer=outer.peer, scheme=outer.scheme)


def _check_alike(parts: Sequence[Request]) -> None:
    queries = [part.query.lower() for part in parts]
    deletes = [part.method == "DELETE" for part in parts]
    tiers = [
        part.method == "PUT" and "comp=tier" in query
        for part, query in zip(parts, queries, strict=True)
    ]
    is_of_blobs = not any("restype" in query for query in queries)
    if not parts or not is_of_blobs or not (all(deletes) or all(tiers)):
        raise invalid_input(
            InvalidRequestError, f"Send 1 to {PARTS_MAX} deletes of blobs, or changes of tier."
        )


def _print(boundary: str, number: str, answer: Response) -> bytes:
    headers = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
    reason = REASONS.get(answer.status, "")
    head = (
        f"--{boundary}\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
        f"HTTP/1.1 {answer.status} {reason}\r\n{headers}\r\n"
    )
    return head.encode() + answer.body + b"\r\n"
