"""Checks of property values before they are sent, shared by the SDK and the direct port. Pure."""

from datetime import UTC, datetime

from partita.errors import InvalidPropertyError
from partita.patterns.protocol.values import Instant, Int32
from partita.tables.edm import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN


def text_of_moment(name: str, moment: datetime) -> str:
    """Format a time as the service stores it; an Instant keeps the text it was read from."""
    if isinstance(moment, Instant) and hasattr(moment, "text"):
        return moment.text
    if moment.tzinfo is None:
        raise InvalidPropertyError(
            "NaiveDatetime",
            f"The datetime in {name!r} has no time zone.",
            facts={"property": name},
            hint="Add one: datetime(..., tzinfo=UTC).",
        )
    try:
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError as error:
        raise InvalidPropertyError(
            "PropertyOutOfRange",
            f"The datetime in {name!r} is not within the years 1601 to 9999.",
            facts={"property": name},
        ) from error


def check_integer(name: str, value: int) -> None:
    """Raise if an integer does not fit into its stored type."""
    is_short = isinstance(value, Int32)
    lower, upper = (INT32_MIN, INT32_MAX) if is_short else (INT64_MIN, INT64_MAX)
    if not lower <= value <= upper:
        raise InvalidPropertyError(
            "PropertyOutOfRange",
            f"The number in {name!r} does not fit in {32 if is_short else 64} bits.",
            facts={"property": name},
            hint="Store it as a Decimal or as text.",
        )
