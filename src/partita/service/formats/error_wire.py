"""One table from error code to HTTP status, and the three shapes of an error body.

OData endpoints answer JSON; access policies, service properties and statistics of tables answer
XML, and queues and blobs another XML with further elements for the details.
"""

from xml.sax.saxutils import escape

import msgspec

from partita.errors import PartitaError
from partita.service.formats import xml_text
from partita.service.http.request import Request, Response
from partita.tables.edm import text_of
from partita.ticks import TICKS_PER_SECOND

STATUS: dict[str, int] = {
    "AccountClosed": 400,
    "AddressUnusable": 500,
    "AppendPositionConditionNotMet": 412,
    "AtomFormatNotSupported": 415,
    "AuthenticationFailed": 403,
    "AuthorizationFailure": 403,
    "AuthorizationPermissionMismatch": 403,
    "AuthorizationProtocolMismatch": 403,
    "AuthorizationResourceTypeMismatch": 403,
    "AuthorizationServiceMismatch": 403,
    "AuthorizationSourceIPMismatch": 403,
    "BlobAlreadyExists": 409,
    "BlobArchived": 409,
    "BlobDamaged": 500,
    "BlobIsSealed": 409,
    "BlobNotFound": 404,
    "BlobOverwritten": 409,
    "BlobStoreMissing": 501,
    "BlobStoreUnfit": 500,
    "BlockCountExceedsLimit": 409,
    "BlockListTooLong": 400,
    "CannotVerifyCopySource": 404,
    "ClientGone": 400,
    "CommandsInBatchActOnDifferentPartitions": 400,
    "ConditionHeadersNotSupported": 400,
    "ConditionNotMet": 412,
    "Configuration": 500,
    "ContainerAlreadyExists": 409,
    "ContainerNotFound": 404,
    "CopyIdMismatch": 409,
    "CopyIncomplete": 500,
    "CorsPreflightFailure": 403,
    "Crc64Mismatch": 400,
    "DuplicatePropertiesSpecified": 400,
    "DuplicateTagNames": 400,
    "EmptyMetadataKey": 400,
    "EmptyTagName": 400,
    "EntityAlreadyExists": 409,
    "EntityDamaged": 500,
    "EntityTooLarge": 400,
    "FolderUnusable": 500,
    "FormatVersion": 500,
    "InfiniteLeaseDurationRequired": 412,
    "InsufficientAccountPermissions": 403,
    "InternalError": 500,
    "InvalidAccountKey": 500,
    "InvalidAuthenticationInfo": 400,
    "InvalidBlobOrBlock": 400,
    "InvalidBlobType": 409,
    "InvalidBlockList": 400,
    "InvalidDuplicateRow": 400,
    "InvalidHeaderValue": 400,
    "InvalidInput": 400,
    "InvalidLocation": 500,
    "InvalidMarker": 400,
    "InvalidMd5": 400,
    "InvalidMetadata": 400,
    "InvalidPageRange": 416,
    "InvalidQueryParameterValue": 400,
    "InvalidRange": 416,
    "InvalidResourceName": 400,
    "InvalidTag": 400,
    "InvalidUri": 400,
    "InvalidXmlDocument": 400,
    "InvalidXmlNodeValue": 400,
    "JsonFormatNotSupported": 415,
    "LeaseAlreadyPresent": 409,
    "LeaseIdMismatchWithBlobOperation": 412,
    "LeaseIdMismatchWithContainerOperation": 412,
    "LeaseIdMismatchWithLeaseOperation": 409,
    "LeaseIdMissing": 412,
    "LeaseIsBreakingAndCannotBeAcquired": 409,
    "LeaseIsBreakingAndCannotBeChanged": 409,
    "LeaseIsBrokenAndCannotBeRenewed": 409,
    "LeaseLost": 412,
    "LeaseNotPresentWithBlobOperation": 412,
    "LeaseNotPresentWithContainerOperation": 412,
    "LeaseNotPresentWithLeaseOperation": 409,
    "MaxBlobSizeConditionNotMet": 412,
    "Md5Mismatch": 400,
    "MediaTypeNotSupported": 415,
    "MessageDamaged": 500,
    "MessageNotFound": 404,
    "MetadataTooLarge": 400,
    "MethodNotAllowed": 405,
    "MissingRequiredHeader": 400,
    "MissingRequiredQueryParameter": 400,
    "MissingRequiredXmlNode": 400,
    "MultipleConditionHeadersNotSupported": 400,
    "NoAuthenticationInformation": 401,
    "NoPendingCopyOperation": 409,
    "NotImplemented": 501,
    "OperationNotAllowedOnRootBlob": 403,
    "OperationTimedOut": 408,
    "OutOfRangeInput": 400,
    "OutOfRangeQueryParameterValue": 400,
    "PropertiesNeedValue": 400,
    "PreviousSnapshotCannotBeNewer": 400,
    "PreviousSnapshotNotFound": 409,
    "PropertyNameInvalid": 400,
    "PropertyNameTooLong": 400,
    "PropertyValueTooLarge": 400,
    "QueueAlreadyExists": 409,
    "QueueNotFound": 404,
    "RequestBodyTooLarge": 413,
    "ResourceNotFound": 404,
    "SequenceNumberConditionNotMet": 412,
    "ServerBusy": 503,
    "SnapshotsPresent": 409,
    "SourceConditionNotMet": 412,
    "StoreDamaged": 500,
    "StoreFailed": 500,
    "StoreFull": 507,
    "StoreLockLost": 503,
    "StoreLocked": 503,
    "StoreNotDurable": 500,
    "StoreNotInstalled": 500,
    "StoreNotPermitted": 500,
    "StoreRangesBroken": 500,
    "StoreShardUnknown": 503,
    "StoreShardsDraining": 503,
    "StoreSlotLost": 503,
    "StoreSlotsTaken": 503,
    "StoreStopped": 503,
    "StoreUnfit": 500,
    "StoreUnreachable": 503,
    "TableAlreadyExists": 409,
    "TableNotFound": 404,
    "TagsTooLarge": 400,
    "TlsFilesUnusable": 500,
    "TooManyProperties": 400,
    "UnauthorizedBlobOverwrite": 403,
    "UnreadableServiceProperties": 500,
    "UnsatisfiableCondition": 400,
    "UnsupportedHttpVerb": 405,
    "UnsupportedXmlNode": 400,
    "UpdateConditionNotSatisfied": 412,
    "XMethodIncorrectCount": 400,
    "XMethodIncorrectValue": 400,
    "XMethodNotUsingPost": 400,
}

