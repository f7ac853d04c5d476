r"""The names of log blobs and the format of a line. Pure.

The naming scheme is the guide's (Log data anti-pattern): `queue/2014/07/31/1800/000001.log` is
the first blob with lines of the hour from 18:00 UTC. A blob is lines in UTF-8, each ended by LF:

    #Writer: 6f1c... 1        the first line: the writer of the blob, and the number of its blob
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
"""The size of one stored line with its time."""
NUMBER_MAX = 999_999
"""Six digits, so that names sort as numbers."""
PREFIX_CHARACTERS_MAX = 900
"""A blob name has 1,024 characters."""

_DAY = timedelta(days=1)
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": _DAY}
_YEARS = ((1, 1000), (2, 100), (3, 10), (5, 1))
"""How many characters of `2014/` are the prefix of how many years."""
_ROLL = re.compile(r"([1-9]\d{0,3})([mhd])", re.ASCII)
_NAME = re.compile(r"(\d{4})/(\d\d)/(\d\d)/(\d\d)(\d\d)/(\d{6})\.log", re.ASCII)
_TIME_CHARACTERS = len("2014-07-31T18:04:05.000000Z")
_ESCAPED = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}
_ESCAPE = re.compile(rb"\\.", re.DOTALL)


class LogPlace(msgspec.Struct, frozen=True):
    """A container, a prefix in it, and the period of one folder.

    `roll` is a number of minutes, hours or days that divides the day: "15m", "1h", "1d". Writers
    and readers of one log must use the same.
    """

    container: str
    prefix: str
    roll: str = "1h"

    def __post_init__(self) -> None:
        match = _ROLL.fullmatch(self.roll)
        if match is None or _DAY % (int(match[1]) * _UNITS[match[2]]):
            raise ConfigurationError(
                "InvalidRoll",
                f"{self.roll!r} is not a valid period of a log.",
                facts={"roll": self.roll},
                hint='Use minutes or hours that divide the day: "15m", "1h", "1d".',
            )
        parts = self.prefix.split("/")
        if not all(parts) or len(self.prefix) > PREFIX_CHARACTERS_MAX:
            raise ConfigurationError(
                "InvalidLogPrefix",
                "The prefix of a log is empty, has an empty part, or is too long.",
                facts={"prefix": self.prefix[:80], "characters_max": PREFIX_CHARACTERS_MAX},
                hint='Use one or more names separated by slashes: "queue".',
            )

    @property
    def length(self) -> timedelta:
        match = _ROLL.fullmatch(self.roll)
        assert match is not None, "checked when it was made"
        return int(match[1]) * _UNITS[match[2]]

    def period_of(self, moment: datetime) -> datetime:
        """Return the start of the period that contains a moment."""
        day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        return day + (moment - day) // self.length * self.length

    def folder(self, period: datetime) -> str:
        """Return the prefix of the names of a period's blobs."""
        return f"{self._day(period)}{period:%H%M}/"

    def name(self, period: datetime, number: int) -> str:
        if number > NUMBER_MAX:
            raise LimitExceededError(
                "LogNumbersUsedUp",
                f"A period of the log already has {NUMBER_MAX:,} blobs.",
                facts={"folder": self.folder(period), "number_max": NUMBER_MAX},
                hint="Use a shorter roll=, or another prefix for some writers.",
            )
        return f"{self.folder(period)}{number:06d}.log"

    def number_of(self, name: str) -> int | None:
        """Return the number in the name of a log blob; None for other names."""
        match = _NAME.fullmatch(name.removeprefix(f"{self.prefix}/"))
        return None if match is None else int(match[6])

    def folders_between(self, start: datetime, end: datetime) -> Iterator[str]:
        """Yield the folders of all periods from `start` to `end`, in the order of time.

        A day, month, year, decade and so on that is completely in the range is one prefix, so that
        a long range takes few list requests.
        """
        period = self.period_of(start)
        while period <= end:
            folder, following = self._largest(period, end)
            yield folder
            if following is None:
                return
            period = following

    def _largest(self, period: datetime, end: datetime) -> tuple[str, datetime | None]:
        """Return the largest folder from a period on that ends by `end`, and the next period."""
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
    """Format a moment of UTC in 27 characters that sort like moments."""
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def encode_line(at: datetime, text: str | bytes) -> bytes:
    """Return the stored form of a line, including LF."""
    raw = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    raw = raw.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    line = b"%s %s\n" % (time_text(at).encode(), raw)
    if len(line) > LINE_BYTES_MAX:
        raise LimitExceededError(
            "LogLineTooLong",
            f"The log line has {len(line):,} bytes; the limit is {LINE_BYTES_MAX:,}.",
            facts={"bytes": len(line), "line_bytes_max": LINE_BYTES_MAX},
            hint="Store the large part in a blob and its name in the line.",
        )
    return line


def decode_line(line: bytes) -> tuple[datetime, bytes]:
    """Return the time and the text of a stored line without its LF."""
    try:
        at = datetime.fromisoformat(line[:_TIME_CHARACTERS].decode("ascii"))
    except ValueError:
        at = None
    if at is None or at.tzinfo is None or line[_TIME_CHARACTERS : _TIME_CHARACTERS + 1] != b" ":
        raise DamageError(
            "LogLineUnreadable",
            "A line of a log does not begin with its time.",
            hint="Another program wrote to the blob.",
        )
    text = line[_TIME_CHARACTERS + 1 :]
    if b"\\" in text:
        text = _ESCAPE.sub(lambda found: _ESCAPED.get(found[0], found[0]), text)
    return at, text
