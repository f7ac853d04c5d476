"""Declarations of secondary indexes: copies under other keys, and lists of members.

An index in the entity's own partition is written in the same group, atomically, and can be unique.
Any other index is updated by a worker through the outbox. A declaration proves that no two
entities can have a copy with the same key.
"""

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from partita.errors import DefinitionError
from partita.patterns.fields.annotations import plain, union_members
from partita.patterns.fields.fields import Field
from partita.patterns.keys.templates import KeyTemplate
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.types.row_layout import PART_MARK

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
"""An index of a type also serves the types derived from it."""
INDEXES_MAX = 20
"""Indexes of one type in its own partition: the rows of all of them must fit into one group."""


_EMPTY: dict[Any, Any] = {bytes: b"", str: ""}
"""Replaces a value in a blob when the condition of an index is evaluated."""


class Storage(enum.Enum):
    """Where a list index stores its members (the guide's three options, and rows)."""

    ROWS = "rows"
    """One row per member: no contention, no size limit."""
    PARTITION = "partition"
    """One index entity per value, in the entity's own partition: option 2."""
    TABLE = "table"
    """One index entity per value, in another partition or table: option 3."""
    BLOB = "blob"
    """One blob per value: option 1."""


class _IndexRows(Generic[T_contra]):
    """The table and keys of the rows of an index."""

    def __init__(
        self,
        owner: EntityType[T_contra],
        name: str,
        table: str,
        partition: KeyTemplate,
        row: KeyTemplate,
    ) -> None:
        self.owner = owner
        self.name = name
        self.table = table
        self.partition = partition
        self.row = row
        self.is_local = table == owner.table and partition.text == owner.partition.text
        """Whether the rows are in the entity's own partition."""
        self.key_fields = tuple(dict.fromkeys(partition.fields + row.fields))

    def key(self, values: Mapping[str, Any]) -> RowKey | None:
        """Return the key of the copy or list; None if the entity is not in the index."""
        if any(values[name] is None for name in self.key_fields):
            return None  # before the condition, which may not expect None
        if not self._includes(values):
            return None
        return RowKey(self.partition.format(values), self.row.format(values))

    def _includes(self, values: Mapping[str, Any]) -> bool:  # noqa: ARG002 - an override uses it
        """Return whether the condition of the index, if it has one, admits the entity."""
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.owner.name}>"


class Index(_IndexRows[T_contra]):
    """Copies of the entities of one type under other keys. Made by `index`."""

    def __init__(  # noqa: PLR0913 - a declaration
        self,
        owner: EntityType[T_contra],
        name: str,
        table: str,
        partition: KeyTemplate,
        row: KeyTemplate,
        *,
        is_unique: bool,
        copied: tuple[str, ...],
        condition: Callable[[T_contra], bool] | None,
    ) -> None:
        super().__init__(owner, name, table, partition, row)
        self.is_unique = is_unique
        self.copied = copied
        """The fields that a copy has besides those of its keys."""
        self.condition = condition
        stored = frozenset({*self.key_fields, *copied})
        self.needed_fields = stored if condition is None else frozenset(owner.fields)
        """The fields whose change changes a copy: all of them if a condition reads the entity."""
        self._has_all_fields = stored.issuperset(owner.fields)

    @property
    def is_complete(self) -> bool:
        """Whether a copy holds the whole entity; of a type derived from the owner it does not."""
        return self._has_all_fields and not self.owner.children

    def _includes(self, values: Mapping[str, Any]) -> bool:
        return self.condition is None or bool(self.condition(self._without_blobs(values)))

    def _without_blobs(self, values: Mapping[str, Any]) -> Any:
        """Return the entity for the condition, with empty values for those in blobs.

        Blobs may not have been read, so the condition sees only whether there is one.
        """
        known = {name: values[name] for name in self.owner.fields}
        for field in self.owner.fields.values():
            if field.is_in_blob and known[field.name] is not None:
                known[field.name] = _EMPTY.get(_kind_of(field), known[field.name])
        return self.owner.build(known)


class ListIndex(_IndexRows[T_contra]):
    """Lists of the members that share a value. Made by `list_index`."""

    def __init__(  # noqa: PLR0913 - a declaration
        self,
        owner: EntityType[T_contra],
        name: str,
        table: str,
        partition: KeyTemplate,
        row: KeyTemplate,
        storage: Storage,
        *,
        container: str,
    ) -> None:
        super().__init__(owner, name, table, partition, row)
        self.storage = storage
        self.container = container
        self.is_local = self.is_local and storage in (Storage.ROWS, Storage.PARTITION)
        self.needed_fields = frozenset(self.key_fields)

    def member_key(self, values: Mapping[str, Any], member: RowKey) -> RowKey | None:
        """Return the key of the row of one member, for Storage.ROWS."""
        key = self.key(values)
        return None if key is None else member_row(key, member, is_local=self.is_local)


def _kind_of(field: Field) -> Any:
    members = union_members(plain(field.annotation))
    return plain(members[0]) if len(members) == 1 else None


AnyIndex = Index[Any] | ListIndex[Any]


