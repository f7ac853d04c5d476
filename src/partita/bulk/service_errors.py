"""Answers of a table service that are errors, as the errors of Partita; pure."""

import re
from collections.abc import Mapping

import msgspec

from partita.errors import (
    ConflictError,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    InvalidRequestError,
    LimitExceededError,
    NotAuthorizedError,
    NotSupportedError,
    PartitaError,
    TableExistsError,
    TableNotFoundError,
    ThrottledError,
    UnavailableError,
)

RETRY_AFTER_SECONDS_MAX = 60.0

_BY_CODE: dict[str, type[PartitaError]] = {
    "EntityAlreadyExists": EntityExistsError,
    "EntityNotFound": EntityNotFoundError,
    "ResourceNotFound": EntityNotFoundError,
    "TableAlreadyExists": TableExistsError,
    "TableNotFound": TableNotFoundError,
    "UpdateConditionNotSatisfied": ETagMismatchError,
    "ConditionNotMet": ETagMismatchError,
    "EntityTooLarge": LimitExceededError,
    "PropertyValueTooLarge": LimitExceededError,
    "RequestBodyTooLarge": LimitExceededError,
    "TooManyProperties": LimitExceededError,
}
_BY_STATUS: dict[int, type[PartitaError]] = {
    401: NotAuthorizedError,
    403: NotAuthorizedError,
    404: EntityNotFoundError,
    409: ConflictError,
    412: ETagMismatchError,
    413: LimitExceededError,
    429: ThrottledError,
    501: NotSupportedError,
    503: ThrottledError,
}
_HINTS = {
    "AuthenticationFailed": "Check the account name, the key or signature, and the clock of this "
    "machine.",
    "AuthorizationFailure": "Check the permissions of the signature and the firewall of the "
    "account.",
    "AuthorizationPermissionMismatch": "Use a signature with the permission for this operation.",
    "TableNotFound": "Check the name of the table, or create it.",
    "TableBeingDeleted": "Wait until the table is deleted, about a minute, then try again.",
    "UpdateConditionNotSatisfied": "Read the entity again, then decide whether to repeat the "
    "change.",
}
_XML_CODE = re.compile(r"<(?:\w+:)?code[^>]*>([^<]*)<", re.IGNORECASE)
_XML_MESSAGE = re.compile(r"<(?:\w+:)?message[^>]*>([^<]*)<", re.IGNORECASE)
_TAIL = re.compile(r"\s*RequestId:.*", re.DOTALL)
_INDEX = re.compile(r"(\d{1,3}):(.*)", re.DOTALL)
_MESSAGE_CHARACTERS_MAX = 500


class _Message(msgspec.Struct):
    value: str = ""


class _Error(msgspec.Struct):
    code: str = ""
    message: _Message = msgspec.field(default_factory=_Message)


class _Body(msgspec.Struct):
    error: _Error = msgspec.field(name="odata.error", default_factory=_Error)


def error_of(
    status: int, headers: Mapping[str, str], body: bytes, facts: Mapping[str, object]
) -> PartitaError:
    """Return the error that an answer reports; header names are in lower case.

    `facts["index"]` is the operation of a group that failed, if the service names one.
    """
    code, message = _read(body)
    code = code or headers.get("x-ms-error-code", "")
    index, message = _split_index(_TAIL.sub("", message).strip()[:_MESSAGE_CHARACTERS_MAX])
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        kind = UnavailableError if status >= 500 or status == 408 else InvalidRequestError
    error = kind(
        code or f"Http{status}",
        message.replace("\n", " ") or f"The server answered with status {status}.",
        facts=dict(facts) | ({} if index is None else {"index": index}),
        hint=headers.get("x-partita-hint") or _HINTS.get(code, ""),
    )
    if isinstance(error, ThrottledError):
        error.retry_after = _seconds(headers.get("retry-after", ""))
    return error


def _read(body: bytes) -> tuple[str, str]:
    try:
        found = msgspec.json.decode(body, type=_Body).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = body[:8192].decode("utf-8", "replace")
        code, message = _XML_CODE.search(text), _XML_MESSAGE.search(text)
        return (code[1].strip() if code else ""), (message[1] if message else "")
    return found.code, found.message.value


def _split_index(message: str) -> tuple[int | None, str]:
    found = _INDEX.fullmatch(message)
    return (int(found[1]), found[2]) if found else (None, message)


def _seconds(text: str) -> float:
    try:
        return min(max(float(text), 0.0), RETRY_AFTER_SECONDS_MAX)
    except ValueError:
        return 0.0
