"""A sample value for every type of field, to plan a query without its values."""

import enum
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, get_args, get_origin
from uuid import UUID

from partita.errors import UsageError
from partita.patterns.fields.fields import Field
from partita.patterns.planning.columns import plain_type
from partita.patterns.protocol.values import Int32

_SAMPLES: dict[type, Any] = {
    bool: True,
    int: 1,
    Int32: Int32(1),
    float: 1.0,
    str: "a",
    bytes: b"a",
    UUID: UUID(int=1),
    Decimal: Decimal(1),
    datetime: datetime(2014, 7, 31, 18, tzinfo=UTC),
    date: date(2014, 7, 31),
    time: time(18),
    timedelta: timedelta(hours=1),
}


def sample(field: Field) -> Any:
    """Return a valid value of a field."""
    kind = plain_type(field)
    if get_origin(kind) is Literal:
        return next(value for value in get_args(kind) if value is not None)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind))
    for each in kind.__mro__ if isinstance(kind, type) else ():
        if each in _SAMPLES:
            return _SAMPLES[each]
    raise UsageError(
        "NotFilterable",
        f"{field.name!r} cannot be compared: its type has no order and no single value.",
        facts={"field": field.name},
        hint="Use a field with a text, a number, a time, an Enum or a Literal.",
    )
