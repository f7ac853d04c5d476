"""The settings of a server: flags, then PARTITA_* variables, a TOML file, defaults.

Each setting has one name: `table_port` in the file, PARTITA_TABLE_PORT, `--table-port`. A Config
remembers where each value came from. Keys of accounts are never printed.
"""

import base64
import binascii
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from partita.addresses import is_loopback, is_postgresql, without_secrets
from partita.errors import ConfigurationError
from partita.scaleout.connections.location import Location
from partita.service.accounts.account import (
    DEVELOPMENT_ACCOUNT,
    DEVELOPMENT_KEY,
    check_account_name,
)
from partita.service.accounts.seeding import NamedPlace, parse_place
from partita.service.auth.bearer import (
    AUDIENCE,
    ROLES_CLAIM,
    SKEW_SECONDS,
    SKEW_SECONDS_MAX,
    is_fit_for_keys,
)
from partita.service.auth.roles import RoleRule, parse_role_rule
from partita.service.hosting.event_sender import receiver_of
from partita.service.http.message_bytes import HttpLimits
from partita.storage.durability import Durability

BLOB_PORT, QUEUE_PORT, TABLE_PORT = 10000, 10001, 10002
"""The ports that clients use by default."""
CONSOLE_PORT = 10003
SCRUB_DAYS, SCRUB_DAYS_MAX = 7, 365
"""The days in which everything is read once, and the most that can be set."""
LOG_FORMATS = ("text", "json")
OAUTH_MODES = ("off", "development")
SLOW_MS, SLOW_MS_MAX = 100, 3_600_000
"""A request that takes longer is logged as slow, and the most that can be set."""
OTEL_ONE_IN_MAX = 1_000_000_000
CONFIG_FILE = Path("partita.toml")
CONNECTIONS_MAX_MAX = 1_000_000
"""The largest limit of connections: above it, the limit of open files is always lower."""
KEY_BYTES_MIN = 32
"""The shortest key that is served beyond loopback: as long as the signatures that it makes."""
MAKE_KEY = "`openssl rand -base64 64 | tr -d '\\n'`"
_COPY_HOST = re.compile(r"(?:[a-z0-9._-]+|\[[0-9a-f:.]+\]|[0-9a-f:.]+)(?::[0-9]{1,5})?")


class Address(msgspec.Struct, frozen=True):
    """A URL, or a word, whose login and parameters are not printed."""

    text: str

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def shown(self) -> str:
        return without_secrets(self.text)


SQLITE, POSTGRES = Address("sqlite"), Address("postgres")
BLOB_STORE_SCHEMES = ("file:///", "s3://", "az://", "gs://")


class AccountKeys(msgspec.Struct, frozen=True):
    """An account and its keys in base64; every key is valid for signing."""

    name: str
    keys: tuple[str, ...]

    @property
    def has_development_key(self) -> bool:
        return DEVELOPMENT_KEY in self.keys

    @property
    def has_short_key(self) -> bool:
        return any(len(base64.b64decode(key)) < KEY_BYTES_MIN for key in self.keys)

    def __repr__(self) -> str:
        return f"AccountKeys({self.shown!r})"

    @property
    def shown(self) -> str:
        """The account without its secrets."""
        if self.keys == (DEVELOPMENT_KEY,):
            return f"{self.name} (well-known key)"
        return f"{self.name} ({len(self.keys)} key{'s' if len(self.keys) > 1 else ''})"


