"""Batches of the blob service: many deletes, or many changes of tier, in one request.

Each part is a request with its own signature and is answered independently; the host, the
account and the origin are those of the batch. Other requests run between two parts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from partita.errors import InvalidRequestError
from partita.refusals import invalid_input
from partita.service.accounts.respond import AuthorizedRequest
from partita.service.auth.browser_guard import ORIGIN_HEADERS
from partita.service.formats.multipart import REASONS, read_parts
from partita.service.http.request import Request, Response
from partita.service.http.turns import collected
from partita.ticks import Clock

PARTS_MAX = 256
PARTS_READ_PER_TURN = 16
"""How many parts are parsed in one turn of the event loop."""

_INHERITED = ("host", *sorted(ORIGIN_HEADERS))
"""Headers of the batch that every part has, too."""


async def run_batch(
    authorized: AuthorizedRequest,
    body: bytes,
    respond: Callable[[Request], Awaitable[Response]],
    clock: Clock,
) -> Response:
    """Answer the parts of a batch, one after another."""
    request, target = authorized.request, authorized.target
    root = f"/{target.account}" if target.root.endswith(f"/{target.account}") else ""
    parts = await collected(
        read_parts(body, request.headers.get("content-type", ""), root, PARTS_MAX),
        PARTS_READ_PER_TURN,
    )
    _check_alike([part for _, part in parts])
    sent = [(number, _as_sent(part, request)) for number, part in parts]
    answers: list[tuple[str, Response]] = []
    for number, part in sent:
        # The signature of each part is verified: let the other requests run in between.
        await asyncio.sleep(0)
        answers.append((number, await respond(part)))
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
    # These headers of the batch decide which account is addressed, and whether a web page may
    # address it; a part is signed with the other headers that it has.
    inherited = {name: outer.headers[name] for name in _INHERITED if name in outer.headers}
    if part.headers.get("host", "").lower() not in ("", inherited.get("host", "").lower()):
        raise invalid_input(InvalidRequestError, "Use the Host of the batch in all its parts.")
    headers = {**part.headers, **inherited}
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
