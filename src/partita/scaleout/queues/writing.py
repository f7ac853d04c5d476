"""One statement that writes, repeated where PostgreSQL asks for it."""

from partita.scaleout.connections.link import Link, Rows
from partita.scaleout.connections.session import DriverError, may_repeat, translated

WRITE_ATTEMPTS_MAX = 5
"""Deadlocks and unique violations between concurrent statements: both changed nothing."""


async def write(link: Link, statement: str, *values: object) -> Rows:
    """Run one statement until it is durable; raise one of our errors."""
    for attempt in range(1, WRITE_ATTEMPTS_MAX + 1):
        try:
            return await link.write(statement, *values)
        except DriverError as error:
            if attempt == WRITE_ATTEMPTS_MAX or not may_repeat(error):
                raise translated(error) from error
    raise AssertionError
