"""Range headers of the blob service. Pure.

`x-ms-range` takes precedence over `Range`. A range that is malformed, counts from the end or is
one of several is ignored, as by the service: the answer is then the whole blob.
"""

import re
from collections.abc import Mapping

import msgspec

_RANGE = re.compile(r"bytes=(\d{1,19})-(\d{0,19})", re.ASCII)


class ByteRange(msgspec.Struct, frozen=True, gc=False):
    """The bytes from `first` to `last`, both included; None: to the end."""

    first: int
    last: int | None

    @property
    def length(self) -> int | None:
        return None if self.last is None else self.last - self.first + 1


def range_of(headers: Mapping[str, str]) -> ByteRange | None:
    """Find the requested range."""
    text = headers.get("x-ms-range") or headers.get("range")
    return None if text is None else parse_range(text)


def parse_range(text: str) -> ByteRange | None:
    """Parse `bytes=a-b` or `bytes=a-`; None for anything else."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return None
    first = int(match[1])
    last = int(match[2]) if match[2] else None
    if last is not None and last < first:
        return None
    return ByteRange(first, last)
