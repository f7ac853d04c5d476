"""The columns of a table as files have them: names, types, and types that are guessed; pure."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from partita.bulk.entities import PARTITION_KEY, ROW_KEY, SYSTEM, Typed
from partita.errors import ConfigurationError
from partita.tables import edm
from partita.tables.edm import TYPE_SUFFIX
from partita.tables.entity import is_property_name

KINDS = {
    kind.removeprefix("Edm.").lower(): kind
    for kind in (
        *(edm.STRING, edm.INT32, edm.INT64, edm.DOUBLE),
        *(edm.BOOLEAN, edm.DATETIME, edm.GUID, edm.BINARY),
    )
}
"""The types by their short names in lower case: `--types` and files may use them."""
TYPE_COLUMN = "@type"
"""The end of the name of a column that has the types of the column before it."""
COLUMNS_MAX = 10_000
SHOWN_COLUMNS_MAX = 20
FIRST_VALUES_MAX = 3
"""Values of a column that are shown before an import."""
FIRST_VALUE_CHARACTERS_MAX = 60
DOUBLE_DIGITS_MAX = 17
"""Significant digits that a Double is printed with at most."""

_WHOLE = re.compile(r"0|-?[1-9]\d{0,18}", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,300})(?:\.\d{1,300})?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_EXPONENT = re.compile(r"[eE].*")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d.*)?", re.ASCII)
_GUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class Column(msgspec.Struct, frozen=True):
    """A property, and the type of all its values; None: they differ."""

    name: str
    kind: str | None


class FileColumn(msgspec.Struct, frozen=True):
    """A column of a file before its keys are chosen."""

    name: str
    kind: str | None
    """The type that was guessed; None: the file names the types of its values."""
    first: list[str]
    """The first values, as text."""


def kind_of(text: str) -> str | None:
    """Return the type that a text names: `Edm.Int64`, `Int64` or `int64`; None if it is none."""
    return KINDS.get(text.strip().removeprefix("Edm.").lower())


def parse_types(texts: Iterable[str]) -> dict[str, str]:
    """Parse `Name=Int64` of `--types`, several separated by commas."""
    types: dict[str, str] = {}
    for part in (part for text in texts for part in text.split(",")):
        name, _, kind = part.partition("=")
        found = kind_of(kind)
        if not name.strip() or found is None:
            raise ConfigurationError(
                "Configuration",
                f"{part.strip()!r} is not NAME=TYPE.",
                hint="Use a type of: " + ", ".join(k.removeprefix("Edm.") for k in KINDS.values()),
            )
        types[name.strip()] = found
    return types


def parse_renames(texts: Iterable[str]) -> dict[str, str]:
    """Parse `Order Date=OrderDate` of `--rename`: a column of a file and its property.

    >>> parse_renames(["Order Date=OrderDate"])
    {'Order Date': 'OrderDate'}
    """
    found: dict[str, str] = {}
    for text in texts:
        column, separator, name = text.rpartition("=")
        if not separator or not name.strip():  # the name of a column may be empty
            raise ConfigurationError(
                "Configuration",
                f"{text!r} is not COLUMN=NAME.",
                hint='Write --rename "Order Date=OrderDate".',
            )
        found[column.strip()] = name.strip()
    return found


def renamed(names: Iterable[str], renames: Mapping[str, str]) -> list[str]:
    """Return the properties of columns, also of the columns with their types."""
    found = list(names)
    unknown = sorted(set(renames) - set(found))
    if unknown:
        raise ConfigurationError(
            "HeaderUnusable",
            f"--rename names the column {unknown[0]!r}, which the file does not have.",
            hint=f"The columns are: {', '.join(found[:20])}.",
        )
    typed = {old + TYPE_COLUMN: new + TYPE_COLUMN for old, new in renames.items()}
    return [renames.get(name, typed.get(name, name)) for name in found]


class ColumnCounter:
    """Finds the columns of entities, in the order in which they are first seen."""

    def __init__(self) -> None:
        self._kinds: dict[str, set[str]] = {}

    def add(self, entity: Typed) -> None:
        properties = entity.properties
        for name in properties:
            if not name.endswith(TYPE_SUFFIX):
                self._kinds.setdefault(name, set()).add(edm.type_of(properties, name))
        if len(self._kinds) > COLUMNS_MAX:
            raise ConfigurationError(
                "TooManyColumns",
                f"The entities have more than {COLUMNS_MAX:,} different properties.",
                hint="Export JSON lines, which has no columns, or choose some with --select.",
            )

    def columns(self) -> list[Column]:
        return [
            Column(name, next(iter(kinds)) if len(kinds) == 1 else None)
            for name, kinds in self._kinds.items()
        ]


class TypeGuess:
    """Guesses the type of a column from all its texts."""

    def __init__(self) -> None:
        self._possible: list[str] | None = None

    def add(self, text: str) -> None:
        possible = _GUESSES if self._possible is None else self._possible
        if possible != [edm.STRING]:
            self._possible = [kind for kind in possible if _FITS[kind](text)]

    @property
    def kind(self) -> str:
        return edm.STRING if not self._possible else self._possible[0]


def _is_int32(text: str) -> bool:
    return bool(_WHOLE.fullmatch(text)) and edm.INT32_MIN <= int(text) <= edm.INT32_MAX


def _is_int64(text: str) -> bool:
    return bool(_WHOLE.fullmatch(text)) and edm.INT64_MIN <= int(text) <= edm.INT64_MAX


def _is_double(text: str) -> bool:
    """Return whether a text is a number that keeps its digits as a Double."""
    if not _NUMBER.fullmatch(text) or math.isinf(value := float(text)):
        return False
    if text.removeprefix("-").isdigit():
        return int(text) == value  # an identifier of 20 digits stays text
    digits = _EXPONENT.sub("", text).replace(".", "").strip("-0")
    return len(digits) <= DOUBLE_DIGITS_MAX


def _is_datetime(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    ticks = edm.ticks_of(text)
    return ticks is not None and edm.TICKS_MIN <= ticks <= edm.TICKS_MAX


_FITS: dict[str, Callable[[str], bool]] = {
    edm.BOOLEAN: lambda text: text.lower() in ("true", "false"),
    edm.INT32: _is_int32,
    edm.INT64: _is_int64,
    edm.DOUBLE: _is_double,
    edm.DATETIME: _is_datetime,
    edm.GUID: lambda text: bool(_GUID.fullmatch(text)),
    edm.STRING: lambda _text: True,
}
"""From the narrowest to the widest. A number with a leading zero or plus stays text."""
_GUESSES = list(_FITS)


def check_columns(names: Sequence[str], types: Mapping[str, str], keys: Collection[str]) -> None:
    """Raise if a header has a name twice, or one that a property cannot have.

    `keys` are the columns of the two keys. PartitionKey and RowKey are not names of properties: a
    column of that name that is not a key would be lost.
    """
    if len(names) > COLUMNS_MAX:
        raise ConfigurationError(
            "TooManyColumns",
            f"The header has more than {COLUMNS_MAX:,} columns.",
            hint="Check the file: its first line has the names of the columns.",
        )
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise ConfigurationError(
            "HeaderUnusable",
            f"The header has the column {twice[0]!r} twice.",
            hint="Rename one of them.",
        )
    for name in names:
        if name in (PARTITION_KEY, ROW_KEY) and name not in keys:
            raise ConfigurationError(
                "HeaderUnusable",
                f"The column {name!r} cannot be a property.",
                hint="Rename the column in the file, or use it as a key.",
            )
    unfit = [
        name
        for name in names
        if name not in SYSTEM and name not in keys and not is_property_name(name)
    ]
    if unfit:
        raise ConfigurationError(
            "HeaderUnusable",
            f"The column {unfit[0]!r} cannot be a property: its name is invalid.",
            facts={"columns": ", ".join(unfit[:SHOWN_COLUMNS_MAX])},
            hint=f"Give it another name: {' '.join(map(_proposed, unfit[:SHOWN_COLUMNS_MAX]))}",
        )
    unknown = sorted(set(types) - set(names))
    if unknown:
        raise ConfigurationError(
            "HeaderUnusable",
            f"--types names the column {unknown[0]!r}, which the file does not have.",
            hint=f"The columns are: {', '.join(names[:20])}.",
        )


def _proposed(column: str) -> str:
    """Return the flag that gives a column a valid name: words joined in capitals."""
    words = re.findall(r"\w+", column)
    name = "".join(word[0].upper() + word[1:] for word in words) or "Column"
    name = name if is_property_name(name) else f"_{name}"
    return "--rename " + shlex.quote(f"{column}={name}")
