import pytest

from partita.console.guard import FAILURES_PER_MINUTE_MAX, TokenCheck, check_sender
from partita.errors import NotAuthorizedError, UnavailableError
from partita.service.http.request import Request


def a_request(**headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("GET", "/", headers={"host": "127.0.0.1:10003", **named})


@pytest.mark.parametrize(
    "host", ["127.0.0.1:10003", "localhost:10003", "[::1]:10003", "LOCALHOST", "box.example:1"]
)
def test_hosts_of_this_machine_and_allowed_ones_pass(host: str) -> None:
    check_sender(a_request(host=host, origin=f"http://{host.lower()}"), {"box.example"})


def test_an_allowed_host_may_be_behind_a_tls_proxy() -> None:
    check_sender(a_request(host="box.example", origin="https://box.example"), {"box.example"})


@pytest.mark.parametrize("host", ["", "example", "127.0.0.1.example", "a@example", "[::2]"])
def test_other_hosts_are_refused(host: str) -> None:
    with pytest.raises(NotAuthorizedError, match="ConsoleHostRefused"):
        check_sender(a_request(host=host), set())


def test_failures_are_forgotten_after_a_minute() -> None:
    check, wrong = TokenCheck("right"), a_request(authorization="Bearer wrong")
    for _ in range(FAILURES_PER_MINUTE_MAX):
        with pytest.raises(NotAuthorizedError):
            check.check(wrong, 100.0)

    with pytest.raises(UnavailableError):
        check.check(wrong, 159.0)
    check.check(a_request(authorization="Bearer right"), 159.0)
    with pytest.raises(NotAuthorizedError):
        check.check(wrong, 161.0)


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer \u00e9", "Bearer right x", "right"])
def test_only_the_whole_token_is_accepted(given: str) -> None:
    with pytest.raises(NotAuthorizedError):
        TokenCheck("right").check(a_request(authorization=given), 0.0)
