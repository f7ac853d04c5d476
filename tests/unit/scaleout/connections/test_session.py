import asyncpg
import pytest

from partita.errors import ConfigurationError, DamageError, StoreBusyError, StoreFullError
from partita.scaleout.connections.session import is_outcome_known, may_repeat, translated


def an_error(state: str, text: str = "the text\nmore") -> asyncpg.PostgresError:
    return asyncpg.PostgresError.new({"C": state, "M": text})


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("42P01", "StoreNotInstalled"),
        ("42883", "StoreNotInstalled"),
        ("28P01", "StoreNotPermitted"),
        ("42501", "StoreNotPermitted"),
        ("3D000", "StoreNotPermitted"),
        ("53100", "StoreFull"),
        ("XX001", "StoreDamaged"),
        ("22021", "StoreFailed"),
        ("42601", "StoreFailed"),
        ("23505", "StoreFailed"),
        ("55P03", "ServerBusy"),
        ("53300", "ServerBusy"),
        ("57P03", "ServerBusy"),
        ("40P01", "ServerBusy"),
    ],
)
def test_each_error_of_the_server_has_its_code(state: str, code: str) -> None:
    assert translated(an_error(state)).code == code


def test_a_busy_server_tells_when_to_try_again() -> None:
    error = translated(ConnectionRefusedError())

    assert isinstance(error, StoreBusyError)
    assert error.facts["retry_after"] == 1


def test_only_the_first_line_of_the_server_is_shown() -> None:
    assert translated(an_error("42501")).message.endswith("the text")


def test_values_are_not_shown() -> None:
    assert "secret" not in str(translated(an_error("22021", "secret")))


def test_families_say_whether_a_retry_can_help() -> None:
    assert isinstance(translated(an_error("42P01")), ConfigurationError)
    assert isinstance(translated(an_error("XX002")), DamageError)
    assert isinstance(translated(an_error("53100")), StoreFullError)
    assert isinstance(translated(ValueError("port")), ConfigurationError)


@pytest.mark.parametrize(
    ("error", "is_known"),
    [
        (an_error("23505"), True),
        (an_error("57014"), True),
        (an_error("57P01"), False),
        (an_error("08006"), False),
        (ConnectionResetError(), False),
        (TimeoutError(), False),
        (asyncpg.InterfaceError("closed"), False),
        (asyncpg.ConnectionDoesNotExistError("gone"), False),
    ],
)
def test_when_a_failed_write_certainly_changed_nothing(error: Exception, is_known: bool) -> None:
    assert is_outcome_known(error) is is_known


def test_which_errors_may_be_repeated_at_once() -> None:
    assert may_repeat(an_error("40P01"))
    assert may_repeat(an_error("23505"))
    assert not may_repeat(an_error("22021"))
    assert not may_repeat(TimeoutError())
