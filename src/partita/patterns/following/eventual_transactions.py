"""Eventually consistent transactions: named, idempotent steps that a worker runs to the end.

A transaction is started by a message, or in the same group as a change (atomically with it). The
worker runs the steps in order; if it stops, another worker runs them again from the first. There is
no isolation: other readers see the work between two steps.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from partita.errors import DefinitionError, UnknownTypeError, UsageError
from partita.patterns.writing.context import Context

F = TypeVar("F", bound=Callable[..., Any])

Step = Callable[..., Any]
"""`step(db, arguments)`, plain or asynchronous. Running it twice must have the effect of once."""
_IDEMPOTENT = "__partita_idempotent__"


class Started(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The message that starts a transaction."""

    transaction: str
    arguments: str
    """JSON."""
    waiting_since: int = 0
    """Ticks at which a worker first left it to a newer program; 0 if none did."""


class EventualTransaction(msgspec.Struct, frozen=True):
    """Named steps. Made by `eventual`."""

    name: str
    steps: tuple[Step, ...]


def idempotent(step: F) -> F:
    """Declare that running a step twice, or again, has the same effect as running it once.

    >>> @idempotent
    ... async def remove(db, arguments):
    ...     await db.table(Employee).delete_if_exists(**arguments)
    """
    setattr(step, _IDEMPOTENT, True)
    return step


def eventual(name: str, *steps: Step) -> EventualTransaction:
    """Declare an eventually consistent transaction of steps marked `@idempotent`."""
    if not name or not steps:
        raise DefinitionError(
            "TransactionRefused",
            "A transaction needs a name and at least one step.",
            facts={"transaction": name},
        )
    for step in steps:
        if not getattr(step, _IDEMPOTENT, False):
            raise DefinitionError(
                "StepNotIdempotent",
                f"{getattr(step, '__name__', step)!r} is not declared idempotent.",
                facts={"transaction": name},
                hint="A worker may run it twice: use upsert and delete_if_exists, and mark it "
                "@idempotent.",
            )
    return EventualTransaction(name, steps)


def start_message(transaction: EventualTransaction, arguments: dict[str, Any]) -> Started:
    """Return the message that starts a transaction. Arguments must be JSON values."""
    try:
        text = msgspec.json.encode(arguments).decode()
    except TypeError as error:
        raise UsageError(
            "ArgumentsRefused",
            f"The arguments of {transaction.name!r} cannot be stored as JSON: {error}.",
            hint="Pass keys and plain values, and read entities in the steps.",
        ) from error
    return Started(transaction.name, text)


def find_transaction(context: Context, name: str) -> EventualTransaction:
    found = context.transactions.get(name)
    if not isinstance(found, EventualTransaction):
        raise UnknownTypeError(
            "TransactionUnknown",
            f"The transaction {name!r} is not registered with this worker.",
            hint="Run a worker of the program that declares it, or register it with this one: "
            "db.know(transaction), or name its module in partita patterns worker.",
        )
    return found
