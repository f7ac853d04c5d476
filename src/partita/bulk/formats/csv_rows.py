"""CSV with types, as Storage Explorer writes it; pure.

    PartitionKey,RowKey,Timestamp,Name,Name@type,Total,Total@type

A cell of `Name@type` has the type of the cell before it; both are empty if the entity has no such
property. An empty text is written as `""`. Records are those of RFC 4180: a cell with a comma, a
quote or a line break is quoted, and lines end in CRLF or LF.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    TypeGuess,
    check_columns,
    kind_of,
    renamed,
)
from partita.bulk.formats.json_lines import LINE_BYTES_MAX, split_lines
from partita.bulk.formats.rows import Reject, Row
from partita.errors import ConfigurationError, InvalidPropertyError, PartitaError
from partita.tables import edm
from partita.tables.edm import Members
from partita.tables.entity import check_key

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Cells that spreadsheets run as formulas."""

_CELL = re.compile(r'"([^"]*(?:""[^"]*)*)"(?:,|\Z)|([^",]*)(?:,|\Z)')
_QUOTED = re.compile(r'[",\r\n]|^\Z')


class Layout(msgspec.Struct, frozen=True):
    """What the columns of a file mean."""

    width: int
    partition_key: int
    row_key: int
    properties: tuple[tuple[int, str, int | None, str | None], ...]
    """Position, name, position of the type in the row if there is one, type of the column."""

    @property
    def untyped(self) -> list[str]:
        """The names of columns whose type is not known."""
        return [name for _, name, place, kind in self.properties if place is None and kind is None]


class CsvOptions(msgspec.Struct, frozen=True):
    """What the command line says about a CSV file."""

    types: Mapping[str, str] = {}
    partition_key: str = PARTITION_KEY
    """The column that has the partition key."""
    row_key: str = ROW_KEY
    renames: Mapping[str, str] = {}
    """Columns of the file, and the properties that they become."""

    @property
    def keys(self) -> tuple[str, str]:
        """The columns of the two keys after columns were renamed."""
        first, second = self.partition_key, self.row_key
        return self.renames.get(first, first), self.renames.get(second, second)


# --- reading


def read_layout(header: Sequence[str | None], options: CsvOptions) -> Layout:
    """Return what the columns mean; a header that is not usable is an error."""
    names = renamed([(name or "").strip() for name in header], options.renames)
    plain = [name for name in names if not name.endswith(TYPE_COLUMN)]
    partition_key, row_key = options.keys
    for key, flag in ((partition_key, "--partition-key"), (row_key, "--row-key")):
        if key not in plain:
            raise ConfigurationError(
                "HeaderUnusable",
                f"The file has no column {key!r}.",
                hint=f"Name the column of the key with {flag} COLUMN. "
                f"The columns are: {', '.join(plain[:20])}.",
            )
    places = {name: place for place, name in enumerate(names)}
    keys = {partition_key, row_key}
    check_columns(plain, options.types, keys)
    properties = []
    for place, name in enumerate(names):
        if name in keys or name == TIMESTAMP or name.endswith(TYPE_COLUMN):
            continue
        typed_by = name + TYPE_COLUMN
        properties.append((place, name, places.get(typed_by), options.types.get(name)))
    return Layout(
        len(names),
        names.index(partition_key),
        names.index(row_key),
        tuple(properties),
    )


def csv_rows(pieces: Iterable[bytes], options: CsvOptions) -> Iterator[Row | Reject]:
    """Read entities; the place of a row is the line where it starts."""
    records = split_records(split_lines(pieces))
    layout = _layout_of(records, options)
    if layout.untyped:
        raise ConfigurationError(
            "TypesMissing",
            f"The type of the column {layout.untyped[0]!r} is not known.",
            facts={"columns": ", ".join(layout.untyped[:20])},
            hint=f"Give --types {layout.untyped[0]}=String (or Int32, Int64, Double, Boolean, "
            "DateTime, Guid, Binary), or --infer to have all types guessed and shown.",
        )
    for place, record in records:
        if record:
            yield _row(place, record, layout)


def guess_types(pieces: Iterable[bytes], options: CsvOptions) -> list[Column]:
    """Guess the types of the columns that have none, from all rows."""
    records = split_records(split_lines(pieces))
    layout = _layout_of(records, options)
    untyped = [
        (place, name)
        for place, name, type_place, kind in layout.properties
        if type_place is None and kind is None
    ]
    return [Column(each.name, each.kind) for each in _described(records, layout.width, untyped)]


def describe_columns(pieces: Iterable[bytes]) -> list[FileColumn]:
    """Return all columns with their guessed types and first values; no key is chosen yet."""
    records = split_records(split_lines(pieces))
    names = [(name or "").strip() for name in _header_of(records)]
    places = [(at, name) for at, name in enumerate(names) if not name.endswith(TYPE_COLUMN)]
    return [
        msgspec.structs.replace(each, kind=None) if each.name + TYPE_COLUMN in names else each
        for each in _described(records, len(names), places)
    ]


