"""Parquet files of entities, by pyarrow (extra `parquet`).

A column has the type of its values: string, int32, int64, double, bool, timestamp[ns, UTC], binary,
and 16 bytes marked as a Guid in the metadata of the field. Values of several types, and times that
64 bits of nanoseconds cannot hold (before 1677 or after 2262), are text with a column `Name@type`.
"""

import base64
import importlib
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import msgspec

from partita.bulk.entities import (
    PARTITION_KEY,
    ROW_KEY,
    TIMESTAMP,
    Typed,
    add_property,
    print_entity,
)
from partita.bulk.formats.columns import (
    FIRST_VALUE_CHARACTERS_MAX,
    FIRST_VALUES_MAX,
    TYPE_COLUMN,
    Column,
    FileColumn,
    check_columns,
    kind_of,
    renamed,
)
from partita.bulk.formats.csv_rows import CsvOptions, print_value
from partita.bulk.formats.rows import Reject, Row
from partita.errors import ConfigurationError, InvalidPropertyError, PartitaError
from partita.tables import edm
from partita.tables.entity import check_key

GROUP_ROWS = 5_000
NANOSECONDS_PER_TICK = 100
TICKS_64_BIT_MAX = (2**63 - 1) // NANOSECONDS_PER_TICK
_MARK = b"partita.type"
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def import_pyarrow() -> Any:
    """Import pyarrow and its Parquet module; an error names the extra."""
    try:
        pa = importlib.import_module("pyarrow")
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigurationError(
            "NotInstalled",
            "Parquet needs the package pyarrow, which is not installed.",
            hint='Run: pip install "./partita[parquet]"',
        ) from error
    return pa


def fits_nanoseconds(text: str) -> bool:
    """Return whether a DateTime fits 64 bits of nanoseconds."""
    ticks = edm.ticks_of(text)
    return ticks is not None and abs(ticks) <= TICKS_64_BIT_MAX


# --- writing


class ParquetWriter:
    """Writes entities with known columns; row groups bound the memory."""

    def __init__(self, file: BinaryIO, columns: Sequence[Column]) -> None:
        self._pa = import_pyarrow()
        self._columns = columns
        self._schema = self._pa.schema(
            [
                *(self._field(Column(name, edm.STRING)) for name in (PARTITION_KEY, ROW_KEY)),
                self._field(Column(TIMESTAMP, edm.DATETIME)),
                *(field for column in columns for field in self._fields(column)),
            ]
        )
        self._file = self._pa.parquet.ParquetWriter(file, self._schema)
        self._rows: list[list[object]] = []

    def _fields(self, column: Column) -> list[Any]:
        if column.kind is not None:
            return [self._field(column)]
        names = (column.name, column.name + TYPE_COLUMN)
        return [self._field(Column(name, edm.STRING)) for name in names]

    def _field(self, column: Column) -> Any:
        pa = self._pa
        types = {
            edm.STRING: pa.string(),
            edm.INT32: pa.int32(),
            edm.INT64: pa.int64(),
            edm.DOUBLE: pa.float64(),
            edm.BOOLEAN: pa.bool_(),
            edm.DATETIME: pa.timestamp("ns", tz="UTC"),
            edm.GUID: pa.binary(16),
            edm.BINARY: pa.binary(),
        }
        assert column.kind is not None
        return pa.field(column.name, types[column.kind], metadata={_MARK: column.kind.encode()})

    def write(self, entity: Typed) -> None:
        stamp = entity.timestamp
        row: list[object] = [entity.partition_key, entity.row_key]
        row.append(_nanoseconds(stamp) if stamp and fits_nanoseconds(stamp) else None)
        properties = entity.properties
        for column in self._columns:
            value = properties.get(column.name)
            if column.kind is not None:
                row.append(None if value is None else _STORED[column.kind](value))
            elif value is None:
                row += (None, None)
            else:
                row += (print_value(value), edm.type_of(properties, column.name))
        self._rows.append(row)
        if len(self._rows) >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            pa = self._pa
            arrays = [
                pa.array(values, field.type)
                for values, field in zip(zip(*self._rows, strict=True), self._schema, strict=True)
            ]
            self._file.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
            self._rows.clear()

    def close(self) -> None:
        self._flush()
        self._file.close()


