"""Keys of one declared type as bytes: the encoding of `partita.keys`, only faster.

The bytes sort like the keys and never depend on Python's hash. Structs, dataclasses and named
tuples are encoded as the tuple of their fields in declared order; a key of a type other than the
declared one is refused, because it would be a different key.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

from msgspec import inspect

from partita.errors import DamageError, InvalidKeyError, LimitExceededError, SchemaError
from partita.keys import Key, decode_key, encode_key
from partita.reliable.values import limits
from partita.reliable.values.foreign_types import (
    FrozenMapType,
    field_names,
    fields_without_argument,
    is_frozen,
    is_frozen_mapping,
    maker,
)
from partita.reliable.values.frozen_types import class_of, plain, type_node, type_text

K = TypeVar("K")

_STR, _BYTES, _UUID, _TUPLE = b"\x10", b"\x14", b"\x18", b"\x24"
_BETWEEN_TEXTS = b"\0\0\xff" + _STR
"""The end of a text, a byte that is in no text, and the start of the next one."""
_SHORT_INTEGERS = tuple(bytes((0x08, 0x80 + count)) for count in range(9))
"""Tag, sign and length of integers from zero to 64 bits."""


class KeyCodec(Generic[K]):
    """Encodes and decodes keys; `name` is the type's text for a stored description."""

    __slots__ = ("_form", "decode", "decode_many", "encode", "name")

    def __init__(self, form: "_Form") -> None:
        self.name = form.name
        self.encode: Callable[[K], bytes] = form.encode or _limited(form.writer)
        self.decode: Callable[[bytes], K] = form.decode or _decoding(form)
        self.decode_many: Callable[[Sequence[bytes]], list[K]] = (
            form.decode_many or self._decode_each
        )
        """The same for the keys of many rows, in fewer steps where the type allows it."""
        self._form = form

    def prefix_range(self, prefix: object) -> tuple[bytes, bytes | None]:
        """Return the half-open range of the encoded keys that start with `prefix`.

        `prefix` is text or bytes for such keys, a tuple of leading elements for other keys.
        """
        first = self._form.start(prefix)
        return first, _following(first)

    def _decode_each(self, encoded: Sequence[bytes]) -> list[K]:
        return list(map(self.decode, encoded))


class _Form(ABC):
    """The encoding of one type at one place of a key; `path` is the place, for errors."""

    encode: Callable[[Any], bytes] | None = None
    decode: Callable[[bytes], Any] | None = None
    decode_many: Callable[[Sequence[bytes]], list[Any]] | None = None

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        self.writer: Callable[[Any], bytes] = self.write
        """`write` or a faster function, used by the enclosing form."""

    @abstractmethod
    def write(self, key: Any) -> bytes:
        """Return the bytes, without a limit."""

    @abstractmethod
    def read(self, key: Key) -> Any:
        """Return the key of decoded elements."""

    def start(self, prefix: object) -> bytes:
        """Return the bytes that all keys with this prefix start with."""
        raise InvalidKeyError(
            "InvalidInput",
            f"Keys of type {self.name} cannot be selected by prefix.",
            facts={"expected": self.name, "given": type(prefix).__name__},
            hint="Use start= and end= instead.",
        )

    def wrong(self, key: object) -> InvalidKeyError:
        """Return the error for a key of another type."""
        place = f" at {self.path}" if self.path else ""
        return InvalidKeyError(
            "WrongKeyType",
            f"The key{place} is {type(key).__name__}, not {self.name}.",
            facts={"expected": self.name, "given": type(key).__name__},
            hint="Pass keys of the type that the collection was opened with.",
        )


class _Scalar(_Form):
    def __init__(self, kind: type, path: str) -> None:
        super().__init__(kind.__name__, path)
        self.kind = kind
        # In Python a bool is an int and a datetime is a date; as keys they are different types.
        self.excluded: type | tuple[()] = {int: bool, date: datetime}.get(kind, ())

    def write(self, key: Any) -> bytes:
        if not isinstance(key, self.kind) or isinstance(key, self.excluded):
            raise self.wrong(key)
        return encode_key(cast("Key", key))

    def read(self, key: Key) -> Any:
        if type(key) is not self.kind:
            raise _damaged(self.name)
        return key


