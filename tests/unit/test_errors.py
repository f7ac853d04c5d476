import inspect
import pickle

import pytest

from partita import errors
from partita.errors import (
    ConflictError,
    DamageError,
    PartitaError,
    Retry,
    UnavailableError,
    UsageError,
)

FAMILIES = (UsageError, ConflictError, UnavailableError, DamageError)
CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, PartitaError) and value is not PartitaError
]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_of_exactly_one_family(kind: type[PartitaError]) -> None:
    assert sum(issubclass(kind, family) for family in FAMILIES) == 1


@pytest.mark.parametrize(
    ("family", "retry"),
    [
        (UsageError, Retry.NO),
        (ConflictError, Retry.REREAD),
        (UnavailableError, Retry.LATER),
        (DamageError, Retry.NO),
    ],
)
def test_the_family_says_what_trying_again_is_worth(
    family: type[PartitaError], retry: Retry
) -> None:
    assert {kind.retry for kind in CLASSES if issubclass(kind, family)} == {retry}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_class_says_what_it_means(kind: type[PartitaError]) -> None:
    assert kind.__doc__
    assert kind.__doc__.endswith(".")


def test_an_error_tells_code_message_facts_and_hint() -> None:
    error = UsageError("Code", "It happened.", facts={"table": "Staff"}, hint="Do that.")

    assert str(error) == "Code: It happened. (table='Staff') Do that."
    assert (error.code, error.message) == ("Code", "It happened.")


def test_an_error_without_facts_and_hint_is_code_and_message() -> None:
    assert str(UsageError("Code", "It happened.")) == "Code: It happened."


def test_facts_belong_to_one_error() -> None:
    facts = {"table": "Staff"}
    first, second = UsageError("Code", "a", facts=facts), UsageError("Code", "b", facts=facts)

    first.facts["index"] = 3

    assert second.facts == {"table": "Staff"}
    assert facts == {"table": "Staff"}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_comes_back_from_another_process(kind: type[PartitaError]) -> None:
    error = kind("Code", "Message.", facts={"table": "t"}, hint="Do this.")

    back = pickle.loads(pickle.dumps(error))

    assert (type(back), back.code, back.facts, back.hint) == (
        kind,
        "Code",
        {"table": "t"},
        "Do this.",
    )
    assert str(back) == str(error)
