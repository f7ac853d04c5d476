"""Layouts: the structure of stored values of one schema version, and which types fit it.

The description of a collection contains a layout for each version that is still written. A type
fits if it reads every value of its version and adds only fields with defaults. Renaming a field
looks like removing one and adding another, so both at once do not fit.
"""

from collections.abc import Callable

import msgspec
from msgspec import inspect

from partita.reliable.values.frozen_types import Classlike, plain, type_text, union_order

_KINDS: dict[type[inspect.Type], str] = {
    inspect.ListType: "list",
    inspect.VarTupleType: "list",
    inspect.SetType: "set",
    inspect.FrozenSetType: "set",
    inspect.TupleType: "tuple",
    inspect.ByteArrayType: "bytes",
    inspect.MemoryViewType: "bytes",
}
"""Types with the same encoding have one kind; other types without fields have their own."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """One type in a layout; `inner` are the indexes of the places of its parts."""

    kind: str
    inner: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    """For fields: their names, one for each place in `inner`."""
    optional: tuple[str, ...] = ()
    """Fields with a default."""
    partial: tuple[str, ...] = ()
    """Fields that are missing in some values."""
    former: tuple[str, ...] = ()
    """Fields that values may have but the newest type does not have."""
    tag: str = ""
    values: tuple[str, ...] = ()
    """For an Enum or Literal: the possible values."""


Layout = tuple[Place, ...]
"""The places of one type; the first is the type itself. A place may contain itself."""


class Misfit(Exception):  # noqa: N818 - never raised to users
    """The path at which a type does not fit, and the reason."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path.lstrip(".")
        self.reason = reason


def layout_of(root: inspect.Type) -> Layout:
    """Return the layout of the encoded values of a type."""
    numbers: dict[object, int] = {}
    places: list[Place] = []

    def number(node: inspect.Type) -> int:
        node = plain(node)
        found = len(places)
        if isinstance(node, Classlike | inspect.NamedTupleType):
            if node.cls in numbers:
                return numbers[node.cls]
            numbers[node.cls] = found
        places.append(_UNKNOWN)
        places[found] = _place(node, number)
        return found

    number(root)
    return tuple(places)


_UNKNOWN = Place("")


def _place(  # noqa: PLR0911 - one switch
    node: inspect.Type, number: Callable[[inspect.Type], int]
) -> Place:
    match node:
        case inspect.NamedTupleType(_, fields):
            optional = tuple(field.name for field in fields if not field.required)
            inner = tuple(number(field.type) for field in fields)
            return Place("row", inner, tuple(field.name for field in fields), optional)
        case _ if isinstance(node, Classlike):
            return _fields_place(node, number)
        case inspect.UnionType(members):
            return Place("union", tuple(map(number, sorted(members, key=union_order))))
        case inspect.EnumType(cls):
            return Place("values", values=tuple(sorted(repr(member.value) for member in cls)))
        case inspect.LiteralType(values):
            return Place("values", values=tuple(sorted(map(repr, values))))
        case inspect.TupleType(items):
            return Place("tuple", tuple(map(number, items)))
        case inspect.DictType(key, value):
            return Place("map", (number(key), number(value)))
        case (
            inspect.ListType(item)
            | inspect.VarTupleType(item)
            | inspect.SetType(item)
            | inspect.FrozenSetType(item)
        ):
            return Place(_KINDS[type(node)], (number(item),))
        case _:
            return Place(_KINDS.get(type(node)) or type_text(node))


def _fields_place(node: Classlike, number: Callable[[inspect.Type], int]) -> Place:
    fields = sorted(node.fields, key=lambda field: field.encode_name)
    optional = tuple(field.encode_name for field in fields if not field.required)
    is_tagged = isinstance(node, inspect.StructType) and node.tag_field is not None
    config = getattr(node.cls, "__struct_config__", None)
    is_total = not isinstance(node, inspect.TypedDictType) and not getattr(
        config, "omit_defaults", False
    )
    return Place(
        "fields",
        tuple(number(field.type) for field in fields),
        tuple(field.encode_name for field in fields),
        optional,
        partial=() if is_total else optional,
        tag=f"{node.tag_field}={node.tag!r}" if is_tagged else "",  # type: ignore[union-attr]
    )


def combined(stored: Layout, given: Layout) -> Layout:
    """Return the layout that covers a stored layout and a type; Misfit if there is none."""
    return _Combination(stored, given).layout()