class Config(msgspec.Struct, frozen=True):
    """All settings of `partita serve`, and where each value came from (`sources`)."""

    path: Path
    in_memory: bool
    store: Address
    """SQLITE, POSTGRES (which needs `local`), or the URL of a PostgreSQL database."""
    local: bool
    blob_store: Address | None
    clock_check: bool
    host: tuple[str, ...]
    blobs: bool
    queues: bool
    tables: bool
    blob_port: int
    queue_port: int
    table_port: int
    durability: Durability
    accounts: tuple[AccountKeys, ...]
    allowed_host: tuple[str, ...]
    allow_development_key_on_network: bool
    allow_old_sas: bool
    copy_from_host: tuple[str, ...]
    """Hosts, or hosts with a port, from which blobs may be copied."""
    allow_empty: bool
    create: tuple[NamedPlace, ...]
    seed: Path | None
    blob_events: Address | None
    """Where notices of changed blobs are sent to; None: nowhere."""
    oauth: str
    """`off` or `development`: then tokens of every issuer are accepted."""
    oauth_issuer: str | None
    oauth_audience: tuple[str, ...]
    oauth_jwks: Path | str | None
    """A file or a URL; None: the issuer tells where its keys are."""
    oauth_roles_claim: str
    oauth_role: tuple[RoleRule, ...]
    oauth_skew_seconds: int
    tls_cert: Path | None
    tls_key: Path | None
    connections_max: int
    connections_per_peer_max: int
    request_log: bool
    access_log: Path | None
    """`-` is standard error."""
    log_format: str
    slow_ms: int
    otel: bool
    otel_one_in: int
    """Of the requests whose client does not decide, one in so many is sampled; 0: none."""
    metrics_port: int | None
    """The port of the operations endpoint; None: there is none."""
    metrics_host: str
    metrics_token_file: Path | None
    enforce_targets: bool
    scrub_days: int
    console: bool
    console_host: str
    console_port: int
    console_read_only: bool
    console_token_file: Path | None
    heat: bool
    sources: dict[str, str]

    @property
    def ports(self) -> dict[str, int]:
        """The port of each service that is turned on, by the name of the service."""
        ports = {"blobs": self.blob_port, "queues": self.queue_port, "tables": self.table_port}
        return {name: port for name, port in ports.items() if getattr(self, name)}

    @property
    def is_on_postgresql(self) -> bool:
        return self.store != SQLITE

    @property
    def folder(self) -> Path | None:
        """The folder of the data; None in memory and on a database elsewhere."""
        return None if self.in_memory or is_postgresql(self.store.text) else self.path

    @property
    def is_on_network(self) -> bool:
        """Whether another machine could reach one of the sockets."""
        return not all(is_loopback(host) for host in self.host)

    @property
    def has_metrics_on_network(self) -> bool:
        """Whether another machine could reach the operations endpoint."""
        return self.metrics_port is not None and not is_loopback(self.metrics_host)

    @property
    def has_development_key(self) -> bool:
        return any(account.has_development_key for account in self.accounts)

    def shown(self) -> dict[str, object]:
        """Return the settings without secrets, by name."""
        return {name: _shown(getattr(self, name)) for name in SETTINGS}


def load(flags: Mapping[str, object], environ: Mapping[str, str]) -> Config:
    """Read all sources; `flags` holds only what was given on the command line."""
    file, from_file = _read_file(flags.get("config") or environ.get("PARTITA_CONFIG"))
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, (read, default) in SETTINGS.items():
        variable = f"PARTITA_{name.upper()}"
        if name in flags:
            flag = "account" if name == "accounts" else name.replace("_", "-")
            raw, source, folder = flags[name], f"flag --{flag}", Path()
        elif variable in environ:
            raw, source, folder = environ[variable], f"variable {variable}", Path()
        elif name in from_file:
            raw, source, folder = from_file[name], f"file {file}", file.parent
        else:
            values[name], sources[name] = default, "default"
            continue
        sources[name] = source
        try:
            values[name] = read(raw, folder)
        except ConfigurationError as error:
            error.message = f"{name} ({source}): {error.message}"
            raise
    config = Config(**values, sources=sources)
    if config.is_on_network and _contains_secrets(from_file):
        refuse_if_shared(file, file.stat())
    return config