ACCOUNT_SETTING = "--account"

_OF_READS = frozenset({"CannotVerifyCopySource", "ConditionNotMet"})
"""Codes that mean "not modified" for a read whose client has the current version."""
_BOM = "\ufeff"

_encode = msgspec.json.Encoder().encode


def status_of(error: PartitaError) -> int:
    """Return the HTTP status of an error."""
    if "www_authenticate" in error.facts:
        return 401
    if "unchanged" in error.facts and error.code in _OF_READS:
        return 304
    own = error.facts.get(
        "status"
    )  # of a copy whose source cannot be read: the code has several statuses
    return own if isinstance(own, int) else STATUS[error.code]


def message_of(error: PartitaError, request_id: str, now: int, *, index: int | None) -> str:
    """Return the message as clients parse it: with `index:` first if a group failed.

    If a setting resolves the error, the hint is the second line: SDKs do not show headers.
    """
    prefix = "" if index is None else f"{index}:"
    hint = f"\n{error.hint}" if is_told(error) else ""
    return f"{prefix}{error.message}{hint}\nRequestId:{request_id}\nTime:{_seven_digits(now)}"


def is_told(error: PartitaError) -> bool:
    """Return whether the message contains the hint: if a setting resolves the error.

    The names of the served accounts are only logged.
    """
    return error.setting not in ("", ACCOUNT_SETTING)


def _seven_digits(ticks: int) -> str:
    seconds, fraction = divmod(ticks, TICKS_PER_SECOND)
    return f"{text_of(seconds * TICKS_PER_SECOND)[:-1]}.{fraction:07}Z"


def encode_json(
    error: PartitaError, message: str, content_type: str, *, extra: list[tuple[str, str]]
) -> Response:
    body = _encode(
        {"odata.error": {"code": error.code, "message": {"lang": "en-US", "value": message}}}
    )
    headers = [("Content-Type", content_type), ("x-ms-error-code", error.code), *extra]
    return Response(status_of(error), headers, body)


def encode_xml(error: PartitaError, message: str, *, extra: list[tuple[str, str]]) -> Response:
    text = (
        '<?xml version="1.0" encoding="utf-8"?>'
        '<m:error xmlns:m="http://schemas.microsoft.com/ado/2007/08/dataservices/metadata">'
        f'<m:code>{error.code}</m:code><m:message xml:lang="en-US">{escape(message)}</m:message>'
        "</m:error>"
    )
    headers = [("Content-Type", "application/xml"), ("x-ms-error-code", error.code), *extra]
    return Response(status_of(error), headers, text.encode("utf-8"))


def encode_error(
    error: PartitaError, message: str, request: Request, extra: list[tuple[str, str]]
) -> Response:
    """Answer as queues and blobs do; `facts["elements"]` are the elements after the message.

    The answer to HEAD, and a "not modified" one, has headers only.
    """
    status = status_of(error)
    headers = [("x-ms-error-code", error.code), *extra]
    if request.method == "HEAD" or status == 304:
        return Response(status, headers)
    elements = error.facts.get("elements")
    pairs = elements if isinstance(elements, list) else []
    further = "".join(xml_text.text_element(name, value) for name, value in pairs)
    content = f"<Code>{error.code}</Code>{xml_text.text_element('Message', message)}{further}"
    text = f"{_BOM}{xml_text.DECLARATION}<Error>{content}</Error>"
    return Response(status, [("Content-Type", "application/xml"), *headers], text.encode())