class _Combination:
    def __init__(self, stored: Layout, given: Layout) -> None:
        self._stored = stored
        self._given = given
        self._numbers: dict[tuple[int | None, int | None], int] = {}
        self._places: list[Place] = []
        self._verdicts: dict[tuple[int, int], bool] = {}
        """Which members of unions fit, computed once: nested unions would take exponential time."""

    def layout(self) -> Layout:
        self._number(0, 0, "")
        return tuple(self._places)

    def _number(self, old: int | None, new: int | None, path: str) -> int:
        """Combine a stored place and a given one; a place of only one side is copied."""
        pair = (old, new)
        if pair not in self._numbers:
            found = self._numbers[pair] = len(self._places)
            self._places.append(_UNKNOWN)
            self._places[found] = self._combine(old, new, path)
        return self._numbers[pair]

    def _combine(  # noqa: PLR0911 - one switch
        self, old: int | None, new: int | None, path: str
    ) -> Place:
        if old is None or new is None:
            place = self._stored[old] if old is not None else self._given[new or 0]
            copied = tuple(
                self._number(None if old is None else one, None if new is None else one, path)
                for one in place.inner
            )
            return msgspec.structs.replace(place, inner=copied)
        before, after = self._stored[old], self._given[new]
        if after.kind == "Any":
            return after
        if "union" in (before.kind, after.kind):
            return self._union(old, new, path)
        if before.kind != after.kind or before.tag != after.tag:
            raise Misfit(path, f"{_place_text(before)} is stored, not {_place_text(after)}")
        match after.kind:
            case "fields":
                return self._fields(before, after, path)
            case "row":
                return self._row(before, after, path)
            case "values":
                if missing := sorted(set(before.values) - set(after.values)):
                    raise Misfit(path, f"stored values may be {', '.join(missing)}")
                return after
            case _:
                return self._parts(before, after, path)

    def _parts(self, before: Place, after: Place, path: str) -> Place:
        if len(before.inner) != len(after.inner):
            raise Misfit(path, f"{len(before.inner)} elements are stored, not {len(after.inner)}")
        step = "[{}]" if after.kind == "tuple" else "[...]"
        inner = tuple(
            self._number(old, new, path + step.format(index))
            for index, (old, new) in enumerate(zip(before.inner, after.inner, strict=True))
        )
        return msgspec.structs.replace(after, inner=inner)

    def _row(self, before: Place, after: Place, path: str) -> Place:
        """Combine two named tuples, which are encoded as arrays: by position, not by name."""
        count = len(before.inner)
        if len(after.inner) < count:
            raise Misfit(path, f"{count} elements are stored, not {len(after.inner)}")
        for name in after.names[count:]:
            if name not in after.optional:
                raise _field_misfit(path, name, "the field is new and has no default")
        olds = (*before.inner, *(None,) * (len(after.inner) - count))
        inner = tuple(
            self._number(old, new, f"{path}.{name}")
            for old, new, name in zip(olds, after.inner, after.names, strict=True)
        )
        return msgspec.structs.replace(after, inner=inner)

    def _fields(self, before: Place, after: Place, path: str) -> Place:
        old = dict(zip(before.names, before.inner, strict=True))
        new = dict(zip(after.names, after.inner, strict=True))
        added = [name for name in after.names if name not in old]
        removed = [name for name in before.names if name not in new and name not in before.former]
        for name in after.names:
            if name in after.optional:
                continue
            if name in added:
                raise _field_misfit(path, name, "the field is new and has no default")
            if name in before.partial:
                raise _field_misfit(
                    path, name, "the field has no default and is missing in some values"
                )
        if added and removed:
            raise Misfit(
                path,
                f"{', '.join(removed)} is stored and not declared, {', '.join(added)} is declared "
                "and not stored, as if a field was renamed",
            )
        names = tuple(sorted({**old, **new}))
        former = tuple(name for name in names if name not in new)
        partial = {*before.partial, *after.partial, *added, *former}
        return msgspec.structs.replace(
            after,
            names=names,
            inner=tuple(
                self._number(old.get(name), new.get(name), f"{path}.{name}") for name in names
            ),
            partial=tuple(sorted(partial)),
            former=former,
        )

    def _union(self, old: int, new: int, path: str) -> Place:
        before, after = self._stored[old], self._given[new]
        olds = before.inner if before.kind == "union" else (old,)
        news = after.inner if after.kind == "union" else (new,)
        matched: dict[int, int] = {}
        for member in olds:
            choice = next((one for one in news if self._fits(member, one, path)), None)
            if choice is None:
                raise self._not_declared(member, news, path)
            matched[choice] = member
        if after.kind != "union":
            return self._places[self._number(matched[new], new, path)]
        inner = tuple(self._number(matched.get(choice), choice, path) for choice in news)
        return Place("union", inner)

    def _not_declared(self, member: int, news: tuple[int, ...], path: str) -> Misfit:
        """Return the misfit inside the only declared type of the same kind, if there is one."""
        place = self._stored[member]
        like = [choice for choice in news if self._given[choice].kind == place.kind]
        if len(like) == 1:
            try:
                self._number(member, like[0], path)
            except Misfit as misfit:
                return misfit
        return Misfit(path, f"{_place_text(place)} is stored and not declared")

    def _fits(self, old: int, new: int, path: str) -> bool:
        if (old, new) not in self._verdicts:
            numbers, count = dict(self._numbers), len(self._places)
            try:
                self._number(old, new, path)
                self._verdicts[old, new] = True
            except Misfit:
                self._verdicts[old, new] = False
            self._numbers = numbers
            del self._places[count:]
        return self._verdicts[old, new]


def _field_misfit(path: str, name: str, reason: str) -> Misfit:
    return Misfit(f"{path}.{name}", reason)


def _place_text(place: Place) -> str:
    if place.kind == "fields":
        return f"a type with the fields {', '.join(place.names) or 'none'}" + (
            f" and the tag {place.tag}" if place.tag else ""
        )
    named = {"row": "a named tuple", "values": f"one of {', '.join(place.values)}"}
    return named.get(place.kind, place.kind)
