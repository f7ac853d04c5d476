"""JSON from an untrusted source: every defect raises the same error."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decode(text: str | bytes, kind: type[T]) -> T:
    """Decode a value of a type; the only exception is msgspec.DecodeError.

    >>> decode("[1, 2]", list[int])
    [1, 2]
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (UnicodeError, RecursionError) as error:  # a lone surrogate; a thousand brackets
        message = "JSON is malformed: not valid Unicode, or nested too deeply."
        raise msgspec.DecodeError(message) from error
