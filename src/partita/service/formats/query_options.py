"""Parameters of queue and blob requests: read by lower-case name, refused by name. Pure."""

from collections.abc import Sequence

from partita.errors import InvalidRequestError

VALUE_CHARACTERS_SHOWN = 256
"""How much of a refused value an answer repeats."""


def options_of(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the parameters by lower-case name; one given twice is refused."""
    options: dict[str, str] = {}
    for name, value in pairs:
        lower = name.lower()
        if lower in options:
            raise invalid_parameter(lower, value, "It is given twice.")
        options[lower] = value
    return options


def invalid_parameter(name: str, value: str, reason: str = "") -> InvalidRequestError:
    """Return the refusal of a parameter's value."""
    elements = _named(name, value)
    return InvalidRequestError(
        "InvalidQueryParameterValue",
        "Value for one of the query parameters specified in the request URI is invalid.",
        facts={"elements": [*elements, ("Reason", reason)] if reason else elements},
        hint=f"{name[:VALUE_CHARACTERS_SHOWN]}: {reason}" if reason else "",
    )


def out_of_range(name: str, value: str, low: int, high: int) -> InvalidRequestError:
    """Return the refusal of a number that is too small or too large."""
    bounds = [("MinimumAllowed", str(low)), ("MaximumAllowed", str(high))]
    return InvalidRequestError(
        "OutOfRangeQueryParameterValue",
        "One of the query parameters specified in the request URI is outside the permissible"
        " range.",
        facts={"elements": [*_named(name, value), *bounds]},
        hint=f"{name} is {low} to {high}.",
    )


def missing_parameter(name: str) -> InvalidRequestError:
    return InvalidRequestError(
        "MissingRequiredQueryParameter",
        "A query parameter that's mandatory for this request is not specified.",
        facts={"elements": [("QueryParameterName", name)]},
        hint=f"Give {name}.",
    )


def unsupported_verb() -> InvalidRequestError:
    return InvalidRequestError(
        "UnsupportedHttpVerb", "The resource doesn't support specified Http Verb."
    )


def _named(name: str, value: str) -> list[tuple[str, str]]:
    shown = VALUE_CHARACTERS_SHOWN
    return [("QueryParameterName", name[:shown]), ("QueryParameterValue", value[:shown])]
