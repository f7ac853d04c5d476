"""The table design guide made executable: typed entities and patterns on the official SDK.

Works with Azure Table Storage, Azurite, Cosmos DB and Partita. This package exports the
asynchronous API; `partita.patterns.sync` has the same for programs without an event loop. Names
are imported when first used, because the pytest plugin is in this package and must load quickly.

protocol, fields, keys, encryption, types   what an entity class declares          pure
planning, design                            from conditions to requests; advice    pure
writing, following, operations, series      steps that yield calls                 pure
adoption                                    from stored rows to entity classes     pure
ports, grants                               the official clients: the only I/O
aio, sync (generated)                       the public API

A save: aio.Table.save → operations.verbs → writing.write → a group → ports.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partita.errors import ConflictError as ConflictError
    from partita.errors import DefinitionError as DefinitionError
    from partita.errors import EntityExistsError as EntityExistsError
    from partita.errors import EntityNotFoundError as EntityNotFoundError
    from partita.errors import ETagMismatchError as ETagMismatchError
    from partita.errors import IndexNotReadableError as IndexNotReadableError
    from partita.errors import NewerVersionError as NewerVersionError
    from partita.errors import NotOrderedError as NotOrderedError
    from partita.errors import PartitaError as PartitaError
    from partita.errors import ProjectionError as ProjectionError
    from partita.errors import ScanRefusedError as ScanRefusedError
    from partita.errors import ScanWarning as ScanWarning
    from partita.errors import ThrottledError as ThrottledError
    from partita.errors import UniqueViolationError as UniqueViolationError
    from partita.patterns.adoption.adopt import Adoption as Adoption
    from partita.patterns.aio import CachedTable as CachedTable
    from partita.patterns.aio import Database as Database
    from partita.patterns.aio import Group as Group
    from partita.patterns.aio import KeyedTable as KeyedTable
    from partita.patterns.aio import Large as Large
    from partita.patterns.aio import Log as Log
    from partita.patterns.aio import Mixed as Mixed
    from partita.patterns.aio import MixedQuery as MixedQuery
    from partita.patterns.aio import Page as Page
    from partita.patterns.aio import Partition as Partition
    from partita.patterns.aio import PeriodTables as PeriodTables
    from partita.patterns.aio import Query as Query
    from partita.patterns.aio import RawGroup as RawGroup
    from partita.patterns.aio import RawQuery as RawQuery
    from partita.patterns.aio import RawTable as RawTable
    from partita.patterns.aio import Table as Table
    from partita.patterns.aio import Via as Via
    from partita.patterns.aio import Worker as Worker
    from partita.patterns.aio import connect as connect
    from partita.patterns.design.access_patterns import access as access
    from partita.patterns.design.access_patterns import check_access as check_access
    from partita.patterns.design.calculator import Design as Design
    from partita.patterns.design.calculator import calculate_design as calculate_design
    from partita.patterns.design.explain import explain as explain
    from partita.patterns.design.lints import lint as lint
    from partita.patterns.design.prices import PriceList as PriceList
    from partita.patterns.design.prices import Prices as Prices
    from partita.patterns.design.report_page import report_page as report_page
    from partita.patterns.design.schema_lock import compare_lock as compare_lock
    from partita.patterns.design.schema_lock import write_lock as write_lock
    from partita.patterns.encryption.keyring import AesKey as AesKey
    from partita.patterns.encryption.keyring import Keyring as Keyring
    from partita.patterns.encryption.keyring import RsaKey as RsaKey
    from partita.patterns.encryption.sealing import rewrap as rewrap
    from partita.patterns.encryption.sealing import seal as seal
    from partita.patterns.encryption.sealing import unseal as unseal
    from partita.patterns.faults import Faults as Faults
    from partita.patterns.fields.large_values import LargeValue as LargeValue
    from partita.patterns.fields.markers import CopiedFrom as CopiedFrom
    from partita.patterns.fields.markers import CountOf as CountOf
    from partita.patterns.fields.markers import Encrypted as Encrypted
    from partita.patterns.fields.markers import InBlob as InBlob
    from partita.patterns.fields.markers import MaxOf as MaxOf
    from partita.patterns.fields.markers import MinOf as MinOf
    from partita.patterns.fields.markers import Named as Named
    from partita.patterns.fields.markers import Series as Series
    from partita.patterns.fields.markers import SumOf as SumOf
    from partita.patterns.following.eventual_transactions import (
        EventualTransaction as EventualTransaction,
    )
    from partita.patterns.following.eventual_transactions import Transaction as Transaction
    from partita.patterns.following.eventual_transactions import eventual as eventual
    from partita.patterns.following.eventual_transactions import idempotent as idempotent
    from partita.patterns.following.eventual_transactions import transaction as transaction
    from partita.patterns.following.index_lifecycle import Drift as Drift
    from partita.patterns.grants.grants import Grant as Grant
    from partita.patterns.keys.intervals import at_least as at_least
    from partita.patterns.keys.intervals import at_most as at_most
    from partita.patterns.keys.intervals import between as between
    from partita.patterns.keys.intervals import less_than as less_than
    from partita.patterns.keys.intervals import more_than as more_than
    from partita.patterns.keys.intervals import starting_with as starting_with
    from partita.patterns.operations.bulk import BulkOutcome as BulkOutcome
    from partita.patterns.operations.partition_skew import Balance as Balance
    from partita.patterns.operations.raw import RawEntity as RawEntity
    from partita.patterns.operations.references import Reference as Reference
    from partita.patterns.operations.references import reference as reference
    from partita.patterns.operations.sizes import measure as measure
    from partita.patterns.operations.versions import etag_of as etag_of
    from partita.patterns.operations.versions import timestamp_of as timestamp_of
    from partita.patterns.planning.predicates import is_absent as is_absent
    from partita.patterns.planning.predicates import is_in as is_in
    from partita.patterns.planning.predicates import is_present as is_present
    from partita.patterns.planning.predicates import present as present
    from partita.patterns.planning.requests import QueryKind as QueryKind
    from partita.patterns.protocol.calls import Cost as Cost
    from partita.patterns.protocol.calls import TablePolicy as TablePolicy
    from partita.patterns.protocol.capabilities import capabilities_of as capabilities_of
    from partita.patterns.protocol.values import Int32 as Int32
    from partita.patterns.protocol.values import RowKey as RowKey
    from partita.patterns.series.log_blobs import LogBuffering as LogBuffering
    from partita.patterns.series.log_blobs import LogLine as LogLine
    from partita.patterns.series.log_handler import LogHandler as LogHandler
    from partita.patterns.series.log_names import LogPlace as LogPlace
    from partita.patterns.types.decorators import entity as entity
    from partita.patterns.types.decorators import entity_type as entity_type
    from partita.patterns.types.decorators import evolve as evolve
    from partita.patterns.types.decorators import upcast as upcast
    from partita.patterns.types.indexes import Index as Index
    from partita.patterns.types.indexes import ListIndex as ListIndex
    from partita.patterns.types.indexes import index as index
    from partita.patterns.types.indexes import list_index as list_index
    from partita.patterns.types.projections import Partial as Partial
    from partita.patterns.types.table_series import TableSeries as TableSeries
    from partita.patterns.types.views import view as view
    from partita.patterns.writing.context import Options as Options

_NAMES = {
    "partita.errors": (
        "ConflictError DefinitionError ETagMismatchError EntityExistsError "
        "EntityNotFoundError IndexNotReadableError NewerVersionError NotOrderedError "
        "PartitaError ProjectionError ScanRefusedError ScanWarning ThrottledError "
        "UniqueViolationError"
    ),
    "partita.patterns.adoption.adopt": "Adoption",
    "partita.patterns.aio": (
        "CachedTable Database Group KeyedTable Large Log Mixed MixedQuery Page Partition "
        "PeriodTables Query RawGroup RawQuery RawTable Table Via Worker connect"
    ),
    "partita.patterns.design.access_patterns": "access check_access",
    "partita.patterns.design.calculator": "Design calculate_design",
    "partita.patterns.design.explain": "explain",
    "partita.patterns.design.lints": "lint",
    "partita.patterns.design.prices": "PriceList Prices",
    "partita.patterns.design.report_page": "report_page",
    "partita.patterns.design.schema_lock": "compare_lock write_lock",
    "partita.patterns.encryption.keyring": "AesKey Keyring RsaKey",
    "partita.patterns.encryption.sealing": "rewrap seal unseal",
    "partita.patterns.faults": "Faults",
    "partita.patterns.fields.large_values": "LargeValue",
    "partita.patterns.fields.markers": (
        "CopiedFrom CountOf Encrypted InBlob MaxOf MinOf Named Series SumOf"
    ),
    "partita.patterns.following.eventual_transactions": (
        "EventualTransaction Transaction eventual idempotent transaction"
    ),
    "partita.patterns.following.index_lifecycle": "Drift",
    "partita.patterns.grants.grants": "Grant",
    "partita.patterns.keys.intervals": (
        "at_least at_most between less_than more_than starting_with"
    ),
    "partita.patterns.operations.bulk": "BulkOutcome",
    "partita.patterns.operations.partition_skew": "Balance",
    "partita.patterns.operations.raw": "RawEntity",
    "partita.patterns.operations.references": "Reference reference",
    "partita.patterns.operations.sizes": "measure",
    "partita.patterns.operations.versions": "etag_of timestamp_of",
    "partita.patterns.planning.predicates": "is_absent is_in is_present present",
    "partita.patterns.planning.requests": "QueryKind",
    "partita.patterns.protocol.calls": "Cost TablePolicy",
    "partita.patterns.protocol.capabilities": "capabilities_of",
    "partita.patterns.protocol.values": "Int32 RowKey",
    "partita.patterns.series.log_blobs": "LogBuffering LogLine",
    "partita.patterns.series.log_handler": "LogHandler",
    "partita.patterns.series.log_names": "LogPlace",
    "partita.patterns.types.decorators": "entity entity_type evolve upcast",
    "partita.patterns.types.indexes": "Index ListIndex index list_index",
    "partita.patterns.types.projections": "Partial",
    "partita.patterns.types.table_series": "TableSeries",
    "partita.patterns.types.views": "view",
    "partita.patterns.writing.context": "Options",
}
"""The public names of each module, as in the imports above."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_MODULES)  # noqa: PLE0605 - type checkers use the imports above


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        message = f"module 'partita.patterns' has no attribute {name!r}"
        raise AttributeError(message)
    found = getattr(importlib.import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
