"""Functions that read bodies of writes, generated for the shapes of these bodies. Pure.

The clients of a table send few shapes of bodies: the same names in the same order, with values of
the same types. `parse_body` looks at each member of each body; a reader knows the shape, is a
straight line of checks, and computes the columns of the pushdown on the way, with two thirds of
the instructions. The one rule: a reader returns what `parse_body` and `columns_of` return, or
None: they then decide, also about errors. No reader is ever dropped, so that a client with many
shapes costs `READERS_MAX` compilations and no more.
"""

import binascii
import math
import re
from collections.abc import Callable
from textwrap import indent
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from partita.errors import PartitaError
from partita.tables import edm, limits, pushdown
from partita.tables.edm import TYPE_SUFFIX
from partita.tables.entity import (
    FORBIDDEN_IN_KEY,
    SHAPE_MEMBERS_MAX,
    EntityBody,
    Shape,
    find_shape,
)

READERS_MAX = 256
"""Shapes with a reader; the others are read without one."""
BODIES_BEFORE = 32
"""Bodies of a shape that are read without a reader, so that compiling it is worth its time."""
_SHAPES_COUNTED_MAX = 1024

Reader = Callable[[dict[str, Any], int, bool], EntityBody | None]
"""Reads the members of a body, given its quotes and whether it is the body of an insert."""

READERS: dict[tuple[str, ...], Reader] = {}
"""By the names of the members, in order."""
_bodies_seen: dict[tuple[str, ...], int] = {}


def count_body(names: tuple[str, ...], members: dict[str, Any]) -> None:
    """Count a body that was read without a reader; make the reader when it is worth it."""
    if len(READERS) >= READERS_MAX or len(names) > SHAPE_MEMBERS_MAX:
        return
    if len(_bodies_seen) >= _SHAPES_COUNTED_MAX:
        _bodies_seen.clear()
    _bodies_seen[names] = seen = _bodies_seen.get(names, 0) + 1
    if seen == BODIES_BEFORE:
        reader = make_reader(members)
        if reader is not None:
            READERS[names] = reader


def make_reader(members: dict[str, Any]) -> Reader | None:
    """Return a reader for bodies like this one, which is valid; None if it is too unusual."""
    source = _source_of(members, find_shape(members))
    if source is None:
        return None
    scope = dict(_SCOPE)
    exec(compile(source, "<reader of a body>", "exec"), scope)  # noqa: S102 - names are literals
    reader: Reader = scope["read"]
    return reader


def _source_of(members: dict[str, Any], shape: Shape) -> str | None:
    """Return a function that reads such members, which it calls v0, v1, and so on."""
    if not members or any(
        members.get(name + TYPE_SUFFIX, edm.STRING) != edm.STRING for name in _KEYS
    ):
        return None
    variables = {name: f"v{number}" for number, name in enumerate(members)}
    types = dict(shape.properties)
    checks: list[str] = []
    properties: list[str] = []
    short: list[str] = []
    for name, variable in variables.items():
        value, type_name = members[name], types.get(name)
        if name in shape.types:
            checks.append(_unless(f"{variable} == {value!r}"))
        elif name not in types:
            checks.append(_unless(f"type({variable}) is {type(value).__name__}"))
        else:
            annotation = None if type_name is None else members[type_name]
            form = _FORMS.get((type(value), annotation))
            if form is None:
                return None
            chance = pushdown.CHANCES[name]
            checks.append(form.check.format(v=variable, name=repr(name), chance=chance))
            short.append(f"{name!r}: {form.short.format(v=variable)}")
            if form.is_annotated:
                properties.append(f"{type_name!r}: {annotation!r}")
            properties.append(f"{name!r}: {variable}")
    keys = [variables.get(name) for name in _KEYS]
    checks += [_unless(_KEY_CHECK.format(v=key)) for key in keys if key is not None]
    texts = sum(type(value) is str for value in members.values())
    return _READER.format(
        quotes=2 * (len(members) + texts),
        variables=", ".join(variables.values()),
        checks=indent("\n".join(checks), " " * 8),
        properties=", ".join(properties),
        short=", ".join(short),
        partition_key=keys[0],
        row_key=keys[1],
    )


def _unless(condition: str) -> str:
    return f"if not ({condition}):\n    return None"


class _Form(NamedTuple):
    """How a property of one type is read; {v} is its variable, which gets the stored value."""

    check: str
    short: str
    """Its short value, see `partita.tables.pushdown`."""
    is_annotated: bool = False


_KEYS = ("PartitionKey", "RowKey")
_KEY_CHECK = "not is_insert or (len({v}) <= SHORT_KEY and forbidden({v}) is None)"

# Each member and each text has two quotes; more of them may be repeated members, see `entity`.
_READER = """
def read(members, quotes, is_insert):
    try:
        if quotes != {quotes}:
            return None
        {variables}, = members.values()
        marks = 0
{checks}
        properties = Described({{{properties}}})
        if marks >> 63:
            marks -= 1 << 64
        properties.columns = marks, encode({{{short}}}).decode()
    except (ValueError, PartitaError):
        return None
    if not is_insert:
        return EntityBody(None, None, properties)
    return EntityBody({partition_key}, {row_key}, properties)
"""

