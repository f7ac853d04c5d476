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
    from partita.patterns.access_patterns import access, check_access
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
    from partita.patterns.balance import Balance
    from partita.patterns.bulk import BulkOutcome
    from partita.patterns.calls import Cost
    from partita.patterns.context import Options
    from partita.patterns.eventual_transactions import EventualTransaction, eventual, idempotent
    from partita.patterns.explaining import explain
    from partita.patterns.grants import Grant
    from partita.patterns.indexes import Index, ListIndex, index, list_index
    from partita.patterns.intervals import (
        at_least,
        at_most,
        between,
        less_than,
        more_than,
        starting_with,
    )
    from partita.patterns.keyring import AesKey, Keyring, RsaKey
    from partita.patterns.lifecycle import Drift
    from partita.patterns.lints import lint
    from partita.patterns.log_blobs import LogBuffering, LogLine
    from partita.patterns.log_names import LogPlace
    from partita.patterns.markers import CopiedFrom, CountOf, Encrypted, InBlob, Named, Series
    from partita.patterns.model import entity, entity_type, evolve, upcast
    from partita.patterns.prices import Prices
    from partita.patterns.projections import Partial
    from partita.patterns.raw import RawEntity
    from partita.patterns.references import Reference, reference
    from partita.patterns.sizes import measure
    from partita.patterns.table_series import TableSeries
    from partita.patterns.values import Int32
    from partita.patterns.views import view

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
    "access": "partita.patterns.access_patterns",
    "check_access": "partita.patterns.access_patterns",
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
    "Balance": "partita.patterns.balance",
    "BulkOutcome": "partita.patterns.bulk",
    "Cost": "partita.patterns.calls",
    "Options": "partita.patterns.context",
    "EventualTransaction": "partita.patterns.eventual_transactions",
    "eventual": "partita.patterns.eventual_transactions",
    "idempotent": "partita.patterns.eventual_transactions",
    "explain": "partita.patterns.explaining",
    "Grant": "partita.patterns.grants",
    "Index": "partita.patterns.indexes",
    "ListIndex": "partita.patterns.indexes",
    "index": "partita.patterns.indexes",
    "list_index": "partita.patterns.indexes",
    "at_least": "partita.patterns.intervals",
    "at_most": "partita.patterns.intervals",
    "between": "partita.patterns.intervals",
    "less_than": "partita.patterns.intervals",
    "more_than": "partita.patterns.intervals",
    "starting_with": "partita.patterns.intervals",
    "AesKey": "partita.patterns.keyring",
    "Keyring": "partita.patterns.keyring",
    "RsaKey": "partita.patterns.keyring",
    "Drift": "partita.patterns.lifecycle",
    "lint": "partita.patterns.lints",
    "LogBuffering": "partita.patterns.log_blobs",
    "LogLine": "partita.patterns.log_blobs",
    "LogPlace": "partita.patterns.log_names",
    "CopiedFrom": "partita.patterns.markers",
    "CountOf": "partita.patterns.markers",
    "Encrypted": "partita.patterns.markers",
    "InBlob": "partita.patterns.markers",
    "Named": "partita.patterns.markers",
    "Series": "partita.patterns.markers",
    "entity": "partita.patterns.model",
    "entity_type": "partita.patterns.model",
    "evolve": "partita.patterns.model",
    "upcast": "partita.patterns.model",
    "Partial": "partita.patterns.projections",
    "Prices": "partita.patterns.prices",
    "RawEntity": "partita.patterns.raw",
    "Reference": "partita.patterns.references",
    "reference": "partita.patterns.references",
    "measure": "partita.patterns.sizes",
    "TableSeries": "partita.patterns.table_series",
    "Int32": "partita.patterns.values",
    "view": "partita.patterns.views",
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
