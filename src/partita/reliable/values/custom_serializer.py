"""Serializers of users: values of any type, stored as the bytes that the user's code returns.

The bytes are one MessagePack binary, so that the format of stored values stays the same. The name
of the serializer is part of the layout: opening the collection with another one is refused.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from partita.errors import DamageError, PartitaError, SchemaError
from partita.reliable.values.layout import Place
from partita.reliable.values.serialization import ValueCodec

V = TypeVar("V")


class Serializer(Protocol[V]):
    """Converts values to bytes and back.

    `load` must read what `dump` of every earlier release wrote: change the name if it cannot.
    """

    @property
    def name(self) -> str:
        """Names the format of the bytes, such as "protobuf:User"."""

    def dump(self, value: V, /) -> bytes: ...

    def load(self, raw: bytes, /) -> V: ...


class SerializedCodec(ValueCodec[V]):
    """Encodes the values of one type with a user's serializer. Each read returns a new object."""

    def __init__(self, value_type: object, serializer: Serializer[V]) -> None:
        super().__init__(bytes)
        self._bytes: ValueCodec[bytes] = ValueCodec(bytes)
        self._serializer = serializer
        self._class = value_type if isinstance(value_type, type) else object
        name = getattr(value_type, "__qualname__", None) or str(value_type)
        self.is_copied = True
        self.type_name = f"{name} by {serializer.name}"
        self.layout = (Place(f"serialized by {serializer.name}"),)
        self.fingerprint = self.layout[0].kind

    def encode(
        self, value: V, *, version: int, stored: bytes | None = None, expires: int = 0
    ) -> bytes:
        del stored  # the serializer alone knows the fields
        if not isinstance(value, self._class):
            raise self._wrong_value("", "it has another type", given=type(value).__name__)
        return self._bytes.encode(self._dump_with_user(value), version=version, expires=expires)

    def decode(self, stored: bytes) -> V:
        return self._load(self._bytes.decode(stored))

    def decode_many(self, stored: Sequence[bytes]) -> list[V] | None:  # noqa: ARG002 - as above
        return None

    def can_read(self, stored: bytes) -> bool:
        try:
            self.decode(stored)
        except PartitaError:
            return False
        return True

    def mutated_path(self, value: V, stored: bytes) -> str | None:
        raw = self._bytes.decode(stored)
        try:
            is_same = self._serializer.dump(value) == raw or self._load(raw) == value
        except Exception:  # noqa: BLE001 - a value that cannot be encoded any more was changed
            return ""
        return None if is_same else ""

    def _dump_with_user(self, value: V) -> bytes:
        try:
            raw: object = self._serializer.dump(value)
        except Exception as error:
            reason = f"its serializer failed ({type(error).__name__})"
            raise self._wrong_value("", reason, given=type(value).__name__) from error
        if not isinstance(raw, bytes):
            raise SchemaError(
                "SerializerResult",
                f"The serializer {self._serializer.name!r} returned {type(raw).__name__}.",
                facts={"serializer": self._serializer.name},
                hint="Return bytes from dump().",
            )
        return raw

    def _load(self, raw: bytes) -> V:
        try:
            return self._serializer.load(raw)
        except Exception as error:
            raise DamageError(
                "ValueUnreadable",
                f"The serializer {self._serializer.name!r} cannot read a stored value.",
                facts={"serializer": self._serializer.name},
                hint="Make load() accept what every earlier release wrote.",
            ) from error