_MARK = "marks |= PAIRS[crc32({text}, {{chance}}) & 4095]\n"
_IS_TEXT = _unless("type({v}) is str") + "\n"
_TEXT = _Form(
    _unless("type({v}) is str and len({v}) <= SHORT_TEXT")
    + "\n{v}_short = {v}[:SHORT_CHARACTERS_MAX]\n"
    + _unless("{v}_short.isprintable() or is_plain({v}_short)")
    + "\nif len({v}) <= MARKED_CHARACTERS_MAX:\n    "
    + _MARK.format(text="{v}.encode()"),
    "{v}_short",
)
_WHOLE = "    " + _unless("INT32_MIN <= {v} <= INT32_MAX").replace("\n", "\n    ")
_WHOLE += "\n    " + _MARK.format(text='b"%d" % {v}')
_FINITE = """    {v} = {v} or 0.0
    if {v}.is_integer() and abs({v}) <= EXACT_MAX:
        """ + _MARK.format(text='b"%d" % {v}')
_ELSE = "else:\n    return None\n"
_IS_WHOLE, _IS_FINITE = "if type({v}) is int:\n", "if type({v}) is float and isfinite({v}):\n"
_NUMBER = _Form(_IS_WHOLE + _WHOLE + "el" + _IS_FINITE + _FINITE + _ELSE, "{v}")
_BOOLEAN = _Form(_unless("type({v}) is bool"), "MARK_TRUE if {v} else MARK_FALSE")

_FORMS: dict[tuple[type, str | None], _Form] = {
    (str, None): _TEXT,
    (str, edm.STRING): _TEXT,
    (int, None): _NUMBER,
    (float, None): _NUMBER,
    (int, edm.INT32): _Form(_IS_WHOLE + _WHOLE + _ELSE, "{v}"),
    (float, edm.DOUBLE): _Form(_IS_FINITE + _FINITE + _ELSE, "{v}"),
    (bool, None): _BOOLEAN,
    (bool, edm.BOOLEAN): _BOOLEAN,
    (str, edm.INT64): _Form(
        _IS_TEXT
        + 'if not ({v}.isascii() and {v}.isdigit() and len({v}) <= 18 and {v}[0] != "0"):\n'
        + f'    {{v}} = canonical({{name}}, {{v}}, "{edm.INT64}")[1]\n'
        + _MARK.format(text="{v}.encode()"),
        "int({v})",
        is_annotated=True,
    ),
    (str, edm.DATETIME): _Form(
        _IS_TEXT
        + 'if is_moment({v}) is None or {v} < "1601":\n'
        + f'    {{v}} = canonical({{name}}, {{v}}, "{edm.DATETIME}")[1]\n',
        "MARK_DATETIME + {v}[:-1]",
        is_annotated=True,
    ),
    (str, edm.GUID): _Form(
        _IS_TEXT
        + _unless("is_guid({v})")
        + "\n{v} = {v}.lower()\n"
        + _MARK.format(text="{v}.encode()"),
        "MARK_GUID + {v}",
        is_annotated=True,
    ),
    (str, edm.BINARY): _Form(
        _IS_TEXT
        + "{v}_raw = a2b({v}.encode(), strict_mode=True)\n"
        + _unless("len({v}_raw) <= PROPERTY_BYTES_MAX")
        + "\n{v} = b2a({v}_raw, newline=False).decode()\n",
        "MARK_BINARY + {v}_raw[:SHORT_BYTES_MAX].hex()",
        is_annotated=True,
    ),
}
"""By JSON type and annotation; what is not here is read without a reader."""

_USUAL_MOMENT = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\dZ", re.ASCII
)
"""A time that is in its canonical form and exists in every year; others take more steps."""

_SCOPE: dict[str, Any] = {
    "Described": pushdown.Described,
    "EntityBody": EntityBody,
    "EXACT_MAX": pushdown.EXACT_MAX,
    "INT32_MAX": edm.INT32_MAX,
    "INT32_MIN": edm.INT32_MIN,
    "MARKED_CHARACTERS_MAX": pushdown.MARKED_CHARACTERS_MAX,
    "MARK_BINARY": pushdown.MARKS[edm.BINARY],
    "MARK_DATETIME": pushdown.MARKS[edm.DATETIME],
    "MARK_FALSE": pushdown.MARK_FALSE,
    "MARK_GUID": pushdown.MARKS[edm.GUID],
    "MARK_TRUE": pushdown.MARK_TRUE,
    "PAIRS": pushdown.PAIRS,
    "PROPERTY_BYTES_MAX": limits.PROPERTY_BYTES_MAX,
    "PartitaError": PartitaError,
    "SHORT_BYTES_MAX": pushdown.SHORT_CHARACTERS_MAX // 2,
    "SHORT_CHARACTERS_MAX": pushdown.SHORT_CHARACTERS_MAX,
    "SHORT_KEY": limits.KEY_CHARACTERS_MAX // 2,
    "SHORT_TEXT": edm.SHORT_TEXT,
    "a2b": binascii.a2b_base64,
    "b2a": binascii.b2a_base64,
    "canonical": edm.canonical,
    "crc32": crc32,
    "encode": msgspec.json.Encoder().encode,
    "forbidden": FORBIDDEN_IN_KEY.search,
    "is_guid": edm.GUID_TEXT.fullmatch,
    "is_moment": _USUAL_MOMENT.fullmatch,
    "is_plain": pushdown.is_plain,
    "isfinite": math.isfinite,
}
