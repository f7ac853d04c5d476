"""Declared collections: name, types and options as a value, opened with `state.open`.

    USERS = Dictionary("users", key=str, value=User, ttl=60)

    users = await state.open(USERS)  # ReliableDictionary[str, User]

A declaration belongs to no state; the same one is used everywhere, so that all places that open a
collection agree.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

from partita.errors import SchemaError
from partita.reliable.collections.indexes import Index, IndexFunction
from partita.reliable.manager.declarations import Declaration, checked_indexes
from partita.reliable.state.state import Description
from partita.reliable.values.arguments import checked_name, checked_ttl
from partita.reliable.values.custom_serializer import SerializedCodec, Serializer
from partita.reliable.values.key_codec import KeyCodec, key_codec
from partita.reliable.values.schema import Schema
from partita.reliable.values.serialization import ValueCodec

K = TypeVar("K")
V = TypeVar("V")

Mutable = Literal["refuse", "copy"]
Steps = Sequence[Callable[..., Any]]


class Declared(Generic[V]):
    """What all declarations have: a name, a type of value and its options."""

    def __init__(self, wanted: Description, declaration: Declaration) -> None:
        self.wanted = wanted
        """Name, kind and type of key of the collection."""
        self.declaration = declaration

    @property
    def name(self) -> str:
        return self.wanted.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def values(self) -> ValueCodec[V]:
        """Return the codec of the values; raises if the type cannot be stored."""
        declaration = self.declaration
        if declaration.serializer is not None:
            return SerializedCodec(declaration.value, declaration.serializer)
        return ValueCodec(
            declaration.value,
            schema=declaration.schema,
            steps=declaration.upcasts,
            mutable=declaration.mutable,
            preserve_unknown=declaration.preserve_unknown,
        )


class Dictionary(Declared[V], Generic[K, V]):
    """A declared dictionary: `USERS = Dictionary("users", key=str, value=User, ttl=60)`.

    `indexes` are functions of the value that return a key, a list of keys or None. `ttl` is the
    time to live of values, in seconds. `upcasts` are functions marked with `@upcast` (and
    `@downcast`) that convert older versions to newer. `every_change` writes every change of a
    transaction to the log, not only the last one of each key. `serializer` stores values of any
    type as its bytes.

    For a type that is not a class, such as `int | None`, annotate the declaration:
    `AGES: Dictionary[str, int | None] = Dictionary("ages", key=str, value=int | None)`.
    """

    @overload
    def __init__(
        self,
        name: str,
        *,
        key: type[K],
        value: type[V],
        version: int | Schema = ...,
        upcasts: Steps = ...,
        indexes: Mapping[str, IndexFunction | Index] | None = ...,
        ttl: float | None = ...,
        mutable: Mutable = ...,
        preserve_unknown: bool = ...,
        every_change: bool = ...,
        serializer: Serializer[V] | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: "Dictionary[Any, Any]",
        name: str,
        *,
        key: object,
        value: object,
        version: int | Schema = ...,
        upcasts: Steps = ...,
        indexes: Mapping[str, IndexFunction | Index] | None = ...,
        ttl: float | None = ...,
        mutable: Mutable = ...,
        preserve_unknown: bool = ...,
        every_change: bool = ...,
        serializer: Serializer[Any] | None = ...,
    ) -> None: ...
    def __init__(  # noqa: PLR0913 - by keyword
        self,
        name: str,
        *,
        key: Any,
        value: Any,
        version: int | Schema = 1,
        upcasts: Steps = (),
        indexes: Mapping[str, IndexFunction | Index] | None = None,
        ttl: float | None = None,
        mutable: Mutable = "refuse",
        preserve_unknown: bool = True,
        every_change: bool = False,
        serializer: Serializer[Any] | None = None,
    ) -> None:
        self.keys: KeyCodec[K] = key_codec(key)
        super().__init__(
            Description(checked_name(name), "dictionary", self.keys.name),
            Declaration(
                value,
                _schema(version),
                tuple(upcasts),
                mutable,
                key,
                preserve_unknown,
                checked_ttl(ttl),
                checked_indexes(indexes),
                every_change,
                _checked(serializer, version, upcasts),
            ),
        )


class DeclaredQueue(Declared[V]):
    """What both kinds of declared queues have."""

    kind: str

    @overload
    def __init__(
        self,
        name: str,
        *,
        value: type[V],
        version: int | Schema = ...,
        upcasts: Steps = ...,
        mutable: Mutable = ...,
        serializer: Serializer[V] | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: "DeclaredQueue[Any]",
        name: str,
        *,
        value: object,
        version: int | Schema = ...,
        upcasts: Steps = ...,
        mutable: Mutable = ...,
        serializer: Serializer[Any] | None = ...,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        value: Any,
        version: int | Schema = 1,
        upcasts: Steps = (),
        mutable: Mutable = "refuse",
        serializer: Serializer[Any] | None = None,
    ) -> None:
        super().__init__(
            Description(checked_name(name), self.kind),
            Declaration(
                value,
                _schema(version),
                tuple(upcasts),
                mutable,
                serializer=_checked(serializer, version, upcasts),
            ),
        )


class Queue(DeclaredQueue[V]):
    """A declared queue with strict order: `OUTBOX = Queue("outbox", value=Bid)`."""

    kind = "queue"


class ConcurrentQueue(DeclaredQueue[V]):
    """A declared queue for many consumers: `JOBS = ConcurrentQueue("jobs", value=Job)`."""

    kind = "concurrent_queue"


def _schema(version: int | Schema) -> Schema:
    return version if isinstance(version, Schema) else Schema(version)


def _checked(
    serializer: Serializer[Any] | None, version: int | Schema, upcasts: Steps
) -> Serializer[Any] | None:
    if serializer is not None and (version != 1 or upcasts):
        raise SchemaError(
            "InvalidSchema",
            "version= and upcasts= are not for values with a serializer of their own.",
            hint="Let load() of the serializer read what earlier releases wrote.",
        )
    return serializer