class _Text(_Form):
    """Text and bytes, with prefixes and fast paths."""

    def __init__(self, kind: type, path: str) -> None:
        super().__init__(kind.__name__, path)
        self.kind = kind
        self.encode = _text_writer(self, limits.KEY_BYTES_MAX)
        self.decode = decode = _text_reader(self)
        self.decode_many = _texts_reader(decode) if kind is str else None
        self.writer = _text_writer(self)

    def write(self, key: Any) -> bytes:
        return self.writer(key)

    def read(self, key: Key) -> Any:
        if type(key) is not self.kind:
            raise _damaged(self.name)
        return key

    def start(self, prefix: object) -> bytes:
        return self.write(prefix)[:-2]


def _text_writer(form: _Text, bytes_max: int = 1 << 62) -> Callable[[Any], bytes]:
    def write_str(key: Any) -> bytes:
        if type(key) is not str or "\0" in key:
            return _write_any(form, key, bytes_max)
        try:
            encoded = f"\x10{key}\0\0".encode()
        except UnicodeEncodeError:
            return encode_key(key)  # raises the usual error
        if len(encoded) > bytes_max:
            raise _too_large(len(encoded))
        return encoded

    def write_bytes(key: Any) -> bytes:
        if type(key) is not bytes or b"\0" in key:
            return _write_any(form, key, bytes_max)
        if len(key) > bytes_max - 3:
            raise _too_large(len(key) + 3)
        return _BYTES + key + b"\0\0"

    return write_str if form.kind is str else write_bytes


def _write_any(form: _Text, key: Any, bytes_max: int) -> bytes:
    if not isinstance(key, form.kind):
        raise form.wrong(key)
    encoded = encode_key(cast("Key", key))
    if len(encoded) > bytes_max:
        raise _too_large(len(encoded))
    return encoded


def _text_reader(form: _Text) -> Callable[[bytes], Any]:
    """Return a reader with a fast path for text without escapes, which ends at its first zero."""

    def read_str(encoded: bytes) -> Any:
        if encoded[:1] == _STR and encoded.find(0) == len(encoded) - 2 and encoded[-1] == 0:
            try:
                return encoded[1:-2].decode()
            except UnicodeDecodeError:
                pass  # _read_all raises the error
        return _read_all(form, encoded)

    def read_bytes(encoded: bytes) -> Any:
        if encoded[:1] == _BYTES and encoded.find(0) == len(encoded) - 2 and encoded[-1] == 0:
            return encoded[1:-2]
        return _read_all(form, encoded)

    return read_str if form.kind is str else read_bytes


def _texts_reader(read: Callable[[bytes], Any]) -> Callable[[Sequence[bytes]], list[Any]]:
    """Return a reader of many texts by one call; those with escapes are left to `read`."""

    def read_many(encoded: Sequence[bytes]) -> list[Any]:
        # A byte that no UTF-8 contains marks where one key ends and the next begins.
        joined, count = b"\xff".join(encoded), len(encoded)
        if (
            joined.startswith(_STR)
            and joined.endswith(b"\0\0")
            and joined.count(0) == 2 * count
            and joined.count(_BETWEEN_TEXTS) == count - 1
        ):
            try:
                return joined[1:-2].replace(_BETWEEN_TEXTS, b"\0").decode().split("\0")
            except UnicodeDecodeError:
                pass  # `read` raises the error
        return list(map(read, encoded))

    return read_many


class _Integer(_Scalar):
    def __init__(self, path: str) -> None:
        super().__init__(int, path)
        self.encode = _limited(self.write)
        self.decode = self._decode

    def write(self, key: Any) -> bytes:
        if not isinstance(key, int) or isinstance(key, bool):
            raise self.wrong(key)
        count = (key.bit_length() + 7) >> 3
        if key < 0 or count > 8:
            return encode_key(int(key))
        return _SHORT_INTEGERS[count] + key.to_bytes(count)

    def _decode(self, encoded: bytes) -> int:
        if encoded[:2] in _SHORT_INTEGERS and len(encoded) == encoded[1] - 0x7E:
            return int.from_bytes(encoded[2:])
        return cast("int", _read_all(self, encoded))


