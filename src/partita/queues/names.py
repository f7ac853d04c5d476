"""The rules of queue names. Pure."""

import re

from partita.errors import InvalidKeyError
from partita.queues import limits

_NAME = re.compile(r"[a-z0-9](?:-?[a-z0-9])*")


def check_queue_name(name: str) -> str:
    """Return the name, or raise InvalidKeyError.

    >>> check_queue_name("work-items")
    'work-items'
    """
    lowest, highest = limits.QUEUE_NAME_CHARACTERS_MIN, limits.QUEUE_NAME_CHARACTERS_MAX
    if not lowest <= len(name) <= highest:
        raise InvalidKeyError(
            "OutOfRangeInput",
            "The specified resource name length is not within the permissible limits.",
            hint=f"The name of a queue has {lowest} to {highest} characters.",
        )
    if not _NAME.fullmatch(name):
        raise InvalidKeyError(
            "InvalidResourceName",
            "The specifed resource name contains invalid characters.",
            hint="A queue is named with a-z, 0-9 and single '-' between them.",
        )
    return name
