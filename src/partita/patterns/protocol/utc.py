"""Moments in UTC: what the clock says, and what callers hand in. Pure."""

from datetime import UTC, datetime, timedelta

from partita.errors import InvalidPropertyError
from partita.ticks import Clock

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc_now(clock: Clock) -> datetime:
    return EPOCH + timedelta(microseconds=clock.ticks() // 10)


def in_utc(moment: datetime, what: str) -> datetime:
    """Return a moment in UTC; one without a zone is refused. `what` names it in the error."""
    if moment.utcoffset() is None:
        raise InvalidPropertyError(
            "NaiveDatetime",
            f"{what} names no time zone.",
            hint="Give it one: datetime(..., tzinfo=UTC).",
        )
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidPropertyError(
            "OutOfRangeInput", f"{what} is outside of the years 1 to 9999 in UTC."
        ) from error
