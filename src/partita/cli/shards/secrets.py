"""Where a command line of `partita shards` holds passwords, and how they stay out of messages."""

import re
from collections.abc import Iterable
from urllib.parse import unquote

from partita.errors import PartitaError

CATALOG_VARIABLE = "PARTITA_CATALOG"
"""Names the catalog: unlike a flag, a variable is not in the list of processes."""

_PASSWORD = re.compile(r"://[^\s@/:]*:([^\s@]*)@|[?&](?:password|passwd|pwd)=([^&\s]*)")
_USER = re.compile(r'\buser "[^"]*"')


def clear(error: PartitaError, urls: Iterable[str]) -> PartitaError:
    """Take the passwords of the URLs, and the users that servers name, out of an error."""
    hidden = sorted(_passwords(urls), key=len, reverse=True)

    def cleared(text: str) -> str:
        for password in hidden:
            # As a word of its own: a password of one letter must not eat the message.
            text = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", "***", text)
        return _USER.sub("the user", text)

    error.message, error.hint = cleared(error.message), cleared(error.hint)
    error.facts = {
        name: cleared(value) if isinstance(value, str) else value
        for name, value in error.facts.items()
    }
    return error


def _passwords(urls: Iterable[str]) -> set[str]:
    found = {part for url in urls for pair in _PASSWORD.findall(url) for part in pair if part}
    return found | {unquote(part) for part in found}
