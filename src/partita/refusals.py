"""The answers of the Azure services that several modules give: one constructor each. Pure.

Codes and messages are those of the services, misspellings included: clients compare them.
`elements` are the details that the XML of an answer repeats.
"""

from collections.abc import Iterable
from typing import TypeVar

from partita.errors import (
    InvalidRequestError,
    LimitExceededError,
    NotSupportedError,
    PartitaError,
    StoreFullError,
    StoreStoppedError,
    UsageError,
)

E = TypeVar("E", bound=PartitaError)
U = TypeVar("U", bound=UsageError)

VALUE_CHARACTERS_SHOWN = 256
"""How much of a refused query parameter an answer repeats."""


def invalid_header(
    name: str = "", value: str | None = None, hint: str = "", *, setting: str = ""
) -> InvalidRequestError:
    """Return the refusal of a header's value."""
    elements = [("HeaderName", name)] if name else []
    if value is not None:
        elements.append(("HeaderValue", value))
    return InvalidRequestError(
        "InvalidHeaderValue",
        "The value for one of the HTTP headers is not in the correct format.",
        facts={"elements": elements} if elements else None,
        hint=hint,
        setting=setting,
    )


def written_by_analytics(hint: str) -> InvalidRequestError:
    """Return the refusal of a write to what only Storage Analytics writes."""
    return InvalidRequestError(
        "InsufficientAccountPermissions", "Write operations are not allowed.", hint=hint
    )


def missing_header(name: str, hint: str = "") -> InvalidRequestError:
    """Return the refusal of a request that lacks a header."""
    return InvalidRequestError(
        "MissingRequiredHeader",
        "An HTTP header that's mandatory for this request is not specified.",
        facts={"elements": [("HeaderName", name)]},
        hint=hint,
    )


def invalid_parameter(
    name: str = "", value: str | None = None, reason: str = "", *, hint: str = ""
) -> InvalidRequestError:
    """Return the refusal of a query parameter's value."""
    name = name[:VALUE_CHARACTERS_SHOWN]
    elements = [("QueryParameterName", name)] if name else []
    if value is not None:
        elements.append(("QueryParameterValue", value[:VALUE_CHARACTERS_SHOWN]))
    if reason:
        elements.append(("Reason", reason))
    return InvalidRequestError(
        "InvalidQueryParameterValue",
        "Value for one of the query parameters specified in the request URI is invalid.",
        facts={"elements": elements} if elements else None,
        hint=hint or (f"{name}: {reason}" if reason else ""),
    )


def invalid_input(kind: type[U], hint: str = "") -> U:
    return kind("InvalidInput", "One of the request inputs is not valid.", hint=hint)


def invalid_syntax(kind: type[U], hint: str = "") -> U:
    return kind("InvalidInput", "Bad Request - Error in query syntax.", hint=hint)


def out_of_range(kind: type[U], hint: str = "") -> U:
    return kind("OutOfRangeInput", "One of the request inputs is out of range.", hint=hint)


def unprocessable(kind: type[U], facts: dict[str, object] | None = None, hint: str = "") -> U:
    """Return the refusal of an entity that cannot be read."""
    message = "An error occurred while processing this request."
    return kind("InvalidInput", message, facts=facts, hint=hint)


def body_too_large(bytes_max: int | None, hint: str = "") -> LimitExceededError:
    return LimitExceededError(
        "RequestBodyTooLarge",
        "The request body is too large and exceeds the maximum permissible limit.",
        facts=None if bytes_max is None else {"elements": [("MaxLimit", str(bytes_max))]},
        hint=hint,
    )


def not_found(kind: type[E], facts: dict[str, object] | None = None) -> E:
    return kind("ResourceNotFound", "The specified resource does not exist.", facts=facts)


def not_implemented(hint: str = "") -> NotSupportedError:
    """Return the refusal of an operation that Partita does not implement."""
    return NotSupportedError(
        "NotImplemented",
        "The requested operation is not implemented on the specified resource.",
        hint=hint,
    )


def invalid_name_length(kind: type[U], hint: str = "") -> U:
    """Return the refusal of a table, queue, container or blob name of a wrong length."""
    message = "The specified resource name length is not within the permissible limits."
    return kind("OutOfRangeInput", message, hint=hint)


def invalid_name(kind: type[U], hint: str = "") -> U:
    """Return the refusal of a table, queue or container name with other characters."""
    message = "The specifed resource name contains invalid characters."
    return kind("InvalidResourceName", message, hint=hint)


def invalid_xml(kind: type[U], hint: str, elements: Iterable[tuple[str, str]] | None = None) -> U:
    facts = None if elements is None else {"elements": list(elements)}
    message = "XML specified is not syntactically valid."
    return kind("InvalidXmlDocument", message, facts=facts, hint=hint)


def invalid_xml_value(*, hint: str) -> InvalidRequestError:
    message = "The value provided for one of the XML nodes in the request body was not in the"
    return InvalidRequestError("InvalidXmlNodeValue", f"{message} correct format.", hint=hint)


def unsupported_media_type(hint: str) -> InvalidRequestError:
    message = "None of the provided media types are supported"
    return InvalidRequestError("MediaTypeNotSupported", message, hint=hint)


def too_many_blocks_in_list() -> LimitExceededError:
    message = "The block list may not contain more than 50,000 blocks."
    return LimitExceededError("BlockListTooLong", message)


def store_stopped() -> StoreStoppedError:
    return StoreStoppedError(
        "StoreStopped",
        "A write to disk failed; nothing is acknowledged until a restart has recovered.",
        hint="Check the disk and the kernel log, then restart.",
    )


def store_full(facts: dict[str, object] | None = None) -> StoreFullError:
    return StoreFullError(
        "StoreFull",
        "The disk is full: reads and deletes continue, other writes fail until there is room.",
        facts=facts,
        hint="Free some space on the disk; writes then resume without a restart.",
    )
