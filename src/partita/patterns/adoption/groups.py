"""Groups of rows that are of one type: by type property, form of the row key, and shape.

The shape of a row is the set of its property names. Rows without a type property whose shapes have
half of their names in common are of one type.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from partita.patterns.adoption.keys import structure
from partita.patterns.protocol.values import Row
from partita.patterns.types.row_layout import COPY_MARK, HIDDEN_MARK, PART_MARK

ALIKE_SHARE = 0.5
"""The share of names that two shapes of one type have in common."""
TYPES_MAX = 50
"""Values of a type property; a property with more of them is an ordinary one."""

_TYPE_NAMES = ("entitytype", "discriminator", "recordtype", "doctype", "entitykind")
_WEAK_TYPE_NAMES = ("type", "kind")
"""Names of properties that are often used for something else too."""
_TOKEN = re.compile("([A-Za-z]+)([_|:;-])")


class RowGroup(msgspec.Struct, frozen=True):
    """Rows of one type."""

    rows: tuple[Row, ...]
    stored_type: str | None = None
    token: str = ""
    """The word that all row keys begin with."""


def find_type_property(rows: Sequence[Row]) -> str | None:
    """Return the property that has the type of each row; None if there is none."""
    names = dict.fromkeys(name for row in rows for name in row.properties)
    usable = [name for name in names if name.isidentifier() and not name.startswith("_")]
    strong = [name for name in usable if name.lower() in _TYPE_NAMES]
    weak = [name for name in usable if name.lower() in _WEAK_TYPE_NAMES]
    found = [name for name in strong if _has_types(rows, name)]
    found += [name for name in weak if _has_types(rows, name) and _tells_shapes_apart(rows, name)]
    return found[0] if found else None


def _has_types(rows: Sequence[Row], name: str) -> bool:
    values = {row.properties[name] for row in rows if name in row.properties}
    return len(values) <= TYPES_MAX and all(
        isinstance(each, str) and each.strip() for each in values
    )


def _tells_shapes_apart(rows: Sequence[Row], name: str) -> bool:
    """Return whether rows with different values have other properties."""
    shapes: dict[object, set[str]] = {}
    for row in rows:
        shapes.setdefault(row.properties.get(name), set()).update(row.properties)
    unions = list(shapes.values())
    return len(unions) > 1 and all(
        not _is_alike(one, other) for place, one in enumerate(unions) for other in unions[:place]
    )


def is_hidden(row: Row, type_property: str | None) -> bool:
    """Return whether the typed layer wrote a row beside its entities."""
    stored = row.properties.get(type_property) if type_property else None
    is_marked = isinstance(stored, str) and (COPY_MARK in stored or stored.endswith(PART_MARK))
    return is_marked or row.key.row.startswith(HIDDEN_MARK) or row.key.partition.startswith(
        HIDDEN_MARK
    )  # fmt: skip


def group_rows(rows: Sequence[Row], type_property: str | None) -> list[RowGroup]:
    """Return the groups of rows, the largest first; those without a type come last."""
    by_type: dict[str | None, list[Row]] = {}
    for row in rows:
        stored = row.properties.get(type_property) if type_property else None
        by_type.setdefault(stored if isinstance(stored, str) else None, []).append(row)
    found: list[RowGroup] = []
    for stored_type, members in by_type.items():
        if stored_type is None:
            found += _untyped(members)
        else:
            forms = [RowGroup(tuple(each), stored_type, token) for token, each in _by_form(members)]
            # Other forms of the keys are copies for another access: one class cannot have both.
            forms.sort(key=lambda group: (-len(group.rows), _is_by_text(group)))
            found.append(forms[0])
            found += [msgspec.structs.replace(each, stored_type=None) for each in forms[1:]]
    return sorted(found, key=lambda group: (group.stored_type is None, -len(group.rows)))


def _is_by_text(group: RowGroup) -> bool:
    """Return whether text follows the first word of the keys, as in copies by e-mail address."""
    return _rough_form(group.rows[0].key.row.removeprefix(group.token)[1:]) == "text"


def _untyped(rows: Sequence[Row]) -> Iterator[RowGroup]:
    for token, members in _by_form(rows):
        for alike in _by_shape(members):
            yield RowGroup(tuple(alike), None, token)


def _by_form(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield rows with row keys of one form, and the word that these begin with."""
    tokens = _tokens(rows)
    found: dict[str, tuple[str, list[Row]]] = {}
    for row in rows:
        match = _TOKEN.match(row.key.row)
        token = match[1] if match and match[1] in tokens else ""
        form = f"token {token}" if token else _rough_form(row.key.row)
        found.setdefault(form, (token, []))[1].append(row)
    yield from found.values()


def _rough_form(key: str) -> str:
    return structure(key) if key[:1].isdigit() else "text"


def _tokens(rows: Sequence[Row]) -> set[str]:
    """Return the words that begin row keys and are not values themselves.

    Words with rows of one shape and keys of one form after them are values, such as names of users.
    """
    found: dict[str, list[Row]] = {}
    for row in rows:
        if match := _TOKEN.match(row.key.row):
            found.setdefault(match[1], []).append(row)
    rests = Counter(rest for token, members in found.items() for rest in _rests(token, members))
    return {
        token
        for token, members in found.items()
        if all(rests[rest] == 1 for rest in _rests(token, members))
    }


def _rests(token: str, rows: Sequence[Row]) -> set[tuple[str, frozenset[str]]]:
    """Return the forms after a word, each with the shape of its rows."""
    shape = frozenset(name for row in rows for name in row.properties)
    return {(_rough_form(row.key.row[len(token) + 1 :]), shape) for row in rows}


def _by_shape(rows: Sequence[Row]) -> list[list[Row]]:
    shapes: dict[frozenset[str], list[Row]] = {}
    for row in rows:
        shapes.setdefault(frozenset(row.properties), []).append(row)
    clusters: list[tuple[set[str], list[Row]]] = []
    for shape, members in sorted(shapes.items(), key=lambda item: (-len(item[1]), sorted(item[0]))):
        near = next((each for each in clusters if _is_alike(each[0], shape)), None)
        if near is None:
            clusters.append((set(shape), list(members)))
        else:
            near[0].update(shape)
            near[1].extend(members)
    return [members for _, members in clusters]


def _is_alike(one: set[str] | frozenset[str], other: set[str] | frozenset[str]) -> bool:
    if one <= other or other <= one:
        return True
    return len(one & other) >= ALIKE_SHARE * len(one | other)
