"""Names of fields as names of properties, and back."""

import re

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^A-Z_]+|[A-Z]+")


def pascal_case(name: str) -> str:
    """Turn a field's name into what users of .NET and of storage browsers expect.

    >>> pascal_case("manager_id")
    'ManagerId'
    """
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def snake_case(name: str) -> str:
    """Turn a property's name into what a field would be called.

    >>> snake_case("ManagerID"), snake_case("HTTPStatus")
    ('manager_id', 'http_status')
    """
    return "_".join(word.lower() for word in _WORD.findall(name))


def same_name(name: str) -> str:
    """Leave names as they are: `@entity(..., naming=same_name)`."""
    return name
