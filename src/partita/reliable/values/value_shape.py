"""The structs, lists and sets of a type in its plain form, the decoded MessagePack.

Two rules use it. Fields that a type does not know are kept when older code writes a row again:
structs are matched by their path, elements of lists and tuples by their IDENTITY field, otherwise
by equality. And sets are encoded in a fixed order, whatever their elements.
"""

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from typing import Any

import msgspec
from msgspec import inspect

from partita.reliable.values.frozen_types import Classlike, plain

IDENTITY = msgspec.Meta(extra={"identity": True})
"""Marks the field that identifies the elements of a list: `id: Annotated[str, IDENTITY]`."""

_SORTABLE = (
    inspect.BoolType,
    inspect.IntType,
    inspect.StrType,
    inspect.BytesType,
    inspect.DecimalType,
    inspect.UUIDType,
    inspect.DateType,
    inspect.TimeDeltaType,
)
_unordered = msgspec.msgpack.Encoder()
_ordered = msgspec.msgpack.Encoder(order="deterministic")


def encode_plain(value: object) -> bytes:
    """Encode a plain value with its maps in a fixed order."""
    try:
        return _ordered.encode(value)
    except TypeError:  # msgspec sorts only text keys
        return _unordered.encode(_with_sorted_maps(value))


def _with_sorted_maps(value: object) -> object:
    match value:
        case dict():
            pairs = sorted((_unordered.encode(key), key) for key in value)
            return {key: _with_sorted_maps(value[key]) for _, key in pairs}
        case list():
            return list(map(_with_sorted_maps, value))
        case _:
            return value


class Shape(ABC):
    """One place of a type that contains a struct, a set or a map."""

    @abstractmethod
    def fits(self, value: object) -> bool:
        """Return whether a plain value has this shape."""

    def merge(self, old: Any, known: Any, new: Any) -> None:  # noqa: B027 - a default
        """Copy the unknown fields of `old` to `new`; `known` is `old` without them."""

    def in_order(self, value: Any) -> Any:
        """Return the plain value with its sets and maps in a fixed order."""
        return value


class Fields(Shape):
    """A struct: a map with the known fields."""

    def __init__(self, node: Classlike) -> None:
        self.inner: dict[str, Shape | None] = {}
        self.identity: str | None = None
        self.tag: tuple[str, object] | None = None
        if isinstance(node, inspect.StructType) and node.tag_field is not None:
            self.tag = (node.tag_field, node.tag)
            self.inner[node.tag_field] = None

    def fits(self, value: object) -> bool:
        if not isinstance(value, dict):
            return False
        return self.tag is None or value.get(self.tag[0]) == self.tag[1]

    def merge(self, old: Any, known: Any, new: Any) -> None:
        for name, value in old.items():
            if name not in self.inner:
                new[name] = value
        for name, shape in self.inner.items():
            if shape is not None and name in old and name in known and name in new:
                merge_into(shape, old[name], known[name], new[name])

    def in_order(self, value: Any) -> Any:
        return {name: _in_order(self.inner.get(name), inside) for name, inside in value.items()}


class Items(Shape):
    """A list or tuple of any length."""

    def __init__(self, item: Shape) -> None:
        self.item = item

    def fits(self, value: object) -> bool:
        return isinstance(value, list)

    def merge(self, old: Any, known: Any, new: Any) -> None:
        waiting: defaultdict[bytes, deque[int]] = defaultdict(deque)
        moved: list[int] = []
        pairs: list[tuple[int, int]] = []
        for index in range(max(len(known), len(new))):
            here = slice(index, index + 1)
            if known[here] == new[here]:  # most elements keep their position
                pairs.append((index, index))
                continue
            if index < len(known):
                waiting[self._mark(known[index])].append(index)
            if index < len(new):
                moved.append(index)
        for index in moved:
            same = waiting[self._mark(new[index])]
            if same:
                pairs.append((same.popleft(), index))
        for before, after in pairs:
            merge_into(self.item, old[before], known[before], new[after])

    def _mark(self, element: Any) -> bytes:
        item = self.item
        if isinstance(item, Choice):
            item = next((shape for shape in item.inner if shape.fits(element)), item)
        if isinstance(item, Fields) and item.identity is not None:
            element = element.get(item.identity)
        return encode_plain(element)

    def in_order(self, value: Any) -> Any:
        return [_in_order(self.item, element) for element in value]


class Set(Shape):
    """A set: its elements have no position, so that a changed set loses unknown fields."""

    def __init__(self, item: Shape | None) -> None:
        self.item = item

    def fits(self, value: object) -> bool:
        return isinstance(value, list)

    def merge(self, old: Any, known: Any, new: Any) -> None:
        if new == known:
            new[:] = old

    def in_order(self, value: Any) -> Any:
        return sorted((_in_order(self.item, element) for element in value), key=_unordered.encode)


class Places(Shape):
    """A tuple of fixed length or a named tuple."""

    def __init__(self) -> None:
        self.inner: list[Shape | None] = []

    def fits(self, value: object) -> bool:
        return isinstance(value, list)

    def merge(self, old: Any, known: Any, new: Any) -> None:
        for shape, *three in zip(self.inner, old, known, new, strict=False):
            if shape is not None:
                merge_into(shape, *three)

    def in_order(self, value: Any) -> Any:
        return [_in_order(shape, inside) for shape, inside in zip(self.inner, value, strict=False)]


