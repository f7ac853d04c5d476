r"""Where log lines lie and how one is written. Pure.

The naming scheme is the guide's (Log data anti-pattern): the blob
`queue/2014/07/31/1800/000001.log` is the first of the lines whose times lie in the hour from
18:00 UTC. A blob is lines in UTF-8, each ended by LF:

    #Writer: 6f1c... 1        the first line, once: which writer made the blob, and its count
    2014-07-31T18:04:05.000000Z text, with \\ for a backslash, \n and \r for ends of lines
"""

import re
from collections.abc import Iterator
from datetime import MAXYEAR, UTC, datetime, timedelta

import msgspec

from partita.errors import (
    ConfigurationError,
    DamageError,
    LimitExceededError,
)

LINE_BYTES_MAX = 1024 * 1024
"""One line with its time, as it is stored."""
NUMBER_MAX = 999_999
"""Six digits, so that names sort as numbers."""
PREFIX_CHARACTERS_MAX = 900
"""A blob name has 1,024 characters."""

_DAY = timedelta(days=1)
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": _DAY}
_YEARS = ((1, 1000), (2, 100), (3, 10), (5, 1))
"""How many characters of `2014/` name so many years."""
_ROLL = re.compile(r"([1-9]\d{0,3})([mhd])", re.ASCII)
_NAME = re.compile(r"(\d{4})/(\d\d)/(\d\d)/(\d\d)(\d\d)/(\d{6})\.log", re.ASCII)
_TIME_CHARACTERS = len("2014-07-31T18:04:05.000000Z")
_ESCAPED = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}
_ESCAPE = re.compile(rb"\\.", re.DOTALL)


class LogPlace(msgspec.Struct, frozen=True):
    """A container, a prefix in it, and the length of time that one folder stands for.

    `roll` is a number of minutes, hours or a day that divides the day: "15m", "1h", "1d".
    Writers and readers of one log must have the same.
    """

    container: str
    prefix: str
    roll: str = "1h"

    def __post_init__(self) -> None:
        match = _ROLL.fullmatch(self.roll)
        if match is None or _DAY % (int(match[1]) * _UNITS[match[2]]):
            raise ConfigurationError(
                "InvalidRoll",
                f"A log cannot roll every {self.roll!r}.",
                facts={"roll": self.roll},
                hint='Give minutes or hours that divide the day: "15m", "1h", "1d".',
            )
        parts = self.prefix.split("/")
        if not all(parts) or len(self.prefix) > PREFIX_CHARACTERS_MAX:
            raise ConfigurationError(
                "InvalidLogPrefix",
                "The prefix of a log is empty, has an empty part, or is too long.",
                facts={"prefix": self.prefix[:80], "characters_max": PREFIX_CHARACTERS_MAX},
                hint='Give one or more names with a slash between them: "queue".',
            )

    @property
    def length(self) -> timedelta:
        match = _ROLL.fullmatch(self.roll)
        assert match is not None, "checked when it was made"
        return int(match[1]) * _UNITS[match[2]]

    def period_of(self, moment: datetime) -> datetime:
        """Return when the period began in which a moment lies."""
        day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        return day + (moment - day) // self.length * self.length

    def folder(self, period: datetime) -> str:
        """Return the prefix of the names of a period's blobs."""
        return f"{self._day(period)}{period:%H%M}/"

    def name(self, period: datetime, number: int) -> str:
        if number > NUMBER_MAX:
            raise LimitExceededError(
                "LogNumbersUsedUp",
                f"A period of a log has {NUMBER_MAX:,} blobs, and a name for no more.",
                facts={"folder": self.folder(period), "number_max": NUMBER_MAX},
                hint="Roll more often, or let fewer writers share the prefix.",
            )
        return f"{self.folder(period)}{number:06d}.log"

    def number_of(self, name: str) -> int | None:
        """Return the number in a name; None if it is the name of something else."""
        match = _NAME.fullmatch(name.removeprefix(f"{self.prefix}/"))
        return None if match is None else int(match[6])

    def folders_between(self, start: datetime, end: datetime) -> Iterator[str]:
        """Name the folders of all periods from `start` to `end`, in the order of time.

        A day, month, year, decade and so on that lies wholly between them is one prefix, so
        that a long range takes few lists.
        """
        period = self.period_of(start)
        while period <= end:
            folder, following = self._largest(period, end)
            yield folder
            if following is None:
                return
            period = following

    def _largest(self, period: datetime, end: datetime) -> tuple[str, datetime | None]:
        """Return the largest folder that begins with a period and ends by `end`, and the next."""
        year, month, day = period.year, period.month, period.day
        is_midnight = period.hour == period.minute == 0
        if is_midnight and day == 1:
            for digits, years in _YEARS if month == 1 else ():
                following = _first_of(year + years, 1)
                if year % years == 0 and following is not None and following <= end:
                    return f"{self.prefix}/{f'{year:04d}/'[:digits]}", following
            next_month = _first_of(year + month // 12, month % 12 + 1)
            if next_month is not None and next_month <= end:
                return f"{self.prefix}/{year:04d}/{month:02d}/", next_month
        if is_midnight and (next_day := _plus(period, _DAY)) is not None and next_day <= end:
            return self._day(period), next_day
        return self.folder(period), _plus(period, self.length)

    def _day(self, period: datetime) -> str:
        return f"{self.prefix}/{period.year:04d}/{period:%m/%d}/"


def _first_of(year: int, month: int) -> datetime | None:
    return datetime(year, month, 1, tzinfo=UTC) if year <= MAXYEAR else None


def _plus(moment: datetime, length: timedelta) -> datetime | None:
    try:
        return moment + length
    except OverflowError:
        return None  # the end of the year 9999


def time_text(moment: datetime) -> str:
    """Print a moment of UTC in 27 characters that sort as moments do."""
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def encode_line(at: datetime, text: str | bytes) -> bytes:
    """Return a line as it is stored, LF included."""
    raw = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    raw = raw.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    line = b"%s %s\n" % (time_text(at).encode(), raw)
    if len(line) > LINE_BYTES_MAX:
        raise LimitExceededError(
            "LogLineTooLong",
            f"A log line takes {len(line):,} bytes; it may take {LINE_BYTES_MAX:,}.",
            facts={"bytes": len(line), "line_bytes_max": LINE_BYTES_MAX},
            hint="Put the large part into a blob of its own and its name into the line.",
        )
    return line


def decode_line(line: bytes) -> tuple[datetime, bytes]:
    """Return the time and the text of a stored line, given without its LF."""
    try:
        at = datetime.fromisoformat(line[:_TIME_CHARACTERS].decode("ascii"))
    except ValueError:
        at = None
    if at is None or at.tzinfo is None or line[_TIME_CHARACTERS : _TIME_CHARACTERS + 1] != b" ":
        raise DamageError(
            "LogLineUnreadable",
            "A line of a log does not begin with its time.",
            hint="Something else than a log writer wrote into the blob.",
        )
    text = line[_TIME_CHARACTERS + 1 :]
    if b"\\" in text:
        text = _ESCAPE.sub(lambda found: _ESCAPED.get(found[0], found[0]), text)
    return at, text
