"""Options of a database that are refused when it is opened."""

from typing import Any

import pytest

from partita.errors import UsageError
from partita.patterns.sync import connect
from partita.patterns.writing.context import Options


@pytest.mark.parametrize("option", ["queues", "poison_queue"])
def test_a_name_of_a_queue_that_is_refused_is_told_with_its_option(option: str) -> None:
    given: Any = "No_Name" if option == "poison_queue" else ("No_Name",)

    with pytest.raises(UsageError, match="OptionRefused") as refused:
        Options(**{option: given})

    assert refused.value.facts["option"] == option


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queues": "work"}, "is a tuple of names"),
        ({"queues": ()}, "is a tuple of names"),
        ({"queues": ("Work_Items",)}, "no name of a queue"),
        ({"poison_queue": "p"}, "no name of a queue"),
        ({"visibility": 0}, "a number of seconds, 604,800 at most"),
        ({"visibility": 10_000_000}, "a number of seconds, 604,800 at most"),
        ({"deliveries_max": 0}, "is at least 1"),
        ({"parallel": 0}, "is at least 1"),
    ],
)
def test_an_option_that_no_service_would_take_is_refused_at_once(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        connect("partita::memory:", **options)

    assert refused.value.code == "OptionRefused"
    assert said in refused.value.message