def check(config: Config) -> None:
    """Refuse settings that must not be served."""
    _check_store(config)
    if (config.tls_cert is None) != (config.tls_key is None):
        raise _invalid("TLS needs a certificate and a key.", hint="Give --tls-cert and --tls-key.")
    if not config.ports:
        raise _invalid("Every service is turned off.", hint="Leave out one of the --no-... flags.")
    chosen = [port for port in (*config.ports.values(), config.metrics_port) if port]
    if len(set(chosen)) != len(chosen):
        raise _invalid(
            "Two services have the same port.",
            hint="Give --blob-port, --queue-port, --table-port and --metrics-port different"
            " numbers.",
        )
    if config.tls_key is not None and config.tls_key.exists():
        refuse_if_shared(config.tls_key, config.tls_key.stat())
    if config.console:
        _check_console(config)
    _check_oauth(config)
    if not config.is_on_network:
        return
    short = [account.name for account in config.accounts if account.has_short_key]
    if short:
        message = f"A key of account {short[0]} is too short for {', '.join(config.host)}."
        hint = f"Give a key of at least {KEY_BYTES_MIN} bytes: {MAKE_KEY}."
        raise _invalid(message, hint=hint)
    if config.has_development_key and not config.allow_development_key_on_network:
        raise ConfigurationError(
            "Configuration",
            f"The well-known development key must not be served on {', '.join(config.host)}:"
            " everyone knows it.",
            hint="Give an account of your own (--account NAME --account-key-file FILE), or bind"
            " to 127.0.0.1, or accept the risk with --allow-development-key-on-network.",
        )


def _check_oauth(config: Config) -> None:
    """Refuse tokens that nothing verifies, except in development on this machine."""
    if config.oauth == "development" and (config.is_on_network or config.tls_cert is None):
        raise _invalid(
            "--oauth development accepts the tokens of every issuer: it is for https on loopback.",
            hint="Give --tls-cert and --tls-key (made by `partita certificate make`) and bind to"
            " 127.0.0.1, or give --oauth-issuer.",
        )
    if config.oauth == "development" and config.oauth_issuer is not None:
        raise _invalid(
            "--oauth development accepts every issuer, and one is set.",
            hint="Leave out --oauth development or --oauth-issuer.",
        )
    if config.oauth_issuer is None and (config.oauth_jwks is not None or config.oauth_role):
        raise _invalid("The issuer of the tokens is missing.", hint="Give --oauth-issuer URL.")


def _check_console(config: Config) -> None:
    """Refuse a console that other machines could read along with, or whose key is public."""
    if config.console_port and config.console_port in config.ports.values():
        raise _invalid("The console and a service have the same port.", hint="Give --console-port.")
    if is_loopback(config.console_host):
        return
    if config.tls_cert is None:
        message = f"The console must not be served on {config.console_host} without TLS."
        hint = "Give --tls-cert and --tls-key, or serve it on 127.0.0.1 (--console-host)."
        raise _invalid(message, hint=hint)
    if config.has_development_key:
        message = f"The console must not serve the well-known account on {config.console_host}."
        raise _invalid(
            message,
            hint="Give an account of your own (--account NAME --account-key-file FILE), or serve it"
            " on 127.0.0.1 (--console-host).",
        )


def _check_store(config: Config) -> None:
    """Refuse a store that is not complete, and flags that do not apply to it."""
    has_url = is_postgresql(config.store.text)
    if config.store == POSTGRES and not config.local:
        raise _invalid(
            "The address of the PostgreSQL database is missing.",
            hint="Give --store postgresql://USER@HOST/DATABASE, or add --local to start one in the"
            " data folder.",
        )
    if config.local and config.store != POSTGRES:
        raise _invalid(
            "--local starts a PostgreSQL in the data folder, and another store is set.",
            hint="Give --store postgres together with --local, or leave --local out.",
        )
    if config.is_on_postgresql and config.in_memory:
        raise _invalid(
            "A server keeps its accounts in memory or on PostgreSQL, not both.",
            hint="Leave out --in-memory or --store.",
        )
    for name, (is_used, hint) in {
        "path": (not has_url, "Leave it out: the data is in the database."),
        "scrub_days": (
            not config.is_on_postgresql,
            "Leave it out: PostgreSQL verifies its pages itself (data_checksums).",
        ),
        "blob_store": (config.is_on_postgresql, "Leave it out: the data folder has the blobs."),
        "clock_check": (
            config.is_on_postgresql,
            "Leave it out: only front ends of one database compare their clocks.",
        ),
    }.items():
        if not is_used and config.sources[name].startswith("flag"):
            store = "PostgreSQL" if config.is_on_postgresql else "SQLite"
            message = f"--{name.replace('_', '-')} does not apply to {store} as the store."
            raise _invalid(message, hint=hint)


