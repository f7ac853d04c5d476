"""The rules of queue names. Pure."""

import re

from partita.errors import InvalidKeyError
from partita.queues import limits
from partita.refusals import invalid_name, invalid_name_length

_NAME = re.compile(r"[a-z0-9](?:-?[a-z0-9])*")


def check_queue_name(name: str) -> str:
    """Return the name, or raise InvalidKeyError.

    >>> check_queue_name("work-items")
    'work-items'
    """
    lowest, highest = limits.QUEUE_NAME_CHARACTERS_MIN, limits.QUEUE_NAME_CHARACTERS_MAX
    if not lowest <= len(name) <= highest:
        raise invalid_name_length(
            InvalidKeyError, f"Use {lowest} to {highest} characters in a queue name."
        )
    if not _NAME.fullmatch(name):
        raise invalid_name(InvalidKeyError, "Use a-z, 0-9 and single dashes between them.")
    return name
