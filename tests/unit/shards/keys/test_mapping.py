from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import URL, make_url

from partita.errors import ConfigurationError, DamageError, TransactionUseError
from partita.shards.keys.mapping import (
    LOCATION_TEXT_MAX,
    Location,
    Mapping,
    MappingStatus,
    Shard,
    ShardStatus,
    UrlParts,
)
from partita.shards.keys.ranges import KeyRange, Range

SECRET = "s3cret-Pa55"
PRINTABLE = st.text(
    st.characters(min_codepoint=32, exclude_categories=["Cs", "Cn", "Cc"]), min_size=1
)
NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)


def location(url: str, relative_to: str = "") -> Location:
    return Location.from_url(make_url(url), relative_to=relative_to)


def a_shard(shard_id: str = "1", **changes: Any) -> Shard:
    return Shard(shard_id, "tenants", location("postgresql+psycopg://db1/shop"), **changes)


def test_an_sqlalchemy_url_has_the_parts_of_a_location() -> None:
    parts: UrlParts = make_url("postgresql://h/d")

    assert Location.from_url(parts).backend == "postgresql"


def test_a_location_keeps_where_and_drops_who() -> None:
    found = location(
        f"postgresql+psycopg://anna:{SECRET}@DB1.Example.com:5433/shop?sslmode=require"
    )

    assert found == Location(
        "postgresql+psycopg", "db1.example.com", 5433, "shop", (("sslmode", "require"),)
    )
    assert found.text == "postgresql+psycopg://db1.example.com:5433/shop?sslmode=require"
    assert found.url() == str(found) == found.text
    assert SECRET not in repr(found) + found.text
    assert "anna" not in repr(found)


@pytest.mark.parametrize(
    "option",
    [
        "user",
        "password",
        "PASSWORD",
        "sslpassword",
        "passfile",
        "username",
        "passwd",
        "pwd",
        "uid",
        "authToken",
        "access_token",
        "api_key",
        "apikey",
        "oauth_client_secret",
        "credential",
        "scram_client_key",
        "aws_access_key_id",
        "private-key",
        "private_key_passphrase",
        "key",
    ],
)
def test_secrets_among_the_options_are_dropped(option: str) -> None:
    found = location(f"postgresql://h/d?{option}={SECRET}&sslmode=require")

    assert found.options == (("sslmode", "require"),)


@pytest.mark.parametrize(
    "option",
    ["sslmode", "sslrootcert", "application_name", "options", "service", "target_session_attrs"],
)
def test_options_that_say_how_to_connect_are_kept(option: str) -> None:
    assert location(f"postgresql://h/d?{option}=value").options == ((option, "value"),)


