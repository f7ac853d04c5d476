import base64
from pathlib import Path

import pytest

from partita.addresses import is_loopback
from partita.cli.config import AccountKeys, check, load, warnings
from partita.errors import ConfigurationError
from partita.service.accounts.account import DEVELOPMENT_KEY
from partita.storage.durability import Durability

KEY = base64.b64encode(b"a key of our own, 32 bytes or more").decode()
OTHER_KEY = base64.b64encode(b"another one").decode()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults_serve_the_development_account_on_this_machine_only() -> None:
    config = load({}, {})

    assert config.path == Path("partita-data")
    assert config.host == ("127.0.0.1",)
    assert config.ports == {"blobs": 10000, "queues": 10001, "tables": 10002}
    assert config.durability is Durability.FULL
    assert config.accounts == (AccountKeys("devstoreaccount1", (DEVELOPMENT_KEY,)),)
    assert not config.is_on_network
    assert set(config.sources.values()) == {"default"}


def test_flags_win_over_variables_and_variables_over_the_file() -> None:
    Path("partita.toml").write_text('path = "from-file"\ntable_port = 1\ndurability = "fast"\n')

    config = load({"table_port": "3"}, {"PARTITA_TABLE_PORT": "2", "PARTITA_DURABILITY": "full"})

    assert (config.path, config.table_port) == (Path("from-file"), 3)
    assert config.durability is Durability.FULL
    assert config.sources["path"] == "file partita.toml"
    assert config.sources["table_port"] == "flag --table-port"
    assert config.sources["durability"] == "variable PARTITA_DURABILITY"
    assert config.sources["host"] == "default"


def test_a_named_file_counts_its_paths_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc" / "server.toml"
    file.write_text('path = "data"\n[[accounts]]\nname = "mine"\nkey_file = "mine.key"\n')
    (tmp_path / "etc" / "mine.key").write_text(f"{KEY}\n{OTHER_KEY}\n")
    (tmp_path / "etc" / "mine.key").chmod(0o600)

    config = load({"config": str(file)}, {})

    assert config.path == tmp_path / "etc" / "data"
    assert config.accounts == (AccountKeys("mine", (KEY, OTHER_KEY)),)


def test_the_file_can_be_named_by_a_variable(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("table_port = 7\n")

    assert load({}, {"PARTITA_CONFIG": "other.toml"}).table_port == 7


def test_accounts_of_a_variable_are_written_as_azurite_writes_them() -> None:
    config = load({}, {"PARTITA_ACCOUNTS": f"one:{KEY}:{OTHER_KEY};two:{KEY}"})

    assert config.accounts == (AccountKeys("one", (KEY, OTHER_KEY)), AccountKeys("two", (KEY,)))


def test_hosts_are_a_list_or_a_text_with_commas() -> None:
    Path("partita.toml").write_text('allowed_host = ["tables.test", "other.test"]\n')

    config = load({"host": ["127.0.0.1", "[::1]"]}, {"PARTITA_HOST": "ignored"})

    assert config.host == ("127.0.0.1", "::1")
    assert config.allowed_host == ("tables.test", "other.test")
    assert load({}, {"PARTITA_HOST": "127.0.0.1, ::1"}).host == ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PARTITA_TABLE_PORT", "70000"),
        ("PARTITA_TABLE_PORT", "ten"),
        ("PARTITA_DURABILITY", "none"),
        ("PARTITA_IN_MEMORY", "perhaps"),
        ("PARTITA_HOST", " "),
        ("PARTITA_PATH", ""),
        ("PARTITA_ACCOUNTS", ""),
        ("PARTITA_ACCOUNTS", "name"),
        ("PARTITA_ACCOUNTS", "name:not base64"),
        ("PARTITA_ACCOUNTS", f"Name:{KEY}"),
        ("PARTITA_ACCOUNTS", f"ab:{KEY}"),
        ("PARTITA_ACCOUNTS", f"twice:{KEY};twice:{KEY}"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_with_its_source(variable: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load({}, {variable: text})

    assert variable in caught.value.message


def test_a_refused_key_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load({}, {"PARTITA_ACCOUNTS": "name:almost-a-key!"})

    assert "almost-a-key" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "table_prot = 1\n",
        "this is not TOML",
        "accounts = 3\n",
        "[[accounts]]\nname = 'mine'\n",
        "[[accounts]]\nname = 'mine'\nkey_file = 'missing'\n",
        "[[accounts]]\nname = 'mine'\nkee = 'x'\n",
    ],
)
def test_a_file_with_a_mistake_is_refused(text: str) -> None:
    Path("partita.toml").write_text(text)

    with pytest.raises(ConfigurationError, match=r"partita\.toml"):
        load({}, {})


def test_a_named_file_must_exist() -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load({"config": "missing.toml"}, {})


def test_no_key_is_ever_printed() -> None:
    config = load({}, {"PARTITA_ACCOUNTS": f"one:{KEY};two:{OTHER_KEY}:{KEY}"})

    assert KEY not in repr(config)
    assert config.shown()["accounts"] == ["one (1 key)", "two (2 keys)"]


def test_each_service_can_be_turned_off() -> None:
    Path("partita.toml").write_text("blobs = false\nqueue_port = 7\n")

    config = load({"table_port": "8"}, {"PARTITA_QUEUES": "yes"})

    assert config.ports == {"queues": 7, "tables": 8}
    assert load({"blobs": True, "tables": False}, {}).ports == {"blobs": 10000, "queues": 7}
    check(config)


def test_a_server_that_serves_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Every service is turned off"):
        check(load({"blobs": False, "queues": False, "tables": False}, {}))


def test_two_services_on_one_port_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="same port"):
        check(load({"blob_port": "10002"}, {}))
    check(load({"blob_port": "10002", "tables": False}, {}))
    check(load({"blob_port": "0", "queue_port": "0", "table_port": "0"}, {}))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "tables.test"])