class _Float(_Scalar):
    """Floats; an equal int is accepted, because it has the same hash."""

    def __init__(self, path: str) -> None:
        super().__init__(float, path)

    def write(self, key: Any) -> bytes:
        if isinstance(key, int) and not isinstance(key, bool):
            try:
                key = float(key) if float(key) == key else key
            except OverflowError:
                raise self.wrong(key) from None
        return super().write(key)


class _Datetime(_Scalar):
    """Datetimes: aware, naive, or both if the type does not say which."""

    def __init__(self, tz: bool | None, path: str) -> None:  # noqa: FBT001 - as in msgspec
        super().__init__(datetime, path)
        self.tz = tz

    def write(self, key: Any) -> bytes:
        if isinstance(key, datetime) and self.tz not in (None, key.utcoffset() is not None):
            given, declared = ("naive", "aware") if self.tz else ("aware", "naive")
            raise InvalidKeyError(
                "WrongKeyType",
                f"The datetime is {given}; the keys are declared as {declared} datetimes.",
                facts={"expected": self.name, "given": "datetime"},
                hint="Pass datetimes as the key type declares them: Meta(tz=True) or "
                "Meta(tz=False).",
            )
        return super().write(key)


class _Uuid(_Scalar):
    def __init__(self, path: str) -> None:
        super().__init__(UUID, path)
        self.encode = self.write
        self.decode = self._decode

    def write(self, key: Any) -> bytes:
        if not isinstance(key, UUID):
            raise self.wrong(key)
        return _UUID + key.bytes

    def _decode(self, encoded: bytes) -> UUID:
        if len(encoded) == 17 and encoded[:1] == _UUID:
            return UUID(bytes=encoded[1:])
        return cast("UUID", _read_all(self, encoded))


class _TupleForm(_Form):
    """Tuples of fixed length, and types that are encoded as one."""

    def __init__(self, forms: list[_Form], path: str, kind: type = tuple) -> None:
        super().__init__(f"tuple[{','.join(form.name for form in forms) or '()'}]", path)
        self.forms = forms
        self.writers = [form.writer for form in forms]
        self.kind = kind

    def values(self, key: Any) -> tuple[Any, ...]:
        """Return the element for each place."""
        if not isinstance(key, tuple):
            raise self.wrong(key)
        return key

    def make(self, values: list[Any]) -> Any:
        """Return the key of these elements."""
        return tuple(values)

    def write(self, key: Any) -> bytes:
        values = self.values(key)
        if len(values) != len(self.forms):
            raise self.wrong_length(len(values))
        written = [write(value) for write, value in zip(self.writers, values, strict=True)]
        return b"\x24%b\0" % b"".join(written)

    def start(self, prefix: object) -> bytes:
        if not isinstance(prefix, tuple):
            raise self.wrong(prefix)
        if len(prefix) > len(self.forms):
            raise self.wrong_length(len(prefix))
        written = [write(value) for write, value in zip(self.writers, prefix, strict=False)]
        return _TUPLE + b"".join(written)

    def read(self, key: Key) -> Any:
        if not isinstance(key, tuple) or len(key) != len(self.forms):
            raise _damaged(self.name)
        return self.make([form.read(one) for form, one in zip(self.forms, key, strict=True)])

    def wrong_length(self, count: int) -> InvalidKeyError:
        """Return the error for a key or prefix with too many or too few elements."""
        return InvalidKeyError(
            "WrongKeyType",
            f"The key has {count} elements, but {self.name} has {len(self.forms)}.",
            facts={"expected": self.name, "places": count},
            hint="Pass a tuple with one value for each element.",
        )


