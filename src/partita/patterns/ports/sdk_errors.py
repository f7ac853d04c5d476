"""Errors of the official SDK → errors of Partita: by the code of the service, then by status.

The code is kept if the service sent one. Nothing here uses the network.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from azure.core.exceptions import (
    AzureError,
    DecodeError,
    HttpResponseError,
    ServiceRequestError,
)

from partita.errors import (
    ConflictError,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    FilterSyntaxError,
    GroupRuleError,
    InvalidKeyError,
    InvalidPropertyError,
    InvalidRequestError,
    LimitExceededError,
    MessageNotFoundError,
    NotAuthorizedError,
    NotSupportedError,
    PartitaError,
    QueueExistsError,
    QueueNotFoundError,
    ReceiptMismatchError,
    StoreFullError,
    TableExistsError,
    TableNotFoundError,
    ThrottledError,
    UnavailableError,
)
from partita.patterns.protocol.untrusted_json import decode

BY_CODE: dict[str, type[PartitaError]] = {
    "BlobNotFound": ConflictError,
    "CommandsInBatchActOnDifferentPartitions": GroupRuleError,
    "ContainerBeingDeleted": UnavailableError,
    "ContainerNotFound": ConflictError,
    "DuplicatePropertiesSpecified": InvalidPropertyError,
    "EntityAlreadyExists": EntityExistsError,
    "EntityNotFound": EntityNotFoundError,
    "EntityTooLarge": LimitExceededError,
    "InvalidDuplicateRow": GroupRuleError,
    "InvalidResourceName": InvalidKeyError,
    "KeyValueTooLarge": InvalidKeyError,
    "MessageNotFound": MessageNotFoundError,
    "MessageTooLarge": LimitExceededError,
    "NotImplemented": NotSupportedError,
    "OperationTimedOut": UnavailableError,
    "PopReceiptMismatch": ReceiptMismatchError,
    "PropertiesNeedValue": InvalidKeyError,
    "PropertyNameInvalid": InvalidPropertyError,
    "PropertyNameTooLong": LimitExceededError,
    "PropertyValueTooLarge": LimitExceededError,
    "QueueAlreadyExists": QueueExistsError,
    "QueueBeingDeleted": UnavailableError,
    "QueueNotFound": QueueNotFoundError,
    "RequestBodyTooLarge": LimitExceededError,
    "ResourceNotFound": EntityNotFoundError,
    "StoreFull": StoreFullError,
    "TableAlreadyExists": TableExistsError,
    "TableBeingDeleted": UnavailableError,
    "TableNotFound": TableNotFoundError,
    "TooManyProperties": LimitExceededError,
    "UpdateConditionNotSatisfied": ETagMismatchError,
}
BY_STATUS: dict[int, tuple[type[PartitaError], str]] = {
    400: (InvalidRequestError, "InvalidInput"),
    401: (NotAuthorizedError, "AuthenticationFailed"),
    403: (NotAuthorizedError, "AuthorizationFailure"),
    404: (EntityNotFoundError, "ResourceNotFound"),
    405: (NotSupportedError, "UnsupportedHttpVerb"),
    408: (UnavailableError, "OperationTimedOut"),
    409: (ConflictError, "Conflict"),
    412: (ETagMismatchError, "UpdateConditionNotSatisfied"),
    413: (LimitExceededError, "RequestBodyTooLarge"),
    429: (ThrottledError, "ServerBusy"),
    501: (NotSupportedError, "NotImplemented"),
    503: (ThrottledError, "ServerBusy"),
    507: (StoreFullError, "StoreFull"),
}

HINTS: dict[type[PartitaError], str] = {
    ETagMismatchError: "Read the entity and apply the change again.",
    NotAuthorizedError: "Check the account name, key or SAS in the connection string.",
    TableNotFoundError: "Create it first: db.create_tables().",
    ThrottledError: "Send fewer requests, or spread the partition; wait for retry_after.",
}
_TRAILER = re.compile(r"\n(?:RequestId|Time|ErrorCode):.*", re.DOTALL)
_RETRY_AFTER = {"retry-after": 1, "retry-after-ms": 1000, "x-ms-retry-after-ms": 1000}
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_NOT_FOUND = 404
_INDEX = re.compile(r"(\d{1,3}):")


def translate(error: AzureError, *, endpoint: str) -> PartitaError:
    """Return the error to raise instead of an error of the SDK."""
    if isinstance(error, HttpResponseError) and error.response is not None:
        return _of_answer(error)
    if isinstance(error, DecodeError):
        return UnavailableError(
            "AnswerUnreadable",
            f"The answer from {endpoint} is not one of this service.",
            facts={"endpoint": endpoint},
            hint="Check the address: another server may be listening there.",
        )
    return _unanswered(error, endpoint)


def code_of(error: HttpResponseError) -> str:
    """Return the error code that the service sent; empty if it sent none."""
    code = getattr(error, "error_code", None)
    if code:
        return str(getattr(code, "value", code))
    response: Any = error.response
    sent = response.headers.get("x-ms-error-code") if response is not None else None
    return str(sent) if sent else _read_body(response).get("code", "")


def _of_answer(error: HttpResponseError) -> PartitaError:
    response: Any = error.response
    status = error.status_code or response.status_code
    message, index = _message_of(error, response)
    return _named(status, code_of(error), message, index, response.headers)


def refusal_of_part(status: int, headers: Mapping[str, str], body: bytes) -> PartitaError:
    """Return the error for a refused part of a group."""
    error = _refusal(status, headers, _decode_body(body))
    error.facts.setdefault("index", 0)  # without an index, the first operation was refused
    return error


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> PartitaError | None:
    """Return the error for a refused request; None for a 404 of another server."""
    read = _decode_body(body)
    if status == _NOT_FOUND and not read:
        return None
    return _refusal(status, headers, read)


def _refusal(status: int, headers: Mapping[str, str], read: Mapping[str, str]) -> PartitaError:
    text = _TRAILER.sub("", read.get("message", "The service refused.")).strip()
    found = _INDEX.match(text)
    message, index = (text, None) if found is None else (text[found.end() :], int(found[1]))
    return _named(status, read.get("code", ""), message, index, headers)


def _named(
    status: int, sent: str, message: str, index: int | None, headers: Mapping[str, str]
) -> PartitaError:
    by_status, usual_code = BY_STATUS.get(status, (InvalidRequestError, "InvalidInput"))
    if status >= 500 and status not in BY_STATUS:
        by_status, usual_code = UnavailableError, "InternalError"
    kind = BY_CODE.get(sent, by_status)
    if kind is InvalidRequestError and message.startswith("Syntax error"):
        kind = FilterSyntaxError
    translated = kind(sent or usual_code, message, hint=HINTS.get(kind, ""))
    if index is not None:
        translated.facts["index"] = index
    if isinstance(translated, ThrottledError):
        translated.retry_after = retry_after(headers)
        translated.facts["retry_after"] = translated.retry_after
    return translated


def _message_of(error: HttpResponseError, response: Any) -> tuple[str, int | None]:
    """Return the message of the service, and the index of the failing operation of a group."""
    text = _read_body(response).get("message") or error.message or "The service refused."
    text = _TRAILER.sub("", text).strip()
    index = getattr(error, "index", None)
    found = _INDEX.match(text)
    if found is not None:
        return text[found.end() :], int(found[1])
    return text, index if isinstance(index, int) else None


def _read_body(response: Any) -> dict[str, str]:
    """Return code and message of a JSON error; queues and blobs send the code in a header."""
    try:
        return _decode_body(response.content)
    except (AzureError, AttributeError, TypeError):
        return {}


def _decode_body(content: bytes) -> dict[str, str]:
    try:
        body = decode(content, _ErrorBody)
    except msgspec.DecodeError:
        return {}
    return {"code": body.error.code, "message": body.error.message.get("value", "")}


class _Error(msgspec.Struct):
    code: str = ""
    message: dict[str, str] = {}


class _ErrorBody(msgspec.Struct):
    error: _Error = msgspec.field(name="odata.error")


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the delay in seconds that the service requests; 0 if it does not."""
    sent = {name.lower(): text.strip() for name, text in headers.items()}  # of parts: a plain dict
    for name, unit in _RETRY_AFTER.items():
        if _NUMBER.fullmatch(sent.get(name, "")):
            return float(sent[name]) / unit
    return 0.0


def was_sent(error: AzureError) -> bool:
    """Return whether a request without an answer may have reached the service.

    aiohttp's transport reports "before sending" for every broken connection, so only a failure to
    connect is trusted.
    """
    if not isinstance(error, ServiceRequestError):
        return True
    inner = error.inner_exception
    return type(inner).__module__.startswith("aiohttp") and not hasattr(inner, "host")


def _unanswered(error: AzureError, endpoint: str) -> PartitaError:
    if was_sent(error):
        return UnavailableError(
            "AnswerLost",
            f"The connection to {endpoint} was lost before the answer arrived.",
            facts={"endpoint": endpoint},
            hint="Read before you repeat the request: it may have been performed.",
        )
    return UnavailableError(
        "ServiceUnreachable",
        f"The service at {endpoint} does not answer.",
        facts={"endpoint": endpoint},
        hint="Check that it is running; `partita serve` starts one on this machine.",
    )
