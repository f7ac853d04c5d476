"""The calls of the table protocol: decoded requests, and what each needs of a SAS. Pure.

`logged_as` is the name of the operation in metrics and logs, as Storage Analytics has it.
"""

import enum
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from partita.service.auth.sas import (
    ADD,
    CONTAINER,
    CREATE,
    DELETE,
    LIST,
    OBJECT,
    READ,
    SERVICE,
    UPDATE,
    UPSERT,
    WRITE,
    Need,
)
from partita.tables.entity import EntityKey
from partita.tables.filters import Filter
from partita.tables.operations import (
    Delete,
    Insert,
    InsertOrMerge,
    InsertOrReplace,
    Merge,
    Operation,
    Replace,
)

NO_CONTENT = "return-no-content"
CONTENT = "return-content"


class Level(enum.Enum):
    """How much metadata an answer contains."""

    NONE = "nometadata"
    MINIMAL = "minimalmetadata"
    FULL = "fullmetadata"

    def __init__(self, word: str) -> None:
        self.content_type = f"application/json;odata={word};streaming=true;charset=utf-8"


class QueryTables(msgspec.Struct, frozen=True, gc=False):
    logged_as: ClassVar = "QueryTables"
    filter: Filter | None
    top: int
    start: str
    level: Level

    def needs(self) -> Sequence[Need]:
        return (Need(CONTAINER, LIST),)


class GetTable(msgspec.Struct, frozen=True, gc=False):
    logged_as: ClassVar = "QueryTable"
    name: str
    level: Level

    def needs(self) -> Sequence[Need]:
        return (Need(CONTAINER, LIST),)


class CreateTable(msgspec.Struct, frozen=True, gc=False):
    logged_as: ClassVar = "CreateTable"
    name: str
    level: Level
    preference: str | None

    def needs(self) -> Sequence[Need]:
        return (Need(CONTAINER, CREATE),)


class DeleteTable(msgspec.Struct, frozen=True, gc=False):
    logged_as: ClassVar = "DeleteTable"
    name: str

    def needs(self) -> Sequence[Need]:
        return (Need(CONTAINER, DELETE),)


class GetTablePolicies(msgspec.Struct, frozen=True, gc=False):
    logged_as: ClassVar = "GetTableACL"
    table: str

    def needs(self) -> Sequence[Need]:
        return (Need(CONTAINER, READ, by_key_only=True),)


class SetTablePolicies(msgspec.Struct, frozen=True, gc=False):
    logged_as: ClassVar = "SetTableACL"
    table: str
    body: bytes

    def needs(self) -> Sequence[Need]:
        return (Need(CONTAINER, WRITE, by_key_only=True),)


class GetTableProperties(msgspec.Struct, frozen=True, gc=False):
    logged_as: ClassVar = "GetTableServiceProperties"

    def needs(self) -> Sequence[Need]:
        return (Need(SERVICE, READ),)


class SetTableProperties(msgspec.Struct, frozen=True, gc=False):
    logged_as: ClassVar = "SetTableServiceProperties"
    body: bytes

    def needs(self) -> Sequence[Need]:
        return (Need(SERVICE, WRITE),)


class GetTableStatistics(msgspec.Struct, frozen=True, gc=False):
    logged_as: ClassVar = "GetTableServiceStats"

    def needs(self) -> Sequence[Need]:
        return (Need(SERVICE, READ),)


class QueryEntities(msgspec.Struct, frozen=True, gc=False):
    logged_as: ClassVar = "QueryEntities"
    table: str
    filter: Filter | None
    select: tuple[str, ...] | None
    top: int
    start: EntityKey | None
    level: Level

    def needs(self) -> Sequence[Need]:
        return (Need(OBJECT, READ, self.table),)


class GetEntity(msgspec.Struct, frozen=True, gc=False):
    logged_as: ClassVar = "QueryEntity"
    table: str
    key: EntityKey
    select: tuple[str, ...] | None
    level: Level

    def needs(self) -> Sequence[Need]:
        return (Need(OBJECT, READ, self.table, self.key),)


class Change(msgspec.Struct, frozen=True, gc=False):
    """One write of one entity, alone or in a batch."""

    table: str
    operation: Operation
    level: Level
    preference: str | None = None
    content_id: str | None = None

    @property
    def logged_as(self) -> str:
        return _LOGGED_AS[type(self.operation)]

    def needs(self) -> Sequence[Need]:
        permissions = _PERMISSIONS[type(self.operation)]
        return (Need(OBJECT, permissions, self.table, self.operation.key),)


_LOGGED_AS: dict[type, str] = {
    Insert: "InsertEntity",
    Replace: "UpdateEntity",
    Merge: "MergeEntity",
    InsertOrReplace: "InsertOrReplaceEntity",
    InsertOrMerge: "InsertOrMergeEntity",
    Delete: "DeleteEntity",
}
_PERMISSIONS: dict[type, tuple[str, ...]] = {
    Insert: ADD,
    Replace: UPDATE,
    Merge: UPDATE,
    InsertOrReplace: UPSERT,
    InsertOrMerge: UPSERT,
    Delete: DELETE,
}

Call = (
    QueryTables
    | GetTable
    | CreateTable
    | DeleteTable
    | GetTablePolicies
    | SetTablePolicies
    | GetTableProperties
    | SetTableProperties
    | GetTableStatistics
    | QueryEntities
    | GetEntity
    | Change
)

WRITES = (CreateTable, DeleteTable, SetTablePolicies, SetTableProperties, Change)
