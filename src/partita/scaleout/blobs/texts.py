"""Names that PostgreSQL can store: without U+0000, and short enough for an index. Pure.

No stored name breaks these rules, so a name that does is not found.
"""

from partita.errors import InvalidRequestError, LimitExceededError
from partita.refusals import invalid_name_length

NAME_BYTES_MAX = 2400
"""The longest name of a blob, in UTF-8: a row of an index has at most 2,704 bytes, and that of a
block also contains its id."""

_NUL = "\0"
UNUSED_NAME = ""
"""The name that no blob and no container has."""


def findable(name: str) -> str:
    """Return the name to look up: `UNUSED_NAME` if it cannot be stored."""
    return name if _NUL not in name and is_text(name) else UNUSED_NAME


def check_storable(name: str) -> None:
    """Refuse a name that cannot be stored."""
    if _NUL in name:
        raise InvalidRequestError(
            "InvalidUri",
            "The blob name contains the character U+0000.",
            hint="A store on PostgreSQL cannot keep it.",
        )
    if len(name.encode()) > NAME_BYTES_MAX:
        raise invalid_name_length(
            LimitExceededError,
            f"On PostgreSQL, use at most {NAME_BYTES_MAX:,} bytes of UTF-8 in a blob name.",
        )


def first_from(bound: str) -> str:
    r"""Return a bound with the same names from it on, without U+0000.

    >>> first_from("a\0b")
    'a\x01'
    """
    stem, nul, _ = bound.partition(_NUL)
    return stem + "\x01" if nul else stem


def is_text(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