def _nanoseconds(text: object) -> int:
    ticks = edm.ticks_of(str(text))
    assert ticks is not None
    return ticks * NANOSECONDS_PER_TICK


_STORED: Mapping[str, Any] = {
    edm.STRING: str,
    edm.INT32: int,
    edm.INT64: int,
    edm.DOUBLE: float,
    edm.BOOLEAN: bool,
    edm.DATETIME: _nanoseconds,
    edm.GUID: lambda text: uuid.UUID(text).bytes,
    edm.BINARY: base64.b64decode,
}


# --- reading


def parquet_rows(file: BinaryIO, options: CsvOptions) -> Iterator[Row | Reject]:
    """Read entities; the place is the number of the row."""
    pa, source = _opened(file)
    schema = source.schema_arrow
    names = renamed(schema.names, options.renames)
    plain = [name for name in names if not name.endswith(TYPE_COLUMN)]
    for key, flag in zip(options.keys, ("--partition-key", "--row-key"), strict=True):
        if key not in plain:
            raise ConfigurationError(
                "HeaderUnusable",
                f"The file has no column {key!r}.",
                hint=f"Name the column of the key with {flag} COLUMN. "
                f"The columns are: {', '.join(plain[:20])}.",
            )
    check_columns(plain, options.types, set(options.keys))
    kinds = {
        name: _kind(pa, schema.field(at).with_name(name), options.types)
        for at, name in enumerate(names)
        if not name.endswith(TYPE_COLUMN)
    }
    place = 0
    for batch in _batches(pa, source):
        columns = {name: _values(pa, batch.column(at)) for at, name in enumerate(names)}
        for number in range(batch.num_rows):
            place += 1
            cells = {name: values[number] for name, values in columns.items()}
            yield _row(place, cells, kinds, options)


def describe_parquet(file: BinaryIO) -> list[FileColumn]:
    """Return the columns with their first values; the file names the types."""
    pa, source = _opened(file)
    names = [name for name in source.schema_arrow.names if not name.endswith(TYPE_COLUMN)]
    batch = next(_batches(pa, source, FIRST_VALUES_MAX), None)
    return [
        FileColumn(name, None, [] if batch is None else _first_values(pa, batch.column(name)))
        for name in names
    ]


def _first_values(pa: Any, column: Any) -> list[str]:
    found = [value for value in _plain_values(pa, column) if value is not None]
    return [str(value)[:FIRST_VALUE_CHARACTERS_MAX] for value in found]


def _opened(file: BinaryIO) -> tuple[Any, Any]:
    pa = import_pyarrow()
    try:
        return pa, pa.parquet.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable("The file is not Parquet", error) from error


def _batches(pa: Any, source: Any, rows: int = GROUP_ROWS) -> Iterator[Any]:
    try:
        yield from source.iter_batches(batch_size=rows)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable("The file is damaged", error) from error


def _unreadable(what: str, error: Exception) -> ConfigurationError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ConfigurationError("FileUnreadable", f"{what}: {reason}")


def _row(
    place: int, cells: Mapping[str, object], kinds: Mapping[str, str], options: CsvOptions
) -> Row | Reject:
    try:
        for name, value in cells.items():
            if isinstance(value, _Unfit):
                raise _unfit(name, value.reason)
        first, second = options.keys
        partition_key = check_key(PARTITION_KEY, _key_text(cells[first]))
        row_key = check_key(ROW_KEY, _key_text(cells[second]))
        properties: edm.Members = {}
        for name, kind in kinds.items():
            value = cells[name]
            if value is None or name in (first, second, TIMESTAMP):
                continue
            told = cells.get(name + TYPE_COLUMN)
            own = kind_of(str(told)) if told is not None else kind
            try:
                add_property(properties, name, own or "", _loaded(name, own or "", value))
            except _CONVERSION_ERRORS as error:
                raise _unfit(name, str(error)) from error
    except PartitaError as error:
        return Reject.of(place, error, _shown(cells))
    document = print_entity(Typed(partition_key, row_key, properties))
    return Row(place, partition_key, row_key, document)


def _shown(cells: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in cells.items() if value is not None)


def _key_text(value: object) -> str:
    return "" if value is None else str(value)


