"""The operations endpoint as `partita top` asks it: HTTP, the token, readings."""

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from partita.cli.operations import TOKEN_FILE, read_token
from partita.cli.top.readings import HOT_RANGES_MAX, HotRange, Reading, hot_ranges, reading_of
from partita.errors import ConfigurationError, UnavailableError

DEFAULT_FOLDER = Path("partita-data")
"""Where `partita serve` keeps its data."""
ASK_SECONDS_MAX = 10.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024
HOT_TABLES_MAX = 3
"""Tables whose ranges are compared."""
HOT_SECONDS = 120
SLOW_SHOWN_MAX = 20


class Endpoint:
    """One operations endpoint; its methods block."""

    def __init__(self, url: str, token: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigurationError(
                "Configuration",
                f"{url!r} is not the address of an operations endpoint.",
                hint="Give --metrics http://HOST:PORT, as `partita serve` prints it.",
            )
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigurationError(
                "Configuration",
                "The token has characters that a token cannot have.",
                hint="Give the content of operations.token.",
            )
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._token = token
        self._before: dict[str, Any] | None = None

    def start(self) -> None:
        """Take the first answer, from which the first rates are computed."""
        self._before = self.ask("/api/v1/now")

    def read(self) -> Reading:
        """Return what happened since the last answer."""
        assert self._before is not None, "start() comes first"
        now = self.ask("/api/v1/now")
        slow = self.ask(f"/api/v1/slow?limit={SLOW_SHOWN_MAX}")["slow"]
        before, self._before = self._before, now
        return reading_of(before, now, self._hot(now["accounts"], now["at"]), slow)

    def _hot(self, accounts: list[str], at: float) -> list[HotRange]:
        """Return the hottest ranges of all accounts; none if heat is not measured."""
        found: list[HotRange] = []
        for account in accounts:
            name = urllib.parse.quote(account)
            path = f"/api/v1/heat?account={name}&from={int(at) - HOT_SECONDS}"
            overview = self._find(path)
            tables = [] if overview is None else overview["tables"][:HOT_TABLES_MAX]
            for table in (each["name"] for each in tables if each["name"]):
                answer = self._find(f"{path}&table={urllib.parse.quote(table)}")
                found += [] if answer is None else hot_ranges(table, answer)
        return sorted(found, key=lambda each: -(each.reads + each.writes))[:HOT_RANGES_MAX]

    def _find(self, path: str) -> Any:
        """Ask; None if the server does not have this."""
        try:
            return self.ask(path)
        except ConfigurationError:
            return None

    def ask(self, path: str) -> Any:
        """Return the answer of a path."""
        headers = {"Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(self._url + path, headers=headers)  # noqa: S310 - checked
        try:
            with urllib.request.urlopen(request, timeout=ASK_SECONDS_MAX) as answer:  # noqa: S310
                return json.loads(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(self._url, error.code) from error
        except json.JSONDecodeError as error:
            raise _unreadable(self._url, "its answer is not JSON") from error
        except OSError as error:
            raise _unreadable(self._url, _reason_of(error)) from error


def _reason_of(error: OSError) -> str:
    """Return why no answer came, as the operating system says it."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return (isinstance(cause, OSError) and cause.strerror) or str(cause)


def _unreadable(url: str, reason: str) -> UnavailableError:
    return UnavailableError(
        "EndpointUnreachable",
        f"The operations endpoint {url} cannot be read: {reason}.",
        hint="Start the server with --metrics-port, and give --metrics URL.",
    )


def _refused(url: str, status: int) -> ConfigurationError:
    if status == 401:
        message = f"The operations endpoint {url} needs its token."
        hint = "Give --path DIR (the folder of the data) or --token-file FILE."
    else:
        message = f"The operations endpoint {url} answered {status}."
        hint = "Check --metrics: it must be the address of --metrics-port, not of a service."
    return ConfigurationError("Configuration", message, hint=hint)


def find_token(token: str | None, token_file: str | None, path: str | None) -> str:
    """Return the token from where it was given; empty if it was not given."""
    if token:
        return token.strip()
    default = DEFAULT_FOLDER / TOKEN_FILE
    named = token_file or (None if path is None else Path(path).expanduser() / TOKEN_FILE)
    if named is None and default.exists():
        named = default
    if named is None:
        return ""
    try:
        return read_token(Path(named).expanduser())
    except OSError as error:
        raise ConfigurationError(
            "Configuration",
            f"The token file {named} cannot be read: {error.strerror or error}.",
            hint="Start the server with --metrics-port, which creates it, or give --token-file.",
        ) from error