def warnings(config: Config) -> list[str]:
    """Return the warnings that are printed at every start."""
    said = []
    if config.is_on_network and config.has_development_key:
        said.append(
            "the well-known development key is accepted from the network:"
            " everyone who reaches this port can read and change everything."
        )
    if config.is_on_network and config.tls_cert is None:
        said.append(
            "requests are sent over the network without TLS: others can read and repeat them."
            " Give --tls-cert and --tls-key, or put a TLS proxy in front."
        )
    if config.has_metrics_on_network and config.tls_cert is None:
        said.append(
            "the token of the operations endpoint is sent over the network without TLS: others can"
            " read it. Give --tls-cert and --tls-key, or bind --metrics-host to 127.0.0.1."
        )
    if config.allow_old_sas:
        said.append(
            "service SAS of versions before 2015-02-21 are accepted: one of a queue is also valid"
            " for a container with the same name, and one of a container for a queue."
        )
    if config.oauth_issuer is not None and config.is_on_network and config.tls_cert is None:
        said.append(
            "bearer tokens from other machines are refused, because they would be sent without TLS:"
            " give --tls-cert and --tls-key."
        )
    if config.allow_empty:
        said.append(
            "every account can be emptied by one request that is signed with its key: use"
            " --allow-empty for tests only."
        )
    if config.durability is Durability.FAST and not config.in_memory:
        said.append(
            "durability is fast: a power cut or a crash of the operating system may lose the last"
            " acknowledged writes."
        )
    if config.enforce_targets and config.tables:
        said.append(
            "the targets of the cloud are enforced: above 2,000 entities per second in a partition,"
            " or 20,000 in an account, tables answer 503."
        )
    return said


def _read_file(named: object) -> tuple[Path, dict[str, object]]:
    path = Path(str(named)) if named else CONFIG_FILE
    if not named and not path.exists():
        return path, {}
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        message = f"The configuration file {path} cannot be read: {error.strerror}."
        raise _invalid(message) from error
    except ValueError as error:
        message = f"The configuration file {path} is not TOML: {error}."
        raise _invalid(message) from error
    unknown = sorted(values.keys() - SETTINGS.keys())
    if unknown:
        message = f"The configuration file {path} has unknown settings: {', '.join(unknown)}."
        raise _invalid(message, hint=f"Use {', '.join(SETTINGS)}.")
    return path, values


def _path(raw: object, folder: Path) -> Path:
    return folder / Path(_text(raw)).expanduser()


def _account_folder(raw: object, folder: Path) -> Path:
    """Read the data folder; a URL would be taken for the name of a new folder."""
    if isinstance(raw, str) and is_postgresql(raw):
        raise _invalid(
            "The data folder cannot be a PostgreSQL database.",
            hint="Give --store postgresql://USER@HOST/DATABASE instead of --path.",
        )
    return _path(raw, folder)


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise _invalid("A text is required.")
    return raw.strip()


def _host(raw: object, _folder: Path) -> str:
    return _text(raw).removeprefix("[").removesuffix("]")


