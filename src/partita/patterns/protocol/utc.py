"""Times in UTC: the current time of a clock, and times given by callers. Pure."""

from datetime import UTC, datetime, timedelta

from partita.errors import InvalidPropertyError
from partita.ticks import Clock

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc_now(clock: Clock) -> datetime:
    return EPOCH + timedelta(microseconds=clock.ticks() // 10)


def in_utc(moment: datetime, what: str) -> datetime:
    """Return a time in UTC; raise if it has no time zone. `what` names it in the error."""
    if moment.utcoffset() is None:
        raise InvalidPropertyError(
            "NaiveDatetime",
            f"{what} has no time zone.",
            hint="Add one: datetime(..., tzinfo=UTC).",
        )
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidPropertyError(
            "OutOfRangeInput", f"{what} is outside the years 1 to 9999 in UTC."
        ) from error
