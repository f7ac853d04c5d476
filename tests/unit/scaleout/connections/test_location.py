import pytest

from partita.errors import ConfigurationError
from partita.scaleout.connections.location import Location


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://db/partita", "postgresql://db/partita"),
        ("postgres://ada@db:5433/partita", "postgres://***@db:5433/partita"),
        ("postgresql://ada:s%40cret@one,two/partita", "postgresql://***@one,two/partita"),
        ("postgresql://db/p?password=x&a=b", "postgresql://db/p"),
        ("postgresql:///partita?host=/run/pg", "postgresql:///partita"),
        ("postgresql://ada:a?b@db/partita", "postgresql://***@..."),
    ],
)
def test_a_location_is_shown_without_secrets(url: str, shown: str) -> None:
    location = Location.parse(url)

    assert location.url == url
    assert str(location) == shown
    assert repr(location) == f"Location({shown!r})"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "partita",
        "./folder",
        "sqlite:///x",
        "postgresql://",
        "postgresql://db",
        "postgresql://d/",
    ],
)
def test_other_locations_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Location.parse(f"{url}")

    assert caught.value.code == "InvalidLocation"
    assert "secret" not in str(caught.value)


def test_a_password_is_not_in_the_refusal() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Location.parse("mysql://ada:secret@db/partita")

    assert "secret" not in str(caught.value)
