"""Conversion between field names and property names, and guesses of misspelled names."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^A-Z_]+|[A-Z]+")


def pascal_case(name: str) -> str:
    """Return the property name of a field, as .NET programs and storage browsers expect it.

    >>> pascal_case("manager_id")
    'ManagerId'
    """
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def snake_case(name: str) -> str:
    """Return the field name of a property.

    >>> snake_case("ManagerID"), snake_case("HTTPStatus")
    ('manager_id', 'http_status')
    """
    return "_".join(word.lower() for word in _WORD.findall(name))


def same_name(name: str) -> str:
    """Return the name unchanged: `@entity(..., naming=same_name)`."""
    return name


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a sentence with the most similar name, to append to a hint; empty if there is none.

    >>> did_you_mean("emial", ["email", "age"])
    " Did you mean 'email'?"
    """
    similar = get_close_matches(name, names, 1)
    return f" Did you mean {similar[0]!r}?" if similar else ""