def member_row(key: RowKey, member: RowKey, *, is_local: bool) -> RowKey:
    """Return the key of a member's row; it is injective, because values never contain the mark."""
    suffix = member.row if is_local else f"{member.partition}{PART_MARK}{member.row}"
    return RowKey(key.partition, f"{key.row}{PART_MARK}{suffix}")


def list_of(row_key: str) -> str:
    """Return the row key of the list that a member's row belongs to.

    >>> list_of("last_Jones~emp_000001")
    'last_Jones'
    """
    return row_key.partition(PART_MARK)[0]


def index(  # noqa: PLR0913 - keyword-only, each with a plain default
    cls: type[T],
    *,
    row: str,
    partition: str | None = None,
    table: str | None = None,
    unique: bool = False,
    copy: Sequence[str] | None = None,
    where: Callable[[T], bool] | None = None,
    name: str | None = None,
) -> Index[T]:
    """Declare copies of an entity under other keys.

    In the entity's own partition (without `table` and `partition`) a copy is written in the same
    group. Elsewhere a worker writes the copies through the outbox. `unique=True` rejects a second
    entity with the same key; elsewhere, the value is claimed before the entity is written. `copy`
    names the fields of partial copies. `where` excludes entities, as does None in a key field.

    >>> from partita.patterns import entity, index
    >>> @entity(table="staff", partition="{dept}", row="emp_{id:06d}")
    ... class Person:
    ...     dept: str
    ...     id: int
    ...     email: str
    >>> index(Person, row="email_{email}", unique=True).is_local
    True
    """
    owner = entity_type(cls)
    templates = compile_keys(owner, partition, row)
    made = Index(
        owner,
        name or _name_of(table, partition, row),
        table or owner.table,
        *templates,
        is_unique=unique,
        copied=_copied(owner, copy, templates),
        condition=where,
    )
    _check_place(made)
    _check_unique(made)
    _register(made)
    return made


def list_index(  # noqa: PLR0913 - keyword-only, each with a plain default
    cls: type[T],
    *,
    row: str,
    partition: str | None = None,
    table: str | None = None,
    store: Literal["rows", "partition", "table", "blob"] = "rows",
    container: str = "partita-indexes",
    name: str | None = None,
) -> ListIndex[T]:
    """Declare lists of the entities that share a value: the guide's index entities.

    `store` is "rows" (one row per member, the default), "partition" (one index entity in the same
    partition), "table" (one in another partition or table) or "blob" (one blob per value).
    """
    owner = entity_type(cls)
    if store not in {each.value for each in Storage}:
        raise DefinitionError(
            "IndexRefused",
            f"{owner.name}: {store!r} is not a valid store of a list index.",
            facts={"type": owner.name},
            hint=f"Use one of {', '.join(each.value for each in Storage)}.",
        )
    templates = compile_keys(owner, partition, row, no_tilde=True)
    made = ListIndex(
        owner,
        name or _name_of(table, partition, row),
        table or owner.table,
        *templates,
        Storage(store),
        container=container,
    )
    if made.storage is Storage.PARTITION and not made.is_local:
        raise _refused(made, 'store="partition" requires the entity\'s own partition.',
                       'Remove table= and partition=, or use store="table".')  # fmt: skip
    if made.storage is Storage.TABLE and made.table == owner.table and partition is None:
        raise _refused(made, 'store="table" requires another partition or table.',
                       'Give table= or partition=, or use store="partition".')  # fmt: skip
    _check_place(made)
    _register(made)
    return made


def compile_keys(
    owner: EntityType[Any], partition: str | None, row: str, *, no_tilde: bool = False
) -> tuple[KeyTemplate, KeyTemplate]:
    """Return the key templates of an index; None means the entity's own partition."""
    annotations = {name: field.annotation for name, field in owner.fields.items()}

    def compiled(text: str, role: Literal["partition", "row"]) -> KeyTemplate:
        return KeyTemplate.compile(
            text,
            annotations,
            role=role,
            owner=f"an index of {owner.name}",
            optional=True,
            no_tilde=no_tilde,
        )

    own = owner.partition if partition is None else compiled(partition, "partition")
    return own, compiled(row, "row")


def _name_of(table: str | None, partition: str | None, row: str) -> str:
    words = re.findall(r"[A-Za-z0-9]+", " ".join(filter(None, (table, partition, row))))
    return "_".join(words)


def _copied(
    owner: EntityType[Any], copy: Sequence[str] | None, templates: tuple[KeyTemplate, KeyTemplate]
) -> tuple[str, ...]:
    """Return the fields to copy: all but series by default, and always the entity's own keys."""
    in_keys = _full_fields(*templates)  # a hash of a field does not give its value back
    if copy is None:
        wanted = [name for name, field in owner.fields.items() if field.series is None]
    else:
        unknown = sorted(set(copy) - set(owner.fields))
        if unknown:
            raise DefinitionError(
                "UnknownField",
                f"{owner.name} has no field {unknown[0]!r}.",
                facts={"type": owner.name, "fields": sorted(owner.fields)},
            )
        keys = [name for name, field in owner.fields.items() if field.is_key]
        wanted = [*keys, *copy]
    return tuple(name for name in dict.fromkeys(wanted) if name not in in_keys)