def _described(
    records: Iterable[tuple[int, str]], width: int, places: Sequence[tuple[int, str]]
) -> list[FileColumn]:
    guesses = [(place, TypeGuess(), list[str]()) for place, _ in places]
    for _, record in records:
        cells = split_cells(record)
        if cells is None or len(cells) != width:
            continue
        for place, guess, first in guesses:
            text = cells[place]
            if text is not None:
                guess.add(text)
                if len(first) < FIRST_VALUES_MAX:
                    first.append(text[:FIRST_VALUE_CHARACTERS_MAX])
    return [
        FileColumn(name, guess.kind, first)
        for (_, name), (_, guess, first) in zip(places, guesses, strict=True)
    ]


def _header_of(records: Iterator[tuple[int, str]]) -> list[str | None]:
    header = split_cells(next(records, (1, ""))[1])
    if not header or not any(header):
        raise ConfigurationError(
            "HeaderUnusable",
            "The file has no header.",
            hint="Write the names of the columns in the first line.",
        )
    return header


def _layout_of(records: Iterator[tuple[int, str]], options: CsvOptions) -> Layout:
    return read_layout(_header_of(records), options)


def _row(place: int, record: str, layout: Layout) -> Row | Reject:
    cells = split_cells(record)
    if cells is None:
        return Reject(place, "The quotes of the line are not closed or not doubled.", record[:2000])
    if len(cells) != layout.width:
        cells_text = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
        reason = f"The line has {cells_text}; the header has {layout.width}."
        return Reject(place, reason, record[:2000])
    try:
        partition_key = check_key(PARTITION_KEY, cells[layout.partition_key] or "")
        row_key = check_key(ROW_KEY, cells[layout.row_key] or "")
        properties: Members = {}
        for at, name, type_at, column_kind in layout.properties:
            value = cells[at]
            told = cells[type_at] if type_at is not None else None
            if told:
                _add(properties, name, kind_of(told), value or "")
            elif value is not None:
                _add(properties, name, column_kind, value)
    except PartitaError as error:
        return Reject.of(place, error, record)
    document = print_entity(Typed(partition_key, row_key, properties))
    return Row(place, partition_key, row_key, document)


def _add(properties: Members, name: str, kind: str | None, text: str) -> None:
    if kind is None:
        raise InvalidPropertyError(
            "TypesMissing",
            "The type of the value is missing or not known.",
            facts={"property": name},
            hint="Give --types.",
        )
    try:
        add_property(properties, name, kind, text)
    except InvalidPropertyError as error:
        raise InvalidPropertyError(
            error.code,
            f"The value does not fit the type {kind.removeprefix('Edm.')}.",
            facts={"property": name},
        ) from error


def split_records(lines: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """Join the lines of records whose quoted cells have line breaks; yield their first lines."""
    held: list[str] = []
    quotes = size = 0
    first = 1
    for place, line in enumerate(lines, 1):
        text = line.decode("utf-8", "surrogateescape")
        if not held:
            first = place
        held.append(text)
        quotes += text.count('"')
        size += len(line)
        if quotes % 2 == 0 or size > LINE_BYTES_MAX:
            yield first, "\n".join(held).removesuffix("\r")
            held, quotes, size = [], 0, 0
    if held:
        yield first, "\n".join(held).removesuffix("\r")


def split_cells(record: str) -> list[str | None] | None:
    """Return the cells of a record: None for an empty one without quotes.

    None instead of a list: the quotes are wrong, or the text is not UTF-8.

    >>> split_cells('a,,"","b,c"')
    ['a', None, '', 'b,c']
    """
    if not record.isascii() and any("\ud800" <= c <= "\udfff" for c in record):
        return None
    if '"' not in record:
        return [cell or None for cell in record.split(",")]
    cells: list[str | None] = []
    at = 0
    while True:
        found = _CELL.match(record, at)
        if found is None:
            return None
        quoted, bare = found.groups()
        cells.append((bare or None) if quoted is None else quoted.replace('""', '"'))
        at = found.end()
        if at == len(record):
            if found[0].endswith(","):
                cells.append(None)
            return cells


# --- writing


def print_header(columns: Sequence[Column]) -> bytes:
    names = [PARTITION_KEY, ROW_KEY, TIMESTAMP]
    for column in columns:
        names += (column.name, column.name + TYPE_COLUMN)
    return _line(names)


def print_row(entity: Typed, columns: Sequence[Column], *, is_safe: bool = False) -> bytes:
    """Return an entity as a line; `is_safe` puts a quote before cells that look like formulas."""
    cells: list[str | None] = [entity.partition_key, entity.row_key, entity.timestamp or ""]
    properties = entity.properties
    for column in columns:
        value = properties.get(column.name)
        if value is None:
            cells += (None, None)
        else:
            cells += (print_value(value), edm.type_of(properties, column.name))
    if is_safe:
        cells = [f"'{c}" if c and c.startswith(FORMULA_STARTS) else c for c in cells]
    return _line(cells)


def print_value(value: edm.Scalar) -> str:
    """Return a stored value as a text that its type reads back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _line(cells: Sequence[str | None]) -> bytes:
    return (",".join(map(_cell, cells)) + "\r\n").encode()


def _cell(text: str | None) -> str:
    if text is None:
        return ""
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text