def test_the_well_known_key_is_refused_beyond_this_machine(host: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check(load({"host": ["127.0.0.1", host]}, {}))

    assert "--allow-development-key-on-network" in caught.value.hint


def test_the_well_known_key_is_refused_under_any_account_name() -> None:
    with pytest.raises(ConfigurationError):
        check(load({"host": "0.0.0.0"}, {"PARTITA_ACCOUNTS": f"mine:{KEY}:{DEVELOPMENT_KEY}"}))


def test_the_well_known_key_on_the_network_can_be_asked_for_and_is_warned_about() -> None:
    config = load({"host": "0.0.0.0", "allow_development_key_on_network": True}, {})

    check(config)

    assert any("development key" in warning for warning in warnings(config))


def test_hosts_to_copy_from_are_read_with_and_without_a_port() -> None:
    hosts = "Data.example,10.0.0.5:10000,[2001:db8::1]:80"

    config = load({}, {"PARTITA_COPY_FROM_HOST": hosts})

    assert config.copy_from_host == ("data.example", "10.0.0.5:10000", "[2001:db8::1]:80")
    for bad in ("https://data.example", "data.example/a", "*", "a b", "data.example:port"):
        with pytest.raises(ConfigurationError, match="is not a host"):
            load({}, {"PARTITA_COPY_FROM_HOST": bad})


def test_old_tokens_can_be_allowed_and_are_warned_about() -> None:
    assert not load({}, {}).allow_old_sas
    config = load({}, {"PARTITA_ALLOW_OLD_SAS": "true"})

    assert config.allow_old_sas
    assert any("before 2015-02-21" in warning for warning in warnings(config))


def test_a_network_bind_without_tls_is_warned_about() -> None:
    own = {"PARTITA_ACCOUNTS": f"mine:{KEY}"}
    tls = {"tls_cert": "cert.pem", "tls_key": "key.pem"}

    check(load({"host": "0.0.0.0"}, own))

    assert any("TLS" in warning for warning in warnings(load({"host": "0.0.0.0"}, own)))
    assert warnings(load({"host": "0.0.0.0", **tls}, own)) == []


def test_loopback_with_full_durability_has_no_warnings() -> None:
    assert warnings(load({"host": ["127.0.0.1", "::1", "localhost"]}, {})) == []


def test_fast_durability_says_what_may_be_lost() -> None:
    assert "power cut" in warnings(load({"durability": "fast"}, {}))[0]


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ConfigurationError, match="certificate and a key"):
        check(load({"tls_cert": "cert.pem"}, {}))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.test", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o660])
