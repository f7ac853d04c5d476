"""Where a command line of `partita patterns` holds keys, and how they stay out of messages."""

import re
from collections.abc import Iterable
from urllib.parse import unquote

from partita.errors import PartitaError

CONNECT_VARIABLE = "PARTITA_CONNECT"
"""Says where the tables are: unlike a flag, a variable is not in the list of processes."""

_SECRET = re.compile(
    r"(?i)(?:AccountKey|SharedAccessSignature)\s*=\s*([^;]+)|[?&]?\bsig=([^&;\s]+)"
)


def clear(error: PartitaError, texts: Iterable[str]) -> PartitaError:
    """Take the keys and signatures of connection strings out of an error."""
    hidden = sorted(_secrets(texts), key=len, reverse=True)

    def cleared(text: str) -> str:
        for secret in hidden:
            text = text.replace(secret, "***")
        return text

    error.message, error.hint = cleared(error.message), cleared(error.hint)
    error.facts = {
        name: cleared(value) if isinstance(value, str) else value
        for name, value in error.facts.items()
    }
    return error


def _secrets(texts: Iterable[str]) -> set[str]:
    found = {part.strip() for text in texts for pair in _SECRET.findall(text) for part in pair}
    return {each for part in found if part for each in (part, unquote(part))}
