"""Query parameters of queue and blob requests, by lower-case name. Pure."""

from collections.abc import Sequence

from partita.errors import InvalidRequestError
from partita.refusals import VALUE_CHARACTERS_SHOWN, invalid_parameter


def options_of(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the parameters by lower-case name; one given twice is refused."""
    options: dict[str, str] = {}
    for name, value in pairs:
        lower = name.lower()
        if lower in options:
            raise invalid_parameter(lower, value, "Give it only once.")
        options[lower] = value
    return options


def out_of_range(name: str, value: str, low: int, high: int) -> InvalidRequestError:
    """Return the refusal of a number outside of its range."""
    bounds = [("MinimumAllowed", str(low)), ("MaximumAllowed", str(high))]
    return InvalidRequestError(
        "OutOfRangeQueryParameterValue",
        "One of the query parameters specified in the request URI is outside the permissible"
        " range.",
        facts={"elements": [*_named(name, value), *bounds]},
        hint=f"Use {low} to {high} for {name}.",
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
