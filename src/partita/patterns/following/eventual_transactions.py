"""Eventually consistent transactions: named, idempotent steps that a worker runs to the end.

A transaction is started by a message, or in the same group as a change (atomically with it). The
worker runs the steps in order; if it stops, another worker runs them again from the first. There is
no isolation: other readers see the work between two steps.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_type_hints, overload

import msgspec

from partita.errors import DefinitionError, UnknownTypeError, UsageError
from partita.patterns.fields.naming import did_you_mean
from partita.patterns.writing.context import Context

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")

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


class NamedSteps(msgspec.Struct, frozen=True):
    """The steps that a worker runs for a name, each as `step(db, arguments)`."""

    name: str
    steps: tuple[Step, ...]


class EventualTransaction(NamedSteps, frozen=True):
    """Named steps that take their arguments as a dict. Made by `eventual`."""


class Transaction(NamedSteps, Generic[P], frozen=True):
    """One function with annotated parameters. Made by `transaction`."""

    function: Callable[..., Any]
    parameters: type[msgspec.Struct]
    """A class with the parameters of the function, except the database."""


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


@overload
def transaction(function: Callable[Concatenate[Any, P], Any], /) -> Transaction[P]: ...
@overload
def transaction(*, name: str) -> Callable[[Callable[Concatenate[Any, P], Any]], Transaction[P]]: ...
def transaction(function: Callable[..., Any] | None = None, /, *, name: str = "") -> Any:
    """Declare an eventually consistent transaction by one function with annotated parameters.

    The first parameter is the database. The others are stored as JSON when the transaction is
    started, and read back as their annotations say: a date arrives as a date. A worker may run the
    function twice, or again after a failure, so that it must be idempotent. Its name is stored in
    messages; `name=` sets another one than that of the function.

    >>> @transaction
    ... async def archive(db, dept: str, id: int):
    ...     await db.table(Employee).delete_if_exists(dept=dept, id=id)
    >>> archive.name
    'archive'
    """
    if function is None:
        return lambda decorated: _declared(decorated, name)
    return _declared(function, name)


def _declared(function: Callable[..., Any], name: str) -> Transaction[Any]:
    name = name or function.__name__
    parameters = _parameters_of(function, name)

    def read(arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            found = msgspec.convert(arguments, parameters, str_keys=True)
        except msgspec.ValidationError as error:
            raise UsageError(
                "MessageNotUnderstood",
                f"The arguments of {name!r} do not fit its parameters: {error}.",
                hint="Give new parameters a default while older messages are waiting.",
            ) from error
        return {field: getattr(found, field) for field in parameters.__struct_fields__}

    async def awaited(db: object, arguments: Mapping[str, Any]) -> None:
        await function(db, **read(arguments))

    def called(db: object, arguments: Mapping[str, Any]) -> Any:
        return function(db, **read(arguments))

    step: Step = awaited if inspect.iscoroutinefunction(function) else called
    return Transaction(name, (step,), function, parameters)


def _parameters_of(function: Callable[..., Any], name: str) -> type[msgspec.Struct]:
    parameters = list(inspect.signature(function).parameters.values())
    others = parameters[1:]
    reason = "" if parameters else "Its first parameter must be the database."
    for each in others:
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            reason = f"The parameter {each.name!r} cannot be passed by name."
        elif each.annotation is each.empty:
            reason = f"The parameter {each.name!r} has no annotation."
    if reason:
        raise _refused(name, reason)

    def annotated() -> None: ...

    # Without the database: its type may be imported for type checkers only.
    annotated.__annotations__ = {each.name: each.annotation for each in others}
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    hints = get_type_hints(annotated, scope, include_extras=True)
    fields = [
        (each.name, hints[each.name])
        if each.default is each.empty
        else (each.name, hints[each.name], each.default)
        for each in others
    ]
    try:
        made = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.Decoder(made)
    except TypeError as error:
        raise _refused(name, f"Its parameters cannot be stored as JSON: {error}.") from error
    return made


def _refused(name: str, reason: str) -> DefinitionError:
    return DefinitionError(
        "TransactionRefused",
        f"{name!r}: {reason}",
        facts={"transaction": name},
        hint="Declare it as: async def archive(db, dept: str, id: int).",
    )


def start_message(
    declared: NamedSteps, arguments: Mapping[str, Any], positional: tuple[Any, ...] = ()
) -> Started:
    """Return the message that starts a transaction. Arguments must be JSON values."""
    given: object = arguments
    if isinstance(declared, Transaction):
        given = _bound(declared, positional, arguments)
    elif positional:
        raise _wrong_arguments(declared, "They must be passed by name", "")
    try:
        text = msgspec.json.encode(given)
        if isinstance(declared, Transaction):
            msgspec.json.decode(text, type=declared.parameters)
    except (TypeError, msgspec.ValidationError) as error:
        raise UsageError(
            "ArgumentsRefused",
            f"The arguments of {declared.name!r} cannot be stored as JSON: {error}.",
            hint="Pass keys and plain values of the annotated types, and read entities in the "
            "steps.",
        ) from error
    return Started(declared.name, text.decode())


def _bound(
    declared: Transaction[Any], positional: tuple[Any, ...], arguments: Mapping[str, Any]
) -> msgspec.Struct:
    names = declared.parameters.__struct_fields__
    try:
        bound = inspect.signature(declared.function).bind(None, *positional, **arguments)
    except TypeError as error:
        unknown = next((name for name in arguments if name not in names), "")
        raise _wrong_arguments(declared, str(error), did_you_mean(unknown, names)) from error
    given = dict(list(bound.arguments.items())[1:])
    return declared.parameters(**given)


def _wrong_arguments(declared: NamedSteps, reason: str, guess: str) -> UsageError:
    return UsageError(
        "ArgumentsRefused",
        f"The arguments of {declared.name!r} are wrong: {reason}.",
        facts={"transaction": declared.name},
        hint=f"Pass the parameters of the function by name.{guess}",
    )


def find_transaction(context: Context, name: str) -> NamedSteps:
    found = context.transactions.get(name)
    if not isinstance(found, NamedSteps):
        raise UnknownTypeError(
            "TransactionUnknown",
            f"The transaction {name!r} is not registered with this worker.",
            hint="Run a worker of the program that declares it, or register it with this one: "
            "db.know(transaction), or name its module in partita patterns worker.",
        )
    return found
