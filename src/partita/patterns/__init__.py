"""The table design guide made executable: typed entities, indexes, patterns, on the official SDK.

Works against Azure Table Storage, Azurite, Cosmos DB and Partita alike. This package holds the
asynchronous names; `partita.patterns.sync` holds the same for programs without a loop. The names
are imported when first used: the pytest plugin lies in this package, and must cost nothing.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partita.errors import (
        ConflictError,
        DefinitionError,
        EntityExistsError,
        EntityNotFoundError,
        ETagMismatchError,
        IndexNotReadableError,
        NewerVersionError,
        NotOrderedError,
        PartitaError,
        ProjectionError,
        ScanRefusedError,
        ScanWarning,
        ThrottledError,
        UniqueViolationError,
    )
    from partita.patterns.aio import (
        CachedTable,
        Database,
        Group,
        Log,
        Mixed,
        Page,
        Partition,
        PeriodTables,
        Query,
        RawTable,
        Table,
        Via,
        connect,
    )
    from partita.patterns.design.access_patterns import access, check_access
    from partita.patterns.design.explain import explain
    from partita.patterns.design.lints import lint
    from partita.patterns.design.prices import Prices
    from partita.patterns.encryption.keyring import AesKey, Keyring, RsaKey
    from partita.patterns.fields.markers import (
        CopiedFrom,
        CountOf,
        Encrypted,
        InBlob,
        Named,
        Series,
    )
    from partita.patterns.following.eventual_transactions import (
        EventualTransaction,
        eventual,
        idempotent,
    )
    from partita.patterns.following.index_lifecycle import Drift
    from partita.patterns.grants.grants import Grant
    from partita.patterns.keys.intervals import (
        at_least,
        at_most,
        between,
        less_than,
        more_than,
        starting_with,
    )
    from partita.patterns.operations.bulk import BulkOutcome
    from partita.patterns.operations.partition_skew import Balance
    from partita.patterns.operations.raw import RawEntity
    from partita.patterns.operations.references import Reference, reference
    from partita.patterns.operations.sizes import measure
    from partita.patterns.protocol.calls import Cost
    from partita.patterns.protocol.values import Int32
    from partita.patterns.series.log_blobs import LogBuffering, LogLine
    from partita.patterns.series.log_names import LogPlace
    from partita.patterns.types.decorators import entity, entity_type, evolve, upcast
    from partita.patterns.types.indexes import Index, ListIndex, index, list_index
    from partita.patterns.types.projections import Partial
    from partita.patterns.types.table_series import TableSeries
    from partita.patterns.types.views import view
    from partita.patterns.writing.context import Options

_PLACES = {
    "ConflictError": "partita.errors",
    "DefinitionError": "partita.errors",
    "EntityExistsError": "partita.errors",
    "EntityNotFoundError": "partita.errors",
    "ETagMismatchError": "partita.errors",
    "IndexNotReadableError": "partita.errors",
    "NewerVersionError": "partita.errors",
    "NotOrderedError": "partita.errors",
    "PartitaError": "partita.errors",
    "ProjectionError": "partita.errors",
    "ScanRefusedError": "partita.errors",
    "ScanWarning": "partita.errors",
    "ThrottledError": "partita.errors",
    "UniqueViolationError": "partita.errors",
    "access": "partita.patterns.design.access_patterns",
    "check_access": "partita.patterns.design.access_patterns",
    "CachedTable": "partita.patterns.aio",
    "Database": "partita.patterns.aio",
    "Group": "partita.patterns.aio",
    "Log": "partita.patterns.aio",
    "Mixed": "partita.patterns.aio",
    "Page": "partita.patterns.aio",
    "Partition": "partita.patterns.aio",
    "PeriodTables": "partita.patterns.aio",
    "Query": "partita.patterns.aio",
    "RawTable": "partita.patterns.aio",
    "Table": "partita.patterns.aio",
    "Via": "partita.patterns.aio",
    "connect": "partita.patterns.aio",
    "Balance": "partita.patterns.operations.partition_skew",
    "BulkOutcome": "partita.patterns.operations.bulk",
    "Cost": "partita.patterns.protocol.calls",
    "Options": "partita.patterns.writing.context",
    "EventualTransaction": "partita.patterns.following.eventual_transactions",
    "eventual": "partita.patterns.following.eventual_transactions",
    "idempotent": "partita.patterns.following.eventual_transactions",
    "explain": "partita.patterns.design.explain",
    "Grant": "partita.patterns.grants.grants",
    "Index": "partita.patterns.types.indexes",
    "ListIndex": "partita.patterns.types.indexes",
    "index": "partita.patterns.types.indexes",
    "list_index": "partita.patterns.types.indexes",
    "at_least": "partita.patterns.keys.intervals",
    "at_most": "partita.patterns.keys.intervals",
    "between": "partita.patterns.keys.intervals",
    "less_than": "partita.patterns.keys.intervals",
    "more_than": "partita.patterns.keys.intervals",
    "starting_with": "partita.patterns.keys.intervals",
    "AesKey": "partita.patterns.encryption.keyring",
    "Keyring": "partita.patterns.encryption.keyring",
    "RsaKey": "partita.patterns.encryption.keyring",
    "Drift": "partita.patterns.following.index_lifecycle",
    "lint": "partita.patterns.design.lints",
    "LogBuffering": "partita.patterns.series.log_blobs",
    "LogLine": "partita.patterns.series.log_blobs",
    "LogPlace": "partita.patterns.series.log_names",
    "CopiedFrom": "partita.patterns.fields.markers",
    "CountOf": "partita.patterns.fields.markers",
    "Encrypted": "partita.patterns.fields.markers",
    "InBlob": "partita.patterns.fields.markers",
    "Named": "partita.patterns.fields.markers",
    "Series": "partita.patterns.fields.markers",
    "entity": "partita.patterns.types.decorators",
    "entity_type": "partita.patterns.types.decorators",
    "evolve": "partita.patterns.types.decorators",
    "upcast": "partita.patterns.types.decorators",
    "Partial": "partita.patterns.types.projections",
    "Prices": "partita.patterns.design.prices",
    "RawEntity": "partita.patterns.operations.raw",
    "Reference": "partita.patterns.operations.references",
    "reference": "partita.patterns.operations.references",
    "measure": "partita.patterns.operations.sizes",
    "TableSeries": "partita.patterns.types.table_series",
    "Int32": "partita.patterns.protocol.values",
    "view": "partita.patterns.types.views",
}

__all__ = [
    "AesKey",
    "Balance",
    "BulkOutcome",
    "CachedTable",
    "ConflictError",
    "CopiedFrom",
    "Cost",
    "CountOf",
    "Database",
    "DefinitionError",
    "Drift",
    "ETagMismatchError",
    "Encrypted",
    "EntityExistsError",
    "EntityNotFoundError",
    "EventualTransaction",
    "Grant",
    "Group",
    "InBlob",
    "Index",
    "IndexNotReadableError",
    "Int32",
    "Keyring",
    "ListIndex",
    "Log",
    "LogBuffering",
    "LogLine",
    "LogPlace",
    "Mixed",
    "Named",
    "NewerVersionError",
    "NotOrderedError",
    "Options",
    "Page",
    "Partial",
    "PartitaError",
    "Partition",
    "PeriodTables",
    "Prices",
    "ProjectionError",
    "Query",
    "RawEntity",
    "RawTable",
    "Reference",
    "RsaKey",
    "ScanRefusedError",
    "ScanWarning",
    "Series",
    "Table",
    "TableSeries",
    "ThrottledError",
    "UniqueViolationError",
    "Via",
    "access",
    "at_least",
    "at_most",
    "between",
    "check_access",
    "connect",
    "entity",
    "entity_type",
    "eventual",
    "evolve",
    "explain",
    "idempotent",
    "index",
    "less_than",
    "lint",
    "list_index",
    "measure",
    "more_than",
    "reference",
    "starting_with",
    "upcast",
    "view",
]


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        message = f"module 'partita.patterns' has no attribute {name!r}"
        raise AttributeError(message)
    found = getattr(importlib.import_module(place), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