class _FieldsForm(_TupleForm):
    """Named tuples and frozen classes."""

    def __init__(self, kind: type, names: list[str], forms: list[_Form], path: str) -> None:
        super().__init__(forms, path, kind)
        self.names = names
        self._make = maker(kind)

    def values(self, key: Any) -> tuple[Any, ...]:
        if type(key) is not self.kind:
            raise self.wrong(key)
        return tuple(getattr(key, name) for name in self.names)

    def make(self, values: list[Any]) -> Any:
        return self._make(dict(zip(self.names, values, strict=True)))

    def wrong(self, key: object) -> InvalidKeyError:
        error = super().wrong(key)
        error.facts["expected"] = self.kind.__name__
        return error


class _Sequence(_Form):
    """Tuples of any length with elements of one type."""

    def __init__(self, item: _Form, path: str) -> None:
        super().__init__(f"tuple[{item.name},...]", path)
        self.item = item

    def write(self, key: Any) -> bytes:
        return self.start(key) + b"\0"

    def start(self, prefix: object) -> bytes:
        if not isinstance(prefix, tuple):
            raise self.wrong(prefix)
        return _TUPLE + b"".join(map(self.item.writer, prefix))

    def read(self, key: Key) -> Any:
        if not isinstance(key, tuple):
            raise _damaged(self.name)
        return tuple(map(self.item.read, key))


class _MappingForm(_Form):
    """Immutable mappings, encoded as the tuple of their pairs in key order."""

    def __init__(self, kind: Any, key: _Form, value: _Form, path: str) -> None:
        super().__init__(f"map[{key.name},{value.name}]", path)
        self.kind = kind
        self.pair = _TupleForm([key, value], path)

    def write(self, key: Any) -> bytes:
        if not isinstance(key, self.kind):
            raise self.wrong(key)
        return _TUPLE + b"".join(sorted(map(self.pair.write, key.items()))) + b"\0"

    def read(self, key: Key) -> Any:
        if not isinstance(key, tuple):
            raise _damaged(self.name)
        return self.kind(dict(map(self.pair.read, key)))


_SCALAR_TYPES: dict[type[inspect.Type], type] = {
    inspect.BoolType: bool,
    inspect.DateType: date,
    inspect.DecimalType: Decimal,
    inspect.TimeType: time,
    inspect.TimeDeltaType: timedelta,
}


def key_codec(key_type: object) -> KeyCodec[Any]:
    """Return the codec of a key type; SchemaError names the path of an unsupported type."""
    node = type_node(key_type)
    return KeyCodec(_form(node, "", type_text(node), ()))


def _form(  # noqa: PLR0911 - one switch
    node: inspect.Type, path: str, declared: str, above: tuple[object, ...]
) -> _Form:
    node = plain(node)
    match node:
        case inspect.StrType():
            return _Text(str, path)
        case inspect.BytesType():
            return _Text(bytes, path)
        case inspect.IntType():
            return _Integer(path)
        case inspect.UUIDType():
            return _Uuid(path)
        case inspect.FloatType():
            return _Float(path)
        case inspect.DateTimeType(tz):
            return _Datetime(tz, path)
        case FrozenMapType(key, value):
            return _MappingForm(
                node.cls,
                _form(key, f"{path}[key]", f"{declared}[key]", above),
                _form(value, f"{path}[...]", f"{declared}[...]", above),
                path,
            )
        case inspect.TupleType(items):
            return _TupleForm(
                [
                    _form(item, f"{path}[{index}]", f"{declared}[{index}]", above)
                    for index, item in enumerate(items)
                ],
                path,
            )
        case inspect.VarTupleType(item):
            return _Sequence(_form(item, f"{path}[...]", f"{declared}[...]", above), path)
        case inspect.StructType() | inspect.DataclassType() | inspect.NamedTupleType():
            return _fields_form(node, path, declared, above)
        case _ if type(node) in _SCALAR_TYPES:
            return _Scalar(_SCALAR_TYPES[type(node)], path)
        case _:
            raise _refused(declared, type_text(node), "it has no encoding that preserves its order")


