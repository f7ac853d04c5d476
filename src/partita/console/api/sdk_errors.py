"""Errors of the official SDKs as errors of Partita: code, message and status of the service."""

import contextlib
from collections.abc import Iterator
from typing import Any

from partita.errors import (
    ConflictError,
    InvalidRequestError,
    NotAuthorizedError,
    PartitaError,
    UnavailableError,
    UsageError,
)


@contextlib.contextmanager
def sdk_errors() -> Iterator[None]:
    """Translate the errors of SDK calls in the block."""
    from azure.core.exceptions import (  # noqa: PLC0415 - an extra
        AzureError,
        HttpResponseError,
        ServiceResponseError,
    )

    try:
        yield
    except HttpResponseError as error:
        raise _of_answer(error) from error
    except ServiceResponseError as error:
        raise UnavailableError(
            "ConsoleAnswerLost",
            "The service did not answer in full.",
            hint="A write may or may not be stored: load again.",
        ) from error
    except AzureError as error:
        raise UnavailableError(
            "ConsoleServiceUnreachable",
            "The service of the account does not answer.",
            hint="Check that it runs, and the address of the account.",
        ) from error
    except ValueError as error:
        raise InvalidRequestError("ConsoleInput", f"The SDK refuses a value: {error}") from error


def _of_answer(error: Any) -> PartitaError:
    status = error.status_code or 503
    told = getattr(error, "error_code", None)
    code = str(getattr(told, "value", told) or f"Status{status}")  # an enumeration, or a text
    message = (error.message or "").partition("\n")[0] or "The service refused the request."
    facts: dict[str, object] = {"status": status}
    headers = {} if error.response is None else error.response.headers
    hint = str(headers.get("x-partita-hint", ""))
    if status in (401, 403):
        return NotAuthorizedError(code, message, facts=facts, hint=hint)
    if status in (409, 412):
        return ConflictError(code, message, facts=facts, hint=hint or "Load again, then decide.")
    if status >= 500 or status == 429:
        return UnavailableError(code, message, facts=facts, hint=hint or "Try again later.")
    return UsageError(code, message, facts=facts, hint=hint)