def test_a_file_with_keys_that_other_users_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    key_file, inline, tls = tmp_path / "mine.key", tmp_path / "inline.toml", tmp_path / "tls.pem"
    key_file.write_text(KEY)
    inline.write_text(f"[[accounts]]\nname = 'mine'\nkey = '{KEY}'\n")
    tls.write_text("a private key")
    account = {"name": "mine", "key_file": str(key_file)}
    served = {"tls_cert": "cert.pem", "tls_key": str(tls)}
    for file, use in (
        (key_file, lambda: load({"accounts": [account]}, {})),
        (inline, lambda: load({"config": str(inline), "host": "0.0.0.0"}, {})),
        (tls, lambda: check(load(served, {}))),
    ):
        file.chmod(0o600)
        use()
        file.chmod(mode)

        with pytest.raises(ConfigurationError) as refused:
            use()

        assert f"Other users can read or change the file {file}" in refused.value.message
        assert refused.value.hint == (
            f"Run `chmod 600 {file}`; the owner must be the user of the server, or root."
        )
    load({"config": str(inline)}, {})  # for this machine only


def test_a_short_key_is_served_on_this_machine_only() -> None:
    short, enough = (base64.b64encode(b"x" * count).decode() for count in (31, 32))

    check(load({"accounts": f"mine:{short}"}, {}))
    check(load({"accounts": f"mine:{enough}", "host": "0.0.0.0"}, {}))
    with pytest.raises(ConfigurationError) as refused:
        check(
            load(
                {
                    "accounts": f"mine:{enough}:{short}",
                    "host": "0.0.0.0",
                    "allow_development_key_on_network": "true",
                },
                {},
            )
        )

    assert refused.value.message == "A key of account mine is too short for 0.0.0.0."
    assert "at least 32 bytes" in refused.value.hint


# Bearer tokens


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ({"oauth": "development"}, "--tls-cert"),
        ({"oauth": "development", "tls_cert": "c", "tls_key": "k", "host": "0.0.0.0"}, "127.0.0.1"),
        (
            {
                "oauth": "development",
                "tls_cert": "c",
                "tls_key": "k",
                "oauth_issuer": "https://login.test",
            },
            "--oauth-issuer",
        ),
        ({"oauth": "basic"}, ""),
        ({"oauth_jwks": "keys.json"}, "--oauth-issuer"),
        ({"oauth_role": ["x=Storage Blob Data Reader"]}, "--oauth-issuer"),
        ({"oauth_issuer": "http://login.test"}, "--oauth-issuer"),
        ({"oauth_issuer": "https://a.test", "oauth_jwks": "http://a.test/keys"}, "https://"),
        ({"oauth_issuer": "https://a.test", "oauth_role": ["x=Owner"]}, "Storage Blob Data Owner"),
        ({"oauth_issuer": "https://a.test", "oauth_skew_seconds": "3601"}, ""),
    ],
)
def test_settings_of_tokens_that_nothing_verifies_are_refused(
    flags: dict[str, object], remedy: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check(load({**flags, "in_memory": True}, {}))

    assert remedy in refused.value.hint


def test_rules_of_roles_are_read_and_shown_as_they_are_written() -> None:
    rules = "readers=Storage Table Data Reader,senders=StorageQueueDataMessageSender@orders"
    environ = {"PARTITA_OAUTH_ROLE": rules, "PARTITA_OAUTH_ISSUER": "https://login.test"}

    config = load({"oauth_jwks": "keys.json"}, environ)

    check(config)
    assert config.oauth_jwks == Path("keys.json")
    assert config.shown()["oauth_role"] == [
        "readers=Storage Table Data Reader",
        "senders=Storage Queue Data Message Sender@orders",
    ]
