"""What the SDK raises becomes an error of Partita: by the service's code, then by the status."""

import json
from typing import Any

import pytest
from azure.core.exceptions import (
    DecodeError,
    HttpResponseError,
    ServiceRequestError,
    ServiceRequestTimeoutError,
    ServiceResponseError,
    ServiceResponseTimeoutError,
)

from partita.errors import (
    ConflictError,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    FilterSyntaxError,
    GroupRuleError,
    InvalidRequestError,
    LimitExceededError,
    NotAuthorizedError,
    NotSupportedError,
    PartitaError,
    Retry,
    StoreFullError,
    TableNotFoundError,
    ThrottledError,
    UnavailableError,
)
from partita.patterns.ports.sdk_errors import BY_CODE, refusal_of_part, translate

ENDPOINT = "http://127.0.0.1:10002/devstoreaccount1"


class Answer:
    """As much of a response as an error of the SDK keeps."""

    reason = "Refused"

    def __init__(self, status: int, code: str = "", message: str = "", **headers: str) -> None:
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.content = b""
        if code:
            error = {"code": code, "message": {"lang": "en-US", "value": message}}
            self.content = json.dumps({"odata.error": error}).encode()

    def text(self, _encoding: str | None = None) -> str:
        return self.content.decode()


def refusal(status: int, code: str = "", message: str = "", **headers: str) -> PartitaError:
    answer: Any = Answer(status, code, message, **headers)
    return translate(HttpResponseError(response=answer), endpoint=ENDPOINT)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "InvalidDuplicateRow", GroupRuleError),
        (400, "InvalidInput", InvalidRequestError),
        (400, "PropertyValueTooLarge", LimitExceededError),
        (400, "EntityTooLarge", LimitExceededError),
        (401, "InvalidAuthenticationInfo", NotAuthorizedError),
        (403, "AuthenticationFailed", NotAuthorizedError),
        (403, "AuthorizationPermissionMismatch", NotAuthorizedError),
        (404, "ResourceNotFound", EntityNotFoundError),
        (404, "TableNotFound", TableNotFoundError),
        (409, "EntityAlreadyExists", EntityExistsError),
        (409, "TableBeingDeleted", UnavailableError),
        (409, "SomethingNew", ConflictError),
        (412, "UpdateConditionNotSatisfied", ETagMismatchError),
        (412, "ConditionNotMet", ETagMismatchError),
        (413, "RequestBodyTooLarge", LimitExceededError),
        (429, "TooManyRequests", ThrottledError),
        (500, "InternalError", UnavailableError),
        (500, "OperationTimedOut", UnavailableError),
        (501, "NotImplemented", NotSupportedError),
        (503, "ServerBusy", ThrottledError),
        (504, "GatewayTimeout", UnavailableError),
        (507, "StoreFull", StoreFullError),
    ],
)
def test_the_code_of_the_service_is_kept(status: int, code: str, kind: type) -> None:
    error = refusal(status, code, "What happened.")

    assert (type(error), error.code, error.message) == (kind, code, "What happened.")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "InvalidInput"),
        (403, "AuthorizationFailure"),
        (404, "ResourceNotFound"),
        (412, "UpdateConditionNotSatisfied"),
        (418, "InvalidInput"),
        (500, "InternalError"),
        (502, "InternalError"),
        (503, "ServerBusy"),
    ],
)
def test_an_answer_without_a_code_gets_that_of_its_status(status: int, code: str) -> None:
    assert refusal(status).code == code


def test_the_code_may_stand_in_a_header() -> None:
    error = refusal(404, x_ms_error_code="QueueNotFound")

    assert error.code == "QueueNotFound"


def test_marks_of_the_request_are_cut_off_the_message() -> None:
    error = refusal(404, "TableNotFound", "No table.\nRequestId:1\nTime:2026-01-02T03:04:05Z")

    assert error.message == "No table."


@pytest.mark.parametrize("index", [0, 7, 99])
def test_the_place_in_a_transaction_is_a_fact(index: int) -> None:
    error = refusal(409, "EntityAlreadyExists", f"{index}:It exists.\nRequestId:1")

    assert (error.message, error.facts) == ("It exists.", {"index": index})


def test_a_syntax_error_is_one_of_the_filter() -> None:
    error = refusal(400, "InvalidInput", "Syntax error at position 6 in 'A eq ('.")

    assert isinstance(error, FilterSyntaxError)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"x_ms_retry_after_ms": "250"}, 0.25),
        ({"Retry_After": "Fri, 02 Jan 2026 03:04:05 GMT"}, 0.0),
        ({}, 0.0),
    ],
)
def test_advice_to_wait_is_handed_on(headers: dict[str, str], seconds: float) -> None:
    error = refusal(503, "ServerBusy", "Busy.", **headers)

    assert isinstance(error, ThrottledError)
    assert (error.retry_after, error.retry) == (seconds, Retry.LATER)


@pytest.mark.parametrize("kind", [ServiceRequestError, ServiceRequestTimeoutError])
def test_a_request_that_was_not_sent_found_nobody(kind: type[ServiceRequestError]) -> None:
    error = translate(kind("refused"), endpoint=ENDPOINT)

    assert (type(error), error.code) == (UnavailableError, "ServiceUnreachable")
    assert ENDPOINT in error.message
    assert "partita serve" in error.hint


@pytest.mark.parametrize("kind", [ServiceResponseError, ServiceResponseTimeoutError])
def test_a_request_that_was_sent_may_have_been_performed(
    kind: type[ServiceResponseError],
) -> None:
    error = translate(kind("broken"), endpoint=ENDPOINT)

    assert (type(error), error.code) == (UnavailableError, "AnswerLost")


def test_an_answer_of_some_other_server_is_told() -> None:
    error = translate(DecodeError("no JSON"), endpoint=ENDPOINT)

    assert error.code == "AnswerUnreadable"


def test_what_may_pass_by_itself_says_so() -> None:
    later = {code for code, kind in BY_CODE.items() if kind.retry is Retry.LATER}

    assert later == {
        "ContainerBeingDeleted",
        "OperationTimedOut",
        "QueueBeingDeleted",
        "StoreFull",
        "TableBeingDeleted",
    }


@pytest.mark.parametrize(
    ("sent", "seconds"), [("2", 2.0), ("0.5", 0.5), ("inf", 0.0), ("-1", 0.0), ("soon", 0.0)]
)
def test_a_refused_part_of_a_group_says_when_to_come_again(sent: str, seconds: float) -> None:
    error = refusal_of_part(503, {"retry-after": sent}, b"")

    assert isinstance(error, ThrottledError)
    assert error.retry_after == seconds
