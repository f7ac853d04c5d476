"""Rotation of encryption keys: content keys are wrapped again, sealed values stay unchanged."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from partita.errors import EncryptionKeyError, EntityNotFoundError, ETagMismatchError
from partita.patterns.encryption import sealing
from partita.patterns.protocol.calls import (
    GetRow,
    QueryRows,
    RowOperation,
    Steps,
    Verb,
    WriteRows,
    ask,
)
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.table_series import TableSeries, read_each
from partita.patterns.writing.context import Context

Progress = Callable[[int], object]


def rotate(context: Context, model: EntityType[Any], progress: Progress) -> Steps[int]:
    """Wrap the content keys of all rows of a type again, copies included; return how many.

    This includes the period tables of the series that the database knows.
    """
    indexes = [index for each in model.family() for index in each.followers.indexes]
    tables = {model.table, *(index.table for index in indexes)}
    for each in {*model.family(), *model.lineage()}:
        for series in context.series.get(each.name, {}):
            tables.update((yield from series.tables()))
    return (yield from _rotate_tables(context, sorted(tables), progress))


def rotate_series(context: Context, series: TableSeries, progress: Progress) -> Steps[int]:
    """Wrap the content keys in all tables of a series again; return how many."""
    tables = yield from series.tables()
    return (yield from _rotate_tables(context, tables, progress))


def _rotate_tables(context: Context, tables: Sequence[str], progress: Progress) -> Steps[int]:
    done = 0
    for table in tables:
        rotate_one = partial(_rotate_table, context, progress, done)
        # A missing table, or one dropped because its period is over, has no rows.
        done += sum((yield from read_each([table], rotate_one)))
    return done


def _rotate_table(context: Context, progress: Progress, before: int, table: str) -> Steps[int]:
    query = QueryRows(table, select=("PartitionKey", "RowKey", sealing.SEAL))
    done = 0
    while True:
        page = yield from ask(query)
        for row in page.rows:
            if (yield from _rotate_row(context, table, row)):
                done += 1
                progress(before + done)
        if page.continuation is None:
            return done
        query = msgspec.structs.replace(query, continuation=page.continuation)


def _rotate_row(context: Context, table: str, row: Row) -> Steps[bool]:
    """Rewrap one row under its etag: over a newer write, the wrapped key would be wrong."""
    keyring = context.keyring
    if keyring is None:
        raise EncryptionKeyError(
            "KeyringMissing",
            "Keys cannot be rotated without a keyring.",
            hint="Pass connect(..., keyring=...) a keyring with the old key and the new one.",
        )
    found: Row | None = row
    while found is not None:
        metadata = found.properties.get(sealing.SEAL)
        if not isinstance(metadata, str):
            return False
        wrapped = sealing.rewrap(metadata, keyring)
        if wrapped == metadata:
            return False
        key = RowKey(found.key.partition, found.key.row)
        operation = RowOperation(Verb.MERGE, Row(key, {sealing.SEAL: wrapped}), found.etag)
        try:
            yield from ask(WriteRows(table, (operation,)))
        except (ETagMismatchError, EntityNotFoundError):
            found = yield from ask(GetRow(table, key, (sealing.SEAL,)))
            continue  # because it was written since, perhaps with the new key
        return True
    return False
