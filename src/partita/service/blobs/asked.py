"""A request to the blob service, understood as far as its address: what every call reads from."""

import re

import msgspec

from partita.blobs.rules.model import BlobName
from partita.errors import LimitExceededError, NotSupportedError
from partita.service.accounts.respond import Asked
from partita.service.auth.sas import BlobScope
from partita.service.formats.query_options import invalid_parameter, out_of_range
from partita.service.http.request import Request

LIST_LIMIT_DEFAULT = 5000

_NUMBER = re.compile(r"-?\d{1,9}", re.ASCII)


class BlobAsked(msgspec.Struct, frozen=True):
    """An Asked with its parameters by lower-case name, and the blob or container it names."""

    front: Asked
    options: dict[str, str]
    comp: str = ""
    """The part or kind of the resource that is asked for, in lower case."""
    container: str = ""
    blob: str = ""

    @property
    def request(self) -> Request:
        return self.front.request

    @property
    def name(self) -> BlobName:
        return BlobName(self.container, self.blob, self.options.get("snapshot") or None)

    @property
    def scope(self) -> str | BlobScope:
        """What a service SAS must cover."""
        if not self.blob:
            return self.container
        snapshot, version_id = self.options.get("snapshot"), self.options.get("versionid")
        return BlobScope(self.container, self.blob, snapshot or None, version_id or None)

    def limit(self) -> int:
        """Return how many items of a list are asked for."""
        text = self.options.get("maxresults")
        if not text:
            return LIST_LIMIT_DEFAULT
        if not _NUMBER.fullmatch(text):
            raise invalid_parameter("maxresults", text)
        if int(text) < 1:
            raise out_of_range("maxresults", text, 1, LIST_LIMIT_DEFAULT)
        return min(int(text), LIST_LIMIT_DEFAULT)


async def whole_body(request: Request, bytes_max: int) -> bytes:
    """Return a body that must be short, also when it streams."""
    if request.upload is None:
        body = request.body
    else:
        pieces: list[bytes] = []
        size = 0
        async for piece in request.upload:
            size += len(piece)
            if size > bytes_max:
                break
            pieces.append(piece)
        if size > bytes_max:
            raise _too_long(bytes_max)
        body = b"".join(pieces)
    if len(body) > bytes_max:
        raise _too_long(bytes_max)
    return body


def _too_long(bytes_max: int) -> LimitExceededError:
    return LimitExceededError(
        "RequestBodyTooLarge",
        "The request body is too large and exceeds the maximum permissible limit.",
        facts={"elements": [("MaxLimit", str(bytes_max))]},
    )


def not_implemented(hint: str) -> NotSupportedError:
    """Return the refusal of what is not built."""
    return NotSupportedError(
        "NotImplemented",
        "The requested operation is not implemented on the specified resource.",
        hint=hint,
    )