@pytest.mark.parametrize("option", ["odbc_connect", "dsn", "DSN"])
def test_a_connection_string_within_the_url_is_refused(option: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        location(f"mssql+pyodbc://?{option}=Server%3Dh%3BPWD%3D{SECRET}")

    assert caught.value.code == "InvalidLocation"
    assert SECRET not in str(caught.value)


def test_hosts_compare_without_case_and_databases_with_it() -> None:
    assert location("postgresql://DB1/shop") == location("postgresql://db1/shop")
    assert hash(location("postgresql://DB1/shop")) == hash(location("postgresql://db1/shop"))
    assert location("postgresql://db1/Shop") != location("postgresql://db1/shop")


def test_options_compare_in_any_order() -> None:
    assert location("postgresql://h/d?a=1&b=2") == location("postgresql://h/d?b=2&a=1")


def test_several_hosts_keep_their_order() -> None:
    found = location("postgresql+psycopg://u:p@/d?host=h2:5432&host=h1:5432")

    assert found.options == (("host", "h2:5432"), ("host", "h1:5432"))
    assert make_url(found.url()).query == {"host": ("h2:5432", "h1:5432")}


def test_an_ipv6_host_keeps_its_brackets_in_the_text() -> None:
    found = location("postgresql://u@[2001:DB8::1]:5433/d")

    assert (found.host, found.port) == ("2001:db8::1", 5433)
    assert found.text == "postgresql://[2001:db8::1]:5433/d"
    assert Location.from_text(found.text) == found


def test_a_unix_socket_is_an_option() -> None:
    found = location(f"postgresql+psycopg://anna:{SECRET}@/shop?host=/var/run/Pg&port=5433")

    assert found.options == (("host", "/var/run/Pg"), ("port", "5433"))
    assert found.text == "postgresql+psycopg:///shop?host=%2Fvar%2Frun%2FPg&port=5433"
    assert found.identity == "postgresql:///var/run/Pg:5433/shop"


def test_a_socket_given_as_the_host_becomes_an_option() -> None:
    found = Location.from_url(URL.create("postgresql+psycopg", host="/run/Pg", database="d"))

    assert found == location("postgresql+psycopg:///d?host=/run/Pg")


def test_odd_characters_survive() -> None:
    url = URL.create(
        "postgresql", "a@b", SECRET, "h", 1, "a b/c?d#e%20@f:é", {"options": "-c x=1&y=2"}
    )
    found = Location.from_url(url)

    assert found.database == "a b/c?d#e%20@f:é"
    assert make_url(found.url()).database == found.database
    assert make_url(found.url()).query == {"options": "-c x=1&y=2"}
    assert Location.from_text(found.text) == found


@given(
    st.sampled_from(["postgresql", "postgresql+psycopg", "mysql+pymysql"]),
    st.none() | st.from_regex(r"[A-Za-z0-9.-]{1,12}", fullmatch=True) | st.just("fe80::1%eth0"),
    st.none() | st.integers(1, 65535),
    PRINTABLE,
    st.dictionaries(NAMES, PRINTABLE, max_size=3),
)
def test_the_text_of_a_location_reads_back(
    dialect: str, host: str | None, port: int | None, database: str, options: dict[str, str]
) -> None:
    options.pop("dsn", None)
    url = URL.create(dialect, "anna", SECRET, host, port, database, options)
    found = Location.from_url(url)
    read = make_url(found.url())

    assert Location.from_text(found.text) == found
    assert Location.from_url(read) == found
    assert (read.username, read.password) == (None, None)
    assert (read.drivername, read.port, read.database) == (dialect, port, database)
    assert (read.host or "") == (host or "").lower()
    assert SECRET not in found.text


def test_a_sqlite_path_is_kept_absolute() -> None:
    assert location("sqlite:////data/one.db").database == "/data/one.db"
    assert location("sqlite:////data//./one.db") == location("sqlite:////data/one.db")
    assert location("sqlite://///data/one.db") == location("sqlite:////data/one.db")
    assert location("sqlite:////data/one.db").text == "sqlite:////data/one.db"
    assert location("sqlite:////data/Ä %23.db").database == "/data/Ä #.db"


def test_a_relative_sqlite_path_is_put_behind_its_base() -> None:
    assert location("sqlite:///one.db", "/data") == location("sqlite:////data/one.db")
    assert location("sqlite:///./a/one.db", "/data/") == location("sqlite:////data/a/one.db")
    assert location("sqlite:///file:one.db?uri=true", "/data").database == "file:/data/one.db"


def test_a_relative_sqlite_path_without_a_base_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="four slashes"):
        location("sqlite:///one.db")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite+aiosqlite:///:memory:",
        "sqlite+pysqlite://",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "sqlite:///file:x?mode=memory&uri=true",
        "sqlite:///file:?uri=true",
    ],
)
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="Name a file") as caught:
        location(url, "/data")

    assert caught.value.code == "InvalidLocation"