def _store(raw: object, _folder: Path) -> Address:
    """Read where the accounts are; the text is not repeated in an error, it may have a password."""
    text = _text(raw)
    if text not in (SQLITE.text, POSTGRES.text) and not is_postgresql(text):
        raise _invalid(
            "A store is sqlite, postgres, or a URL that begins with postgresql://.",
            hint="Give --store postgresql://USER@HOST/DATABASE.",
        )
    if is_postgresql(text):
        Location.parse(text)
    return Address(text)


def _blob_store(raw: object, _folder: Path) -> Address:
    text = _text(raw)
    if not text.startswith(BLOB_STORE_SCHEMES):
        schemes = ", ".join(BLOB_STORE_SCHEMES)
        message = f"An object store is a URL that begins with one of: {schemes}."
        raise _invalid(message, hint="Give --blob-store file:///var/lib/partita/blobs.")
    return Address(text)


def _texts(raw: object, _folder: Path) -> tuple[str, ...]:
    """Read a list, or one text with commas."""
    parts = raw if isinstance(raw, list) else _text(raw).split(",")
    return tuple(_text(part).removeprefix("[").removesuffix("]") for part in parts)


def _copy_hosts(raw: object, _folder: Path) -> tuple[str, ...]:
    """Read hosts, each with a port or without."""
    parts = raw if isinstance(raw, list) else _text(raw).split(",")
    hosts = tuple(_text(part).lower() for part in parts)
    for host in hosts:
        if not _COPY_HOST.fullmatch(host):
            message = f"{host[:64]!r} is not a host from which blobs can be copied."
            raise _invalid(
                message,
                hint="Give HOST or HOST:PORT, such as data.example.org or [2001:db8::1]:8080.",
            )
    return hosts


def _port(raw: object, _folder: Path) -> int:
    try:
        port = int(str(raw))
    except ValueError:
        port = -1
    if not 0 <= port <= 65_535:
        raise _invalid("A port is a number from 0 (any free one) to 65535.")
    return port


def _days(raw: object, _folder: Path) -> int:
    text = str(raw)
    if not (text.isascii() and text.isdigit()) or int(text) > SCRUB_DAYS_MAX:
        message = f"A whole number of days from 0 (never) to {SCRUB_DAYS_MAX} is required."
        raise _invalid(message)
    return int(text)


def _milliseconds(raw: object, _folder: Path) -> int:
    text = str(raw)
    if not (text.isascii() and text.isdigit()) or int(text) > SLOW_MS_MAX:
        message = f"A whole number of milliseconds from 0 (never) to {SLOW_MS_MAX:,} is required."
        raise _invalid(message)
    return int(text)


def _one_in(raw: object, _folder: Path) -> int:
    text = str(raw)
    if not (text.isascii() and text.isdigit()) or int(text) > OTEL_ONE_IN_MAX:
        message = f"A whole number from 0 (none) to {OTEL_ONE_IN_MAX:,} is required."
        raise _invalid(message)
    return int(text)


def _blob_events(raw: object, _folder: Path) -> Address:
    address = Address(_text(raw))
    receiver_of(address.text)  # raises if it names no receiver
    return address


def _oauth(raw: object, _folder: Path) -> str:
    if raw not in OAUTH_MODES:
        message = f"OAuth is one of: {', '.join(OAUTH_MODES)}."
        raise _invalid(message)
    return str(raw)


def _issuer(raw: object, _folder: Path) -> str:
    text = _text(raw)
    if not is_fit_for_keys(text):
        raise _invalid(
            "An issuer is a URL that begins with https://.",
            hint="Give --oauth-issuer exactly as the claim iss of the tokens has it.",
        )
    return text


def _jwks(raw: object, folder: Path) -> Path | str:
    text = _text(raw)
    if "://" not in text:
        return _path(text, folder)
    if not is_fit_for_keys(text):
        raise _invalid(
            "The keys of an issuer are read by https, or by http from this machine.",
            hint="Give --oauth-jwks a URL that begins with https://, or a file.",
        )
    return text


