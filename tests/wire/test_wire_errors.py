"""Errors as they stand on the wire: shape, level, status, code and text."""

import re
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from wire.raw import GUID, JSON, KEYS, TIME, RawClient, accepting


def test_an_error_in_json_has_code_text_request_and_time(raw: RawClient, table: str) -> None:
    answer = raw.send("GET", f"/{table}{KEYS}", headers=accepting("fullmetadata"))

    assert (answer.status, answer.reason) == (404, "Not Found")
    assert answer["x-ms-error-code"] == "ResourceNotFound"
    assert answer["Content-Type"].startswith("application/json;odata=fullmetadata;")
    assert re.fullmatch(
        r'\{"odata\.error":\{"code":"ResourceNotFound","message":\{"lang":"en-US","value":'
        rf'"The specified resource does not exist\.\\nRequestId:{answer["x-ms-request-id"]}'
        rf'\\nTime:{TIME}"\}}\}}\}}',
        answer.body.decode(),
    )


def test_an_error_takes_its_level_from_format_too(raw: RawClient, table: str) -> None:
    answer = raw.send("GET", f"/{table}{KEYS}?$format=application/json;odata=nometadata")

    assert "odata=nometadata;" in answer["Content-Type"]


@pytest.mark.parametrize(
    ("target", "headers"),
    [("/Missing?comp=acl", {}), (f"/Missing{KEYS}", {"Accept": "application/xml"})],
)
def test_an_error_in_xml_has_the_same_facts(
    raw: RawClient, target: str, headers: dict[str, str]
) -> None:
    answer = raw.send("GET", target, headers=headers)

    assert (answer.status, answer["Content-Type"]) == (404, "application/xml")
    root = ElementTree.fromstring(answer.body)
    space = "{http://schemas.microsoft.com/ado/2007/08/dataservices/metadata}"
    assert root.tag == f"{space}error"
    assert [child.tag for child in root] == [f"{space}code", f"{space}message"]
    assert root[0].text == answer["x-ms-error-code"]
    assert re.search(rf"\.\nRequestId:{GUID}\nTime:{TIME}$", root[1].text or "")


def test_who_is_not_let_in_gets_plain_json(raw: RawClient) -> None:
    forged = {"Authorization": "SharedKeyLite devstoreaccount1:Zm9yZ2Vk", "x-ms-date": ""}

    unknown = raw.send("GET", "/Tables", is_signed=False)
    wrong = raw.send("POST", "/$batch", "x", forged, is_signed=False)

    assert (unknown.status, unknown.code) == (401, "NoAuthenticationInformation")
    assert (wrong.status, wrong.code) == (403, "AuthenticationFailed")
    assert unknown["Content-Type"] == wrong["Content-Type"] == "application/json"
    assert wrong["x-ms-error-code"] == "AuthenticationFailed"


@pytest.mark.parametrize(
    ("version", "status", "code"),
    [("2020-12-06", 401, "InvalidAuthenticationInfo"), ("2019-07-07", 403, "AuthenticationFailed")],
)
def test_a_bearer_token_is_challenged_where_the_version_knows_challenges(
    raw: RawClient, version: str, status: int, code: str
) -> None:
    headers = {"Authorization": "Bearer a.b.c", "x-ms-version": version}

    answer = raw.send("GET", "/Tables", headers=headers, is_signed=False)

    assert (answer.status, answer.code) == (status, code)
    assert ("WWW-Authenticate" in answer.names) is (status == 401)


def test_a_malformed_authorization_is_told_apart(raw: RawClient) -> None:
    answer = raw.send("GET", "/Tables", headers={"Authorization": "Who knows"}, is_signed=False)

    assert (answer.status, answer.code) == (400, "InvalidAuthenticationInfo")


class Refused(NamedTuple):
    request: str
    status: int
    code: str
    text: str
    body: str = ""


