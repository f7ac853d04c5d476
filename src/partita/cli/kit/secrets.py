"""Passwords, keys and signatures on a command line, and how they stay out of messages."""

import re
from collections.abc import Iterable
from urllib.parse import unquote

from partita.errors import PartitaError

_PASSWORD = re.compile(r"://[^\s@/:]*:([^\s@]*)@|[?&](?:password|passwd|pwd)=([^&\s]*)")
_KEY = re.compile(r"(?i)(?:AccountKey|SharedAccessSignature)\s*=\s*([^;]+)|[?&]?\bsig=([^&;\s]+)")
_USER = re.compile(r'\buser "[^"]*"')
_LOGIN = re.compile(
    r"(?<=://)[^\s@/]*(:[^\s@]*)?@|(?<=[?&])(password|passwd|pwd)=[^&\s]*"
    r"|(?i:(?<=AccountKey=)|(?<=SharedAccessSignature=)|(?<=\bsig=))(?!\.{3}[\s;'\"])[^\s;'\"]+"
)
"""Logins of a URL, and keys of a connection string."""


def without_logins(text: str) -> str:
    """Remove logins and keys from what is printed about a command line."""
    return _LOGIN.sub("", text)


def clear(error: PartitaError, texts: Iterable[str]) -> PartitaError:
    """Remove the secrets of the given texts, and users that servers name, from an error."""
    given = list(texts)
    passwords, keys = _found(_PASSWORD, given), _found(_KEY, given)

    def cleared(text: str) -> str:
        for key in keys:
            text = text.replace(key, "***")
        for password in passwords:
            # As a word of its own: a password of one letter must not eat the message.
            text = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", "***", text)
        return _USER.sub("the user", text)

    error.message, error.hint = cleared(error.message), cleared(error.hint)
    error.facts = {
        name: cleared(value) if isinstance(value, str) else value
        for name, value in error.facts.items()
    }
    return error


def _found(pattern: re.Pattern[str], texts: Iterable[str]) -> list[str]:
    """Return what the groups of a pattern match, the longest first."""
    parts = {part.strip() for text in texts for pair in pattern.findall(text) for part in pair}
    found = {each for part in parts if part for each in (part, unquote(part))}
    return sorted(found, key=len, reverse=True)