def _role_rules(raw: object, folder: Path) -> tuple[RoleRule, ...]:
    return tuple(map(parse_role_rule, _texts(raw, folder)))


def _skew(raw: object, _folder: Path) -> int:
    text = str(raw)
    if not (text.isascii() and text.isdigit()) or int(text) > SKEW_SECONDS_MAX:
        message = f"A whole number of seconds from 0 to {SKEW_SECONDS_MAX:,} is required."
        raise _invalid(message)
    return int(text)


def _log_file(raw: object, folder: Path) -> Path:
    return Path("-") if raw == "-" else _path(raw, folder)


def _log_format(raw: object, _folder: Path) -> str:
    if raw not in LOG_FORMATS:
        message = f"A log format is {' or '.join(LOG_FORMATS)}."
        raise _invalid(message)
    return str(raw)


def _count(raw: object, _folder: Path) -> int:
    try:
        count = int(str(raw))
    except ValueError:
        count = 0
    if not 1 <= count <= CONNECTIONS_MAX_MAX:
        message = f"A number from 1 to {CONNECTIONS_MAX_MAX:,} is required."
        raise _invalid(message)
    return count


def _truth(raw: object, _folder: Path) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    found = words.get(str(raw).lower())
    if found is None:
        raise _invalid("True or false is required.")
    return found


def _durability(raw: object, _folder: Path) -> Durability:
    try:
        return Durability(raw)
    except ValueError:
        raise _invalid("Durability is full or fast.") from None


def _accounts(raw: object, folder: Path) -> tuple[AccountKeys, ...]:
    """Read `name:key1:key2;name2:key` or a list of tables with name and key, keys or key_file."""
    if isinstance(raw, str):
        parts = [part.split(":") for part in raw.split(";") if part]
        accounts = [_account(name, keys) for name, *keys in parts]
    elif isinstance(raw, list):
        accounts = [_account_of_table(table, folder) for table in raw]
    else:
        accounts = []
    if not accounts:
        raise _invalid("At least one account is required.", hint="Write name:key;name:key.")
    if len({account.name for account in accounts}) != len(accounts):
        raise _invalid("An account is named twice.")
    return tuple(accounts)


def _contains_secrets(file: Mapping[str, object]) -> bool:
    """Return whether a configuration file has keys that are not in key files, or a login."""
    if any("@" in str(file.get(name, "")) for name in ("store", "blob_store")):
        return True
    accounts = file.get("accounts")
    tables = accounts if isinstance(accounts, list) else []
    return isinstance(accounts, str) or any(
        isinstance(table, dict) and ("key" in table or "keys" in table) for table in tables
    )


def _account_of_table(table: object, folder: Path) -> AccountKeys:
    if not isinstance(table, dict) or not table.keys() <= {"name", "key", "keys", "key_file"}:
        raise _invalid("An account has a name and a key, keys or a key_file.")
    keys = [*table.get("keys", []), *([table["key"]] if "key" in table else [])]
    if "key_file" in table:
        keys += _read_keys(_path(table["key_file"], folder))
    return _account(table.get("name"), keys)


def _read_keys(path: Path) -> list[str]:
    """Read a key file: one key per line."""
    try:
        with path.open(encoding="utf-8") as file:
            refuse_if_shared(path, os.fstat(file.fileno()))
            return file.read().split()
    except (OSError, ValueError) as error:
        message = f"The key file {path} cannot be read."
        raise _invalid(message) from error


def refuse_if_shared(path: Path, facts: os.stat_result) -> None:
    """Raise if other users can read a file with keys; the rule of PostgreSQL for its key file."""
    user = os.geteuid()
    # A group may read a file of root, which gives it to the user of the server in this way.
    allowed = 0o700 if facts.st_uid == user and user != 0 else 0o740
    is_foreign = facts.st_uid not in (0, user) and user != 0
    if is_foreign or facts.st_mode & 0o777 & ~allowed:
        message = f"Other users can read or change the file {path}, which contains a key."
        hint = f"Run `chmod 600 {path}`; the owner must be the user of the server, or root."
        raise _invalid(message, hint=hint)