def _full_fields(*templates: KeyTemplate) -> set[str]:
    """Return the fields that keys have in full, not only as a hash."""
    return {part.field for template in templates for part in template.parts() if part.is_full}


def _check_place(made: AnyIndex) -> None:
    """Raise for fields that cannot be in keys, and for keys that entities could have."""
    for name in made.key_fields:
        field = made.owner.fields[name]
        if field.is_encrypted:
            raise _refused(made, f"{name!r} is encrypted: a key would reveal it.",
                           "Index another field.")  # fmt: skip
        if field.is_in_blob or field.series is not None:
            raise _refused(made, f"{name!r} is not stored in the entity itself.",
                           "Index another field.")  # fmt: skip
    for relative in _family_of(made.owner):
        for other in (relative, *relative.indexes):
            _check_two(made, other)


def _family_of(owner: EntityType[Any]) -> list[EntityType[Any]]:
    *_, root = owner.lineage()
    return list(root.family())


def check_apart(model: EntityType[Any], others: Iterable[EntityType[Any]]) -> None:
    """Raise if a row of a type or its indexes can have the same key as one of another type."""
    for other in others:
        for made in model.indexes:
            for each in (other, *other.indexes):
                _check_two(made, each)
        for made in other.indexes:
            _check_two(made, model)


def _check_two(made: AnyIndex, other: AnyIndex | EntityType[Any]) -> None:
    if _is_in_blobs(made) or _is_in_blobs(other):
        return
    if made.table.lower() == other.table.lower() and _may_meet(made, other):
        raise _refused(
            made,
            f"Its row keys ({made.row.text}) can equal those of {other.name} ({other.row.text}).",
            _other_beginning(made, other),
        )


def _is_in_blobs(kept: AnyIndex | EntityType[Any]) -> bool:
    return isinstance(kept, ListIndex) and kept.storage is Storage.BLOB


def _other_beginning(made: AnyIndex, other: AnyIndex | EntityType[Any]) -> str:
    hint = f'Begin them with a distinct prefix, such as row="by_{made.row.text}"'
    if not other.row.may_begin_with("by_"):
        return f"{hint}."
    return f'{hint}, and those of {other.name} with another, such as row="is_{other.row.text}".'


def _may_meet(one: AnyIndex, other: AnyIndex | EntityType[Any]) -> bool:
    """Return whether two row templates in one table can give the same key.

    Rows without a type property can be told apart only by a literal prefix.
    """
    pairs = ((one.row, other.row), (one.partition, other.partition))
    if one.owner.type_property is None:
        return all(
            mine.literal_prefix.startswith(theirs.literal_prefix)
            or theirs.literal_prefix.startswith(mine.literal_prefix)
            for mine, theirs in pairs
        )
    return all(mine.may_meet(theirs) for mine, theirs in pairs)


def _check_unique(made: Index[Any]) -> None:
    fields = _full_fields(made.partition, made.row)
    if made.is_unique:
        names = made.row.fields if made.is_local else made.key_fields
        hashed = [name for name in names if name not in fields]
        if hashed:
            raise _refused(
                made,
                f"It has only a hash of {hashed[0]!r}, which other values have too.",
                f"Write {{{hashed[0]}}} in full in the row key.",
            )
        if not made.is_local and made.owner.type_property is None:
            raise _refused(
                made,
                "A value is claimed through the outbox, which a foreign table does not have.",
                "Declare a type_property=, or remove unique=True.",
            )
        return
    keys = {name for name, field in made.owner.fields.items() if field.is_key}
    # The partition of a unique index is that of its entity: what is unique there is unique here
    # if this index has the fields of both, in full, or the same partition.
    known = [keys] + [
        set(each.row.fields if made.is_local and each.is_local else each.key_fields)
        for each in made.owner.indexes
        if isinstance(each, Index) and each.is_unique and each.condition is None
    ]
    if not any(each <= fields for each in known):
        missing = ", ".join(sorted(keys - fields))
        raise _refused(
            made,
            "The copies of two entities could have the same key.",
            f"Add {missing} to its keys, use list_index(), or declare a unique index first.",
        )


def _register(made: AnyIndex) -> None:
    owner = made.owner
    relatives = [each for relative in _family_of(owner) for each in relative.indexes]
    if any(each.name == made.name for each in relatives):
        raise _refused(made, "Another index has this name.", "Set another name: name=...")
    if sum(each.is_local for each in owner.followers.indexes) >= INDEXES_MAX:
        raise _refused(
            made,
            f"A type can have at most {INDEXES_MAX} indexes in its own partition.",
            "Declare this one with another partition= or table=.",
        )
    owner.declare(indexes=(*owner.indexes, made))


def _refused(made: AnyIndex, message: str, hint: str) -> DefinitionError:
    return DefinitionError(
        "IndexRefused",
        message,
        facts={"type": made.owner.name, "index": made.name},
        hint=hint,
    )
