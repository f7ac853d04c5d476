"""JSON that a stranger may have written: whatever is wrong with it is one kind of error."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decode(text: str | bytes, kind: type[T]) -> T:
    """Read a value of a type; raises msgspec.DecodeError and nothing else.

    >>> decode("[1, 2]", list[int])
    [1, 2]
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (UnicodeError, RecursionError) as error:  # half of a surrogate pair; a thousand brackets
        message = "JSON is malformed: it is no text, or too deep."
        raise msgspec.DecodeError(message) from error