def _account(name: object, keys: list[str]) -> AccountKeys:
    checked = check_account_name(name if isinstance(name, str) else "")
    if not keys or not all(_is_key(key) for key in keys):
        message = f"A key of account {checked} is missing or is not base64."
        raise _invalid(message, hint=f"Make one: {MAKE_KEY}.")
    return AccountKeys(checked, tuple(keys))


def _is_key(key: object) -> bool:
    if not isinstance(key, str):
        return False
    try:
        return len(base64.b64decode(key, validate=True)) > 0
    except (binascii.Error, ValueError):
        return False


def _shown(value: object) -> object:
    match value:
        case Durability():
            return value.value
        case Path():
            return os.fspath(value)
        case AccountKeys() | Address():
            return value.shown
        case RoleRule() | NamedPlace():
            return value.text
        case tuple():
            return [_shown(part) for part in value]
        case _:
            return value


def _invalid(message: str, *, hint: str = "") -> ConfigurationError:
    return ConfigurationError("Configuration", message, hint=hint)


SETTINGS: dict[str, tuple[Callable[[object, Path], object], object]] = {
    "path": (_account_folder, Path("partita-data")),
    "in_memory": (_truth, False),
    "store": (_store, SQLITE),
    "local": (_truth, False),
    "blob_store": (_blob_store, None),
    "clock_check": (_truth, True),
    "host": (_texts, ("127.0.0.1",)),
    "blobs": (_truth, True),
    "queues": (_truth, True),
    "tables": (_truth, True),
    "blob_port": (_port, BLOB_PORT),
    "queue_port": (_port, QUEUE_PORT),
    "table_port": (_port, TABLE_PORT),
    "durability": (_durability, Durability.FULL),
    "accounts": (_accounts, (AccountKeys(DEVELOPMENT_ACCOUNT, (DEVELOPMENT_KEY,)),)),
    "allowed_host": (_texts, ()),
    "allow_development_key_on_network": (_truth, False),
    "allow_old_sas": (_truth, False),
    "copy_from_host": (_copy_hosts, ()),
    "allow_empty": (_truth, False),
    "create": (lambda raw, folder: tuple(map(parse_place, _texts(raw, folder))), ()),
    "seed": (_path, None),
    "blob_events": (_blob_events, None),
    "oauth": (_oauth, "off"),
    "oauth_issuer": (_issuer, None),
    "oauth_audience": (_texts, (AUDIENCE,)),
    "oauth_jwks": (_jwks, None),
    "oauth_roles_claim": (lambda raw, _folder: _text(raw), ROLES_CLAIM),
    "oauth_role": (_role_rules, ()),
    "oauth_skew_seconds": (_skew, SKEW_SECONDS),
    "tls_cert": (_path, None),
    "tls_key": (_path, None),
    "connections_max": (_count, HttpLimits().connections_max),
    "connections_per_peer_max": (_count, HttpLimits().connections_per_peer_max),
    "request_log": (_truth, False),
    "access_log": (_log_file, None),
    "log_format": (_log_format, "text"),
    "slow_ms": (_milliseconds, SLOW_MS),
    "otel": (_truth, False),
    "otel_one_in": (_one_in, 0),
    "metrics_port": (_port, None),
    "metrics_host": (_host, "127.0.0.1"),
    "metrics_token_file": (_path, None),
    "enforce_targets": (_truth, False),
    "scrub_days": (_days, SCRUB_DAYS),
    "console": (_truth, False),
    "console_host": (_host, "127.0.0.1"),
    "console_port": (_port, CONSOLE_PORT),
    "console_read_only": (_truth, False),
    "console_token_file": (_path, None),
    "heat": (_truth, True),
}
"""Every setting: how it is read, relative to which folder, and its default."""
