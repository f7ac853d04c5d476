"""Errors of requests that the pages of the console would not send."""

from partita.errors import InvalidRequestError


def invalid(message: str, hint: str = "") -> InvalidRequestError:
    """Return the error of an argument that is missing or wrong."""
    return InvalidRequestError("ConsoleInput", message, hint=hint)


def not_found(what: str) -> InvalidRequestError:
    """Return the error of a path that names nothing."""
    return InvalidRequestError(
        "ConsoleNotFound", f"{what} does not exist.", hint="Reload the page of the console."
    )


def check_name(what: str, name: str, *, has_slashes: bool = False) -> str:
    """Return a name that becomes part of an address; refuse one that names something else there.

    HTTP clients remove the parts `.` and `..` from an address.
    """
    parts = name.split("/")
    if not name or {".", ".."}.intersection(parts) or not (has_slashes or len(parts) == 1):
        message = f"{name!r} cannot be the name of a {what} in an address."
        raise invalid(message, f"Give another name of the {what}.")
    return name
