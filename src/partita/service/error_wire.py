"""One table from error code to HTTP status, and the two shapes of an error body.

OData endpoints answer JSON; access policies, service properties and statistics answer XML.
"""

from xml.sax.saxutils import escape

import msgspec

from partita.errors import PartitaError
from partita.service.request import Response
from partita.tables.edm import TICKS_A_SECOND, text_of

STATUS: dict[str, int] = {
    "AccountClosed": 400,
    "AddressUnusable": 500,
    "AtomFormatNotSupported": 415,
    "AuthenticationFailed": 403,
    "AuthorizationFailure": 403,
    "AuthorizationPermissionMismatch": 403,
    "AuthorizationProtocolMismatch": 403,
    "AuthorizationResourceTypeMismatch": 403,
    "AuthorizationServiceMismatch": 403,
    "AuthorizationSourceIPMismatch": 403,
    "CommandsInBatchActOnDifferentPartitions": 400,
    "Configuration": 500,
    "CorsPreflightFailure": 403,
    "DuplicatePropertiesSpecified": 400,
    "EntityAlreadyExists": 409,
    "EntityTooLarge": 400,
    "FolderUnusable": 500,
    "FormatVersion": 500,
    "InsufficientAccountPermissions": 403,
    "InternalError": 500,
    "InvalidAccountKey": 500,
    "InvalidAuthenticationInfo": 400,
    "InvalidDuplicateRow": 400,
    "InvalidHeaderValue": 400,
    "InvalidInput": 400,
    "InvalidQueryParameterValue": 400,
    "InvalidResourceName": 400,
    "InvalidUri": 400,
    "InvalidXmlDocument": 400,
    "InvalidXmlNodeValue": 400,
    "JsonFormatNotSupported": 415,
    "MediaTypeNotSupported": 415,
    "MethodNotAllowed": 405,
    "MissingRequiredHeader": 400,
    "MissingRequiredXmlNode": 400,
    "NoAuthenticationInformation": 401,
    "NotImplemented": 501,
    "OutOfRangeInput": 400,
    "PropertiesNeedValue": 400,
    "PropertyNameInvalid": 400,
    "PropertyNameTooLong": 400,
    "PropertyValueTooLarge": 400,
    "RequestBodyTooLarge": 413,
    "ResourceNotFound": 404,
    "ServerBusy": 503,
    "StoreDamaged": 500,
    "StoreFull": 507,
    "StoreLocked": 503,
    "StoreStopped": 503,
    "TableAlreadyExists": 409,
    "TableNotFound": 404,
    "TlsFilesUnusable": 500,
    "TooManyProperties": 400,
    "UnreadableServiceProperties": 500,
    "UnsupportedXmlNode": 400,
    "UpdateConditionNotSatisfied": 412,
    "XMethodIncorrectCount": 400,
    "XMethodIncorrectValue": 400,
    "XMethodNotUsingPost": 400,
}

_encode = msgspec.json.Encoder().encode


def status_of(error: PartitaError) -> int:
    """Return the HTTP status of an error."""
    return 401 if "www_authenticate" in error.facts else STATUS[error.code]


def message_of(error: PartitaError, request_id: str, now: int, *, index: int | None) -> str:
    """Return the message as clients parse it: `index:` first where a group failed."""
    prefix = "" if index is None else f"{index}:"
    return f"{prefix}{error.message}\nRequestId:{request_id}\nTime:{_seven_digits(now)}"


def _seven_digits(ticks: int) -> str:
    seconds, fraction = divmod(ticks, TICKS_A_SECOND)
    return f"{text_of(seconds * TICKS_A_SECOND)[:-1]}.{fraction:07}Z"


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