def _fields_form(
    node: inspect.StructType | inspect.DataclassType | inspect.NamedTupleType,
    path: str,
    declared: str,
    above: tuple[object, ...],
) -> _Form:
    kind = class_of(node)
    if node.cls in above:
        raise _refused(declared, kind.__name__, "a key cannot contain its own type")
    if not is_frozen(kind):
        raise _refused(declared, kind.__name__, "it is not frozen")
    if missing := fields_without_argument(kind):
        raise _refused(declared, kind.__name__, f"its constructor does not accept {missing[0]}")
    forms = [
        _form(field.type, f"{path}.{field.name}", f"{declared}.{field.name}", (*above, node.cls))
        for field in node.fields
    ]
    return _FieldsForm(kind, [field.name for field in node.fields], forms, path)


def encode_index_key(value: object) -> bytes:
    """Return the bytes of an index key: any key, or a frozen struct."""
    encoded = encode_key(_index_key(value))
    if len(encoded) > limits.KEY_BYTES_MAX:
        raise _too_large(len(encoded))
    return encoded


def _index_key(value: object) -> Key:
    if isinstance(value, tuple):
        return tuple(map(_index_key, value))
    if isinstance(value, bool | int | float | Decimal | str | bytes | UUID | date):
        return value
    if isinstance(value, time | timedelta):
        return value
    if is_frozen_mapping(type(value)):
        pairs = [(_index_key(key), _index_key(item)) for key, item in value.items()]  # type: ignore[attr-defined]
        return tuple(sorted(pairs, key=encode_key))
    names = field_names(value)
    if names is None:
        raise _not_an_index_key(value, "cannot be a key")
    if not is_frozen(type(value)):
        raise _not_an_index_key(value, "is not frozen")
    return tuple(_index_key(getattr(value, name)) for name in names)


def _not_an_index_key(value: object, reason: str) -> InvalidKeyError:
    return InvalidKeyError(
        "WrongKeyType",
        f"An index function returned a value of type {type(value).__name__}, which {reason}.",
        facts={"given": type(value).__name__},
        hint="Return bool, int, float, Decimal, str, bytes, UUID, date, datetime, time, "
        "timedelta, or tuples, immutable mappings or frozen classes of those; for an Enum return "
        "its value.",
    )


def _limited(write: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def encode(key: Any) -> bytes:
        encoded = write(key)
        if len(encoded) > limits.KEY_BYTES_MAX:
            raise _too_large(len(encoded))
        return encoded

    return encode


def _decoding(form: _Form) -> Callable[[bytes], Any]:
    def decode(encoded: bytes) -> Any:
        return _read_all(form, encoded)

    return decode


def _read_all(form: _Form, encoded: bytes) -> Any:
    try:
        return form.read(decode_key(encoded))
    except (RecursionError, TypeError, ValueError) as error:
        raise _damaged(form.name) from error


def _following(first: bytes) -> bytes | None:
    """Return the smallest bytes above all bytes that start with `first`."""
    stem = first.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


def _refused(declared: str, kind: str, reason: str) -> SchemaError:
    where = kind if declared == kind else f"{declared}: {kind}"
    return SchemaError(
        "UnsupportedKeyType",
        f"{where} cannot be a key: {reason}.",
        facts={"path": where},
        hint="Use bool, int, float, str, bytes, UUID, date, datetime, time, timedelta or Decimal, "
        "or tuples, named tuples, immutable mappings or frozen classes of those.",
    )


def _too_large(size: int) -> LimitExceededError:
    return LimitExceededError(
        "KeyTooLarge",
        f"The encoded key has {size} bytes; at most {limits.KEY_BYTES_MAX} are allowed.",
        facts={"bytes": size, "bytes_max": limits.KEY_BYTES_MAX},
        hint="Use a shorter key, for example a hash, and store the long text in the value.",
    )


def _damaged(name: str) -> DamageError:
    return DamageError(
        "StoreDamaged",
        f"A stored key is not of type {name}.",
        facts={"expected": name},
        hint="Run `partita state verify`, and restore a backup if the state is damaged.",
    )
