"""The paths at which two values of one type differ, for error messages.

Exact rather than fast: types are compared, so that a list differs from a tuple and a set from a
frozenset; NaN is equal to itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

from partita.reliable.values.foreign_types import field_names


def differences(given: object, stored: object) -> Iterator[str]:
    """Yield paths like `items[1].name`; the empty path means the values themselves.

    Sets, and values without inner values, differ as a whole.
    """
    try:
        yield from (path.lstrip(".") for path in _differences(given, stored))
    except RecursionError:
        yield ""


def first_difference(given: object, stored: object) -> str | None:
    """Return the first path, None if the values are equal."""
    return next(differences(given, stored), None)


def _differences(given: object, stored: object) -> Iterator[str]:
    if not _is_same_kind(given, stored):
        yield ""
        return
    steps = _inner(given, stored)
    if steps is None:
        if not _is_equal(given, stored):
            yield ""
        return
    for step, left, right in steps:
        for rest in _differences(left, right):
            yield step + rest


_MISSING = object()


def _inner(given: object, stored: object) -> Iterator[tuple[str, object, object]] | None:
    """Return the steps into two values of one class, None if they have no inner values."""
    names = field_names(given)
    if names is not None:
        return _attributes(names, given, stored)
    if isinstance(given, tuple | list) and isinstance(stored, tuple | list):
        return _elements(given, stored)
    if isinstance(given, Mapping) and isinstance(stored, Mapping):
        return _values(given, stored)
    return None


def _attributes(
    names: Iterable[str], given: object, stored: object
) -> Iterator[tuple[str, object, object]]:
    for name in names:
        yield f".{name}", getattr(given, name, _MISSING), getattr(stored, name, _MISSING)


def _elements(
    given: "tuple[object, ...] | list[object]", stored: "tuple[object, ...] | list[object]"
) -> Iterator[tuple[str, object, object]]:
    for index in range(max(len(given), len(stored))):
        yield (
            f"[{index}]",
            given[index] if index < len(given) else _MISSING,
            stored[index] if index < len(stored) else _MISSING,
        )


def _values(
    given: Mapping[object, object], stored: Mapping[object, object]
) -> Iterator[tuple[str, object, object]]:
    for key in {**given, **stored}:
        yield f"[{key!r}]", given.get(key, _MISSING), stored.get(key, _MISSING)


def _is_same_kind(given: object, stored: object) -> bool:
    return type(given) is type(stored) or (_is_number(given) and _is_number(stored))


def _is_number(value: object) -> bool:
    """Return whether a value is an int or float: an int is encoded for an equal float."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_equal(given: object, stored: object) -> bool:
    if isinstance(given, Decimal) and isinstance(stored, Decimal):
        return given.compare_total(stored) == 0
    if isinstance(given, float) and isinstance(stored, float) and given != given:  # noqa: PLR0124
        return stored != stored  # noqa: PLR0124 - not a number
    return given == stored
