"""What both ways to the store, SDK and direct, ask of a value before it is sent. Pure."""

from datetime import UTC, datetime

from partita.errors import InvalidPropertyError
from partita.patterns.protocol.values import Instant, Int32
from partita.tables.edm import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN


def text_of_moment(name: str, moment: datetime) -> str:
    """Print a moment as the service stores it; one that was read goes back as it came."""
    if isinstance(moment, Instant) and hasattr(moment, "text"):
        return moment.text
    if moment.tzinfo is None:
        raise InvalidPropertyError(
            "NaiveDatetime",
            f"The moment in {name!r} has no zone, so that it names none.",
            facts={"property": name},
            hint="Make it with a zone: datetime(..., tzinfo=UTC).",
        )
    try:
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError as error:
        raise InvalidPropertyError(
            "PropertyOutOfRange",
            f"The moment in {name!r} is not within 1601 to 9999.",
            facts={"property": name},
        ) from error


def check_integer(name: str, value: int) -> None:
    """Raise for an integer that its stored type cannot hold."""
    is_short = isinstance(value, Int32)
    lower, upper = (INT32_MIN, INT32_MAX) if is_short else (INT64_MIN, INT64_MAX)
    if not lower <= value <= upper:
        raise InvalidPropertyError(
            "PropertyOutOfRange",
            f"The number in {name!r} does not fit in {32 if is_short else 64} bits.",
            facts={"property": name},
            hint="Keep it as a Decimal or as text.",
        )
