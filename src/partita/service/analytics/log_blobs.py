"""The blobs of the log: names, metadata, and the lines that are gathered for the next one. Pure.

    <blob|queue|table>/YYYY/MM/DD/hh00/NNNNNN.log    by the hour in which the requests ended

The number is the first that is free: several front ends write the logs of the same hour.
"""

from typing import Final

from partita.service.analytics.log_lines import TYPES
from partita.tables import edm
from partita.ticks import TICKS_PER_SECOND

LOG_BYTES_MAX: Final = 4 * 1024 * 1024
"""A log of this size is written at once."""
LOG_SECONDS_MAX: Final = 300
"""How long a line waits until it is written."""
WAITING_BYTES_MAX: Final = 4 * LOG_BYTES_MAX
"""Lines of one service of an account that wait because the store is slow; more are dropped."""
TICKS_PER_HOUR: Final = 3600 * TICKS_PER_SECOND


class Log:
    """The lines of one hour that the next log will have."""

    def __init__(self, hour: int, version: str, now: float) -> None:
        self.hour = hour
        """Its start in ticks."""
        self.version = version
        """The format of all its lines."""
        self.begun = now
        """When it got its first line, in monotonic seconds."""
        self.lines: list[bytes] = []
        self.size = 0
        self.types: set[str] = set()
        self.first = self.last = 0
        """When the first and the last request ended, in ticks."""

    def add(self, line: bytes, type_: str, ended: int) -> None:
        self.first = min(self.first, ended) if self.lines else ended
        self.last = max(self.last, ended)
        self.lines.append(line)
        self.size += len(line)
        self.types.add(type_)

    def metadata(self) -> dict[str, str]:
        return {
            "LogType": ",".join(each for each in TYPES if each in self.types),
            "StartTime": edm.text_of_second(self.first // TICKS_PER_SECOND) + "Z",
            "EndTime": edm.text_of_second(self.last // TICKS_PER_SECOND) + "Z",
            "LogVersion": self.version,
        }


def hour_of(ticks: int) -> int:
    """Return the start of the hour."""
    return ticks - ticks % TICKS_PER_HOUR


def folder_of(service: str, ticks: int) -> str:
    """Return the start of the names of the logs of an hour.

    >>> folder_of("blob", 13_121_353_060_000_000)
    'blob/2011/07/31/1800/'
    """
    day, _, time = edm.text_of_second(ticks // TICKS_PER_SECOND).partition("T")
    return f"{service}/{day.replace('-', '/')}/{time[:2]}00/"


def name_of(folder: str, number: int) -> str:
    return f"{folder}{number:06}.log"


def number_after(name: str) -> int:
    """Return the number after that of a log; 0 if it is not the name of one.

    >>> number_after("blob/2011/07/31/1800/000001.log")
    2
    """
    digits = name.rpartition("/")[2].removesuffix(".log")
    return int(digits) + 1 if digits.isascii() and digits.isdecimal() else 0