def _loaded(name: str, kind: str, value: object) -> object:
    """Return a value in the form that `edm.canonical` takes."""
    if isinstance(value, bytes):
        if kind == edm.GUID:
            return str(uuid.UUID(bytes=value))
        return base64.b64encode(value).decode()
    if isinstance(value, int) and kind == edm.DATETIME:
        if value % NANOSECONDS_PER_TICK:
            raise _not_ticks(name)
        return edm.text_of(value // NANOSECONDS_PER_TICK)
    if kind == edm.DOUBLE and isinstance(value, float):
        return value if math.isfinite(value) else _special(value)
    if kind == edm.STRING and not isinstance(value, str):
        return print_value(value) if isinstance(value, bool | int | float) else str(value)
    return value


def _special(value: float) -> str:
    if value > 0:
        return "Infinity"
    return "-Infinity" if value < 0 else "NaN"


class _Unfit(msgspec.Struct, frozen=True):
    """A value that Python has no equivalent of, such as a time of the year 20000."""

    reason: str

    def __repr__(self) -> str:
        return "?"


_CONVERSION_ERRORS = (ValueError, OverflowError, TypeError, NotImplementedError)
"""What pyarrow and Python raise about values; text that is not UTF-8 is a ValueError."""


def _values(pa: Any, column: Any) -> Sequence[Any]:
    """Return the values of a column; those that cannot be converted are `_Unfit`."""
    try:
        return _plain_values(pa, column)
    except _CONVERSION_ERRORS:
        return [_value(pa, column.slice(number, 1)) for number in range(len(column))]


def _value(pa: Any, column: Any) -> Any:
    try:
        return _plain_values(pa, column)[0]
    except _CONVERSION_ERRORS as error:
        return _Unfit((str(error).splitlines() or [type(error).__name__])[0])


def _plain_values(pa: Any, column: Any) -> Sequence[Any]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain_values(pa, column.dictionary_decode())
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_values(pa, column.storage)
    if pa.types.is_timestamp(kind):
        factor = _UNITS[kind.unit]
        found = column.cast(pa.int64()).to_pylist()
        return [None if value is None else value * factor for value in found]
    if pa.types.is_date(kind):
        return [None if value is None else value.isoformat() for value in column.to_pylist()]
    found = column.to_pylist()
    return found if isinstance(found, list) else list(found)


def _kind(pa: Any, field: Any, types: Mapping[str, str]) -> str:  # noqa: PLR0911 - one switch
    """Return the type of a column; a type without an equivalent needs --types."""
    name, kind = field.name, field.type
    if name in types:
        return types[name]
    marked = (field.metadata or {}).get(_MARK, b"").decode("ascii", "replace")
    if kind_of(marked) is not None:
        return str(kind_of(marked))
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if isinstance(kind, pa.BaseExtensionType) and kind.storage_type == pa.binary(16):
        return edm.GUID
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return edm.STRING
    if pa.types.is_boolean(kind):
        return edm.BOOLEAN
    if kind in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()):
        return edm.INT32
    if pa.types.is_integer(kind):
        return edm.INT64
    if pa.types.is_floating(kind):
        return edm.DOUBLE
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return edm.BINARY
    if pa.types.is_fixed_size_binary(kind):
        return edm.BINARY
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return edm.DATETIME
    raise ConfigurationError(
        "TypesMissing",
        f"The column {name!r} has the type {kind}, which is not one of the table service.",
        hint=f"Give --types {name}=String, or another type that its values fit.",
    )


def _unfit(name: str, reason: str) -> InvalidPropertyError:
    return InvalidPropertyError(
        "InvalidInput",
        f"The value cannot be converted: {reason.rstrip('.')}.",
        facts={"property": name},
    )


def _not_ticks(name: str) -> InvalidPropertyError:
    return InvalidPropertyError(
        "OutOfRangeInput",
        "The time has more than seven digits of a second.",
        facts={"property": name},
    )


def write_parquet(file: BinaryIO, entities: Iterable[Typed], columns: Sequence[Column]) -> None:
    """Write all entities."""
    writer = ParquetWriter(file, columns)
    for entity in entities:
        writer.write(entity)
    writer.close()
