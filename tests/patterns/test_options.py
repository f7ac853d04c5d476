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
        ({"queues": "work"}, "must be a tuple of names"),
        ({"queues": ()}, "must be a tuple of names"),
        ({"queues": ("Work_Items",)}, "not a valid queue name"),
        ({"poison_queue": "p"}, "not a valid queue name"),
        ({"visibility": 0}, "more than 0 and at most 604,800 seconds"),
        ({"visibility": 10_000_000}, "more than 0 and at most 604,800 seconds"),
        ({"deliveries_max": 0}, "must be at least 1"),
        ({"parallel": 0}, "must be at least 1"),
    ],
)
def test_an_option_that_no_service_would_take_is_refused_at_once(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        connect("partita::memory:", **options)

    assert refused.value.code == "OptionRefused"
    assert said in refused.value.message