EXISTS = "The table specified already exists."
MISSING = "The table specified does not exist."
NO_NAME = "The specifed resource name contains invalid characters."
NO_LENGTH = "The specified resource name length is not within the permissible limits."
NO_KEYS = "The values are not specified for all properties in the entity."
NO_INPUT = "One of the request inputs is not valid."
NO_RANGE = "One of the request inputs is out of range."
NO_SYNTAX = "Bad Request - Error in query syntax."
NO_JSON = "An error occurred while processing this request."
NO_SUCH_THING = "The requested operation is not implemented on the specified resource."
OUT_OF_RANGE = "The 'PartitionKey' parameter of value 'a/b' is out of range."
TWICE = "A property is specified more than one time."
NO_FILTER = "Syntax error at position 7 in 'aaa bbb ccc'."
ODD_NAME = "The property name is invalid."

REFUSED = [
    Refused("POST /Tables", 409, "TableAlreadyExists", EXISTS, '{"TableName":"TABLE"}'),
    Refused("POST /Tables", 400, "InvalidResourceName", NO_NAME, '{"TableName":"a-b"}'),
    Refused("POST /Tables", 400, "OutOfRangeInput", NO_LENGTH, '{"TableName":"ab"}'),
    Refused("POST /Tables", 400, "InvalidInput", NO_INPUT, '{"TableName":"tables"}'),
    Refused("POST /Nothing", 404, "TableNotFound", MISSING, '{"PartitionKey":"","RowKey":""}'),
    Refused("GET /Nothing()", 404, "TableNotFound", MISSING),
    Refused(f"GET /Nothing{KEYS}", 404, "TableNotFound", MISSING),
    Refused(f"PUT /Nothing{KEYS}", 404, "TableNotFound", MISSING, "{}"),
    Refused("GET /a-b()", 400, "InvalidResourceName", NO_NAME),
    Refused("POST /TABLE", 400, "PropertiesNeedValue", NO_KEYS, '{"RowKey":""}'),
    Refused("POST /TABLE", 400, "DuplicatePropertiesSpecified", TWICE, '{"A":1,"A":2}'),
    Refused("POST /TABLE", 400, "OutOfRangeInput", OUT_OF_RANGE, '{"PartitionKey":"a/b"}'),
    Refused("POST /TABLE", 400, "PropertyNameInvalid", ODD_NAME, '{"1":2}'),
    Refused("POST /TABLE", 400, "InvalidInput", NO_JSON, "{not json"),
    Refused("GET /TABLE()?$filter=aaa%20bbb%20ccc", 400, "InvalidInput", NO_FILTER),
    Refused("GET /TABLE()?$filter=A%20eq%20null", 400, "InvalidInput", NO_INPUT),
    Refused("GET /TABLE()?$filter=A%20eq%20B", 501, "NotImplemented", NO_SUCH_THING),
    Refused("GET /TABLE()?$orderby=A", 501, "NotImplemented", NO_SUCH_THING),
    Refused("GET /TABLE()?$top=1001", 400, "InvalidInput", NO_INPUT),
    Refused("GET /TABLE()?NextPartitionKey=bad", 400, "InvalidInput", NO_INPUT),
    Refused("GET /TABLE(PartitionKey='a%2Fb',RowKey='')", 400, "InvalidInput", NO_SYNTAX),
    Refused("GET /TABLE(PartitionKey='a%23b',RowKey='')", 400, "OutOfRangeInput", NO_RANGE),
    Refused("GET /$metadata", 501, "NotImplemented", NO_SUCH_THING),
]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda one: f"{one.code}-{one.request}")
def test_a_refusal_has_the_status_code_and_text_of_the_service(
    raw: RawClient, table: str, refused: Refused
) -> None:
    method, _, target = refused.request.partition(" ")
    body = refused.body.replace("TABLE", table)

    answer = raw.send(method, target.replace("TABLE", table), body, JSON)

    assert (answer.status, answer.code, answer.first_line) == refused[1:4]


@pytest.mark.parametrize(
    "target",
    ["/{}?restype=service&comp=properties", "/{}?comp=else", "/?restype=service&comp=else"],
)
def test_comp_out_of_place_is_refused(raw: RawClient, table: str, target: str) -> None:
    answer = raw.send("GET", target.format(table))

    assert (answer.status, answer["x-ms-error-code"]) == (400, "InvalidQueryParameterValue")