class Pairs(Shape):
    """A dict: values are matched by their key."""

    def __init__(self, value: Shape | None) -> None:
        self.value = value

    def fits(self, value: object) -> bool:
        return isinstance(value, dict)

    def merge(self, old: Any, known: Any, new: Any) -> None:
        if self.value is None:
            return
        for key, value in new.items():
            if key in old and key in known:
                merge_into(self.value, old[key], known[key], value)

    def in_order(self, value: Any) -> Any:
        marked = sorted((_unordered.encode(key), key) for key in value)
        return {key: _in_order(self.value, value[key]) for _, key in marked}


class Choice(Shape):
    """A union: the shape that fits all values."""

    def __init__(self) -> None:
        self.inner: list[Shape] = []

    def fits(self, value: object) -> bool:
        return any(shape.fits(value) for shape in self.inner)

    def merge(self, old: Any, known: Any, new: Any) -> None:
        for shape in self.inner:
            if shape.fits(old) and shape.fits(known) and shape.fits(new):
                shape.merge(old, known, new)
                return

    def in_order(self, value: Any) -> Any:
        for shape in self.inner:
            if shape.fits(value):
                return shape.in_order(value)
        return value


def merge_into(shape: Shape, old: object, known: object, new: object) -> None:
    """Copy the unknown fields of `old` to `new` where all three have the shape."""
    if old == known:
        return
    if shape.fits(old) and shape.fits(known) and shape.fits(new):
        shape.merge(old, known, new)


def _in_order(shape: Shape | None, value: object) -> object:
    return value if shape is None or not shape.fits(value) else shape.in_order(value)


class Outline:
    """The shapes of one type; `top` is None for types without a struct, set or map."""

    def __init__(self, root: inspect.Type) -> None:
        self.loses: list[str] = []
        """Paths of lists without IDENTITY, whose changed elements lose their unknown fields."""
        self.needs_order = False
        """Whether it contains a set or map that msgspec cannot encode in a fixed order."""
        self.has_fields = False
        """Whether it contains a struct, which may have unknown fields in a row."""
        self._classes: dict[object, Shape] = {}
        self.top = self._shape(root, "")

    def in_order(self, value: object) -> object:
        """Return a plain value with its sets and maps in a fixed order."""
        return _in_order(self.top, value)

    def _shape(self, node: inspect.Type, path: str) -> Shape | None:  # noqa: PLR0911 - a switch
        node = plain(node)
        match node:
            case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
                return self._fields(node, path)
            case inspect.NamedTupleType():
                return self._places(node.cls, [field.type for field in node.fields], path)
            case inspect.TupleType(items):
                return self._places(None, list(items), path)
            case inspect.ListType(item) | inspect.VarTupleType(item):
                return self._items(item, path)
            case inspect.SetType(item) | inspect.FrozenSetType(item):
                return self._set(item, path)
            case inspect.DictType(key, value):
                return self._pairs(key, value, path)
            case inspect.UnionType(members):
                return self._choice(members, path)
            case _:
                return None

    def _fields(self, node: Classlike, path: str) -> Shape:
        if node.cls in self._classes:
            return self._classes[node.cls]
        self.has_fields = True
        fields = self._classes[node.cls] = Fields(node)
        for field in node.fields:
            place = f"{path}.{field.name}" if path else field.name
            if isinstance(field.type, inspect.Metadata) and (field.type.extra or {}).get(
                "identity"
            ):
                fields.identity = field.encode_name
            fields.inner[field.encode_name] = self._shape(field.type, place)
        return fields

    def _places(self, cls: object, items: list[inspect.Type], path: str) -> Shape | None:
        if cls in self._classes:
            return self._classes[cls]
        places = Places()
        if cls is not None:
            self._classes[cls] = places
        places.inner = [self._shape(item, f"{path}[{index}]") for index, item in enumerate(items)]
        return places if cls is not None or any(places.inner) else None

    def _items(self, item: inspect.Type, path: str) -> Shape | None:
        shape = self._shape(item, f"{path}[...]")
        if shape is None:
            return None
        if _is_unmarked(shape):
            self.loses.append(path)
        return Items(shape)

    def _set(self, item: inspect.Type, path: str) -> Shape | None:
        shape = self._shape(item, f"{path}[...]")
        self.needs_order |= not _is_sortable(item)
        if isinstance(shape, Fields | Choice):
            self.loses.append(path)
        return Set(shape)

    def _pairs(self, key: inspect.Type, value: inspect.Type, path: str) -> Shape | None:
        shape = self._shape(value, f"{path}[...]")
        has_other_keys = not isinstance(plain(key), inspect.StrType)
        self.needs_order |= has_other_keys
        return Pairs(shape) if shape is not None or has_other_keys else None

    def _choice(self, members: tuple[inspect.Type, ...], path: str) -> Shape | None:
        choice = Choice()
        shapes = (self._shape(member, path) for member in members)
        choice.inner = [shape for shape in shapes if shape is not None]
        return choice if choice.inner else None


def _is_unmarked(shape: Shape) -> bool:
    match shape:
        case Fields():
            return shape.identity is None
        case Choice():
            return any(map(_is_unmarked, shape.inner))
        case _:
            return False


def _is_sortable(node: inspect.Type) -> bool:
    """Return whether Python, and so msgspec, can sort a set of this type."""
    node = plain(node)
    if isinstance(node, inspect.TupleType):
        return all(map(_is_sortable, node.item_types))
    if isinstance(node, inspect.VarTupleType):
        return _is_sortable(node.item_type)
    return isinstance(node, _SORTABLE)