@pytest.mark.parametrize(
    "url",
    [
        URL.create("sqlite", host="h", database="/one.db"),
        URL.create("postgresql", host="h"),
        URL.create("postgresql", host="h", database=""),
        URL.create("postgresql", host="a/b", database="d"),
        URL.create("postgresql", host="a@b", database="d"),
        URL.create("postgresql", host="a b", database="d"),
        URL.create("post gres", host="h", database="d"),
        URL.create("postgresql", host="h", database="d" * LOCATION_TEXT_MAX),
    ],
)
def test_a_url_that_names_no_database_is_refused(url: URL) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Location.from_url(url)

    assert caught.value.code == "InvalidLocation"
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "sqlite", "postgresql://h", "://h/d", "postgresql://h:x/d"])
def test_a_stored_text_of_no_location_is_damage(text: str) -> None:
    with pytest.raises(DamageError):
        Location.from_text(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("postgresql://h/d", "postgresql+asyncpg://H:5432/d?sslmode=require"),
        ("postgresql://h/d", "postgresql+psycopg:///d?host=H"),
        ("postgresql://h/d", "postgresql://h/?dbname=d"),
        ("postgresql://h:5433/d", "postgresql://h/d?port=5433"),
        ("mysql+pymysql://h/d", "mysql://h:3306/d"),
        ("sqlite:////data/one.db", "sqlite+aiosqlite:////data/one.db?timeout=5"),
        ("sqlite:////data/one.db", "sqlite:///file:/data/one.db?uri=true"),
        ("sqlite:////data/one.db", "sqlite:///file:///data/one.db?uri=true"),
    ],
)
def test_two_ways_to_one_database_have_one_identity(one: str, other: str) -> None:
    assert location(one).identity == location(other).identity


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("postgresql://h/d", "postgresql://h/e"),
        ("postgresql://h/d", "postgresql://i/d"),
        ("postgresql://h/d", "postgresql://h:5433/d"),
        ("postgresql://h/d", "mysql://h:5432/d"),
        ("postgresql:///d?host=/run/a", "postgresql:///d?host=/run/A"),
        ("postgresql://?service=a", "postgresql://?service=b"),
        ("sqlite:////data/one.db", "sqlite:////data/ONE.db"),
    ],
)
def test_two_databases_have_two_identities(one: str, other: str) -> None:
    assert location(one).identity != location(other).identity


def test_shards_are_equal_by_id() -> None:
    first = a_shard("1")

    assert first == a_shard("1", status=ShardStatus.OFFLINE, version="2")
    assert hash(first) == hash(a_shard("1", version="2"))
    assert first != a_shard("2")
    assert first != "1"
    assert {first: "found"}[a_shard("1")] == "found"


def test_a_shard_is_shown_by_its_location() -> None:
    assert repr(a_shard()) == ("Shard('postgresql+psycopg://db1/shop', id='1', status='online')")


def test_a_shard_connects_as_it_was_told() -> None:
    shard = a_shard(opens=lambda place: f"connected to {place.host}")

    assert shard.connect() == "connected to db1"


def test_a_shard_from_no_catalog_does_not_connect() -> None:
    with pytest.raises(TransactionUseError) as caught:
        a_shard().connect()

    assert caught.value.code == "ShardNotAttached"


def test_values_cannot_be_changed() -> None:
    mapping = Mapping("m", "tenants", a_shard(), KeyRange(b"a", b"b"), Range("a", "b"))

    for value, name in ((mapping, "id"), (mapping.shard, "id"), (mapping.shard.location, "host")):
        with pytest.raises(AttributeError):
            setattr(value, name, "other")
    with pytest.raises(AttributeError):
        mapping.key_range.low = b""  # type: ignore[misc]
    with pytest.raises(AttributeError):
        mapping.range.low = None  # type: ignore[misc]


def test_a_mapping_is_online_and_unlocked_unless_it_says_otherwise() -> None:
    mapping = Mapping("m", "tenants", a_shard(), KeyRange(b"a", b"b"), Range("a", "b"))
    offline = msgspec.structs.replace(mapping, status=MappingStatus.OFFLINE)

    assert mapping.is_online
    assert mapping.lock_owner is None
    assert not offline.is_online
    assert offline != mapping
    assert [status.value for status in MappingStatus] == ["online", "offline"]


def test_only_the_mapping_of_a_list_map_has_a_key() -> None:
    point = Mapping("m", "tenants", a_shard(), KeyRange.point(b"a"), Range("a", "a"))
    wide = Mapping("m", "tenants", a_shard(), KeyRange(b"a", b"b"), Range("a", "b"))

    assert point.key == "a"
    assert wide.key is None
