"""`partita serve`: build the server from a Config, print where it is, run until a signal.

`build` is the object graph of the whole server, written out with constructors; no other module
knows how the parts fit. What is printed at the start is a function of facts, for tests.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import msgspec

import partita
from partita.cli.config import Config, check, warnings
from partita.cli.local_store import opened_place
from partita.cli.reload import ServeFile, reload, serve_file
from partita.clock import SystemClock
from partita.errors import PartitaError
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Accounts
from partita.service.accounts.respond import Front
from partita.service.backup.scrubbing import Scrubber
from partita.service.hosting.opening import open_accounts
from partita.service.hosting.server import Server, Servers, TlsFiles, run, serve_until_stopped
from partita.service.hosting.services import KINDS, ServiceKind
from partita.service.http.connections import ByteBudget
from partita.service.http.message_bytes import HttpLimits, LoggedRequest
from partita.ticks import Clock

_DEVELOPMENT_ENDPOINTS = {
    kind.name: f"http://127.0.0.1:{kind.port}/{DEVELOPMENT_ACCOUNT}" for kind in KINDS
}
"""The endpoints that `UseDevelopmentStorage=true` means."""
OPEN_FILES_MAX = 65536
"""The limit that is requested: the connections of three services, and a file for many of them."""
CONNECTIONS_SHARE = 0.8
"""The part of the open files that connections may have: blobs, databases and logs need the rest."""
_RESERVED = HttpLimits().reserved_connections_max
_LABELS = {"blobs": "Blob", "queues": "Queue", "tables": "Table"}
"""The names of the services in connection strings."""
_DURABILITY = {
    "full": "durability full: a success answer is on disk",
    "fast": "durability fast: a power cut may lose the last writes",
    "memory": "in memory: nothing is kept after a stop",
}


logger = logging.getLogger("partita.serve")


class Start(msgspec.Struct, frozen=True):
    """The facts of a start; no key except the well-known one."""

    version: str
    blob_endpoint: str | None
    queue_endpoint: str | None
    table_endpoint: str | None
    connection_string: str
    addresses: list[tuple[str, int]]
    accounts: list[str]
    store: str
    """sqlite, postgres (in the folder), or the URL of a database without its login."""
    path: str | None
    durability: str


class Built(msgspec.Struct, frozen=True):
    """A server that is ready to start, and the events that stop it."""

    servers: dict[str, Server]
    """By the name of the service."""
    accounts: Accounts
    stopping: asyncio.Event
    failed: asyncio.Event
    """Set by a store that failed to sync: the process must end and recover by a restart."""


def serve(config: Config, *, as_json: bool, read: Callable[[], Config]) -> int:
    """Serve until a signal stops it; return the exit status. `read` reads the settings again."""
    check(config)
    logging.basicConfig(stream=sys.stderr, format="partita: %(levelname)s: %(message)s")
    if config.request_log:
        logging.getLogger("partita").setLevel(logging.INFO)  # it says why a request was refused
    said = warnings(config)
    fitting = connections_that_fit(raise_open_files(), len(config.ports))
    if fitting < config.connections_max:
        said.append(
            f"the limit of open files leaves {fitting} connections for each service instead of"
            f" {config.connections_max}: raise it (ulimit -n), or lower --connections-max."
        )
    for warning in said:
        print("partita: warning:", warning, file=sys.stderr)
    connections_max = min(fitting, config.connections_max)
    return run(lambda: _serve(config, connections_max, read, as_json=as_json))


def raise_open_files() -> int:
    """Raise the limit of open files, whose default is too low; return how many may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft == resource.RLIM_INFINITY:
        return OPEN_FILES_MAX
    if soft >= wanted:
        return soft
    with contextlib.suppress(OSError, ValueError):  # the present limit remains
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def connections_that_fit(open_files: int, services: int) -> int:
    """Return how many connections each service can have with this limit of open files.

    Without a free descriptor no connection could be accepted, the health check's neither.
    """
    return max(1, int(open_files * CONNECTIONS_SHARE) // services - _RESERVED)


async def _serve(
    config: Config, connections_max: int, read: Callable[[], Config], *, as_json: bool
) -> int:
    async with build(config, connections_max) as built:
        servers = Servers(list(built.servers.values()))
        await servers.start()
        with serve_file(config.folder) as found:
            has_terminal = _has_terminal()

            def hung_up() -> None:
                if has_terminal and not _has_terminal():
                    built.stopping.set()  # the terminal was closed
                else:
                    _reload(config, read, built, found)

            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)
            running = asyncio.create_task(serve_until_stopped(servers, built.stopping))
            await asyncio.sleep(0)  # signals are handled before the start is printed
            start = start_of(config, {name: server.port for name, server in built.servers.items()})
            print(as_line(start) if as_json else as_text(start), flush=True)
            status = await running
    return 1 if built.failed.is_set() else status


def _has_terminal() -> bool:
    """Return whether the process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _reload(
    config: Config, read: Callable[[], Config], built: Built, found: ServeFile | None
) -> None:
    error, restart = "", []
    try:
        restart = reload(config, read, built.accounts, built.servers)
    except PartitaError as refused:
        error = f"{refused.message} {refused.hint}".strip()
    if error:
        logger.warning("Nothing was reloaded. %s", error)
    else:
        logger.info("The keys and certificates were reloaded.")
    if restart:
        logger.warning("Restart the server to apply: %s", ", ".join(restart))
    if found is not None:
        found.note(error, restart)


@contextlib.asynccontextmanager
async def build(config: Config, connections_max: int | None = None) -> AsyncIterator[Built]:
    """Build the whole server; close it at the end.

    An account has one store for all services, a service one front and one server for all accounts.
    """
    clock = SystemClock()
    stopping, failed = asyncio.Event(), asyncio.Event()

    def stop(_error: BaseException) -> None:
        failed.set()
        stopping.set()

    async with contextlib.AsyncExitStack() as opened:
        place = await opened.enter_async_context(opened_place(config))
        keys = {each.name: each.keys for each in config.accounts}
        accounts = await opened.enter_async_context(
            open_accounts(keys, place, clock, enforces_targets=config.enforce_targets)
        )
        for account in accounts:
            account.backing.on_failure = stop
            if config.scrub_days and isinstance(place.where, Path):
                folder = place.where / account.name
                scrubber = Scrubber(folder, account.blobs.store, config.scrub_days, clock)
                opened.push_async_callback(scrubber.close)
                scrubber.start()
        known = Accounts(accounts, clock, allows_old_sas=config.allow_old_sas)
        budget = ByteBudget(HttpLimits().unauthenticated_bytes_max)
        servers = {
            kind.name: _server_of(kind, config, known, clock, budget, connections_max)
            for kind in KINDS
            if kind.name in config.ports
        }
        yield Built(servers, known, stopping, failed)


def _server_of(
    kind: ServiceKind,
    config: Config,
    accounts: Accounts,
    clock: Clock,
    budget: ByteBudget,
    connections_max: int | None,
) -> Server:
    front = Front(
        kind.build(accounts, clock), accounts, clock, allowed_hosts=frozenset(config.allowed_host)
    )
    return Server(
        front.respond,
        hosts=config.host,
        port=config.ports[kind.name],
        limits=msgspec.structs.replace(
            kind.limits,
            connections_max=connections_max or config.connections_max,
            connections_per_peer_max=config.connections_per_peer_max,
        ),
        tls=_tls_of(config),
        clock=clock,
        log=_log_request if config.request_log else None,
        why_not_ready=lambda: next(
            filter(None, (account.backing.why_not_ready for account in accounts.values())), ""
        ),
        dialect=kind.dialect,
        budget=budget,
    )


def _tls_of(config: Config) -> TlsFiles | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    return TlsFiles(config.tls_cert, config.tls_key)


def _log_request(done: LoggedRequest) -> None:
    target = f"{done.path}?{done.query}" if done.query else done.path
    with contextlib.suppress(OSError):  # the terminal was closed, which sends SIGHUP
        sys.stderr.write(
            f"{done.peer} {done.method} {target} {done.status} {done.duration_seconds * 1000:.1f}ms"
            f" {done.body_bytes}B {done.request_id}\n"
        )


def start_of(config: Config, ports: Mapping[str, int]) -> Start:
    """Return where and how the first account is reached; `ports` by the name of the service."""
    account = config.accounts[0]
    scheme = "https" if config.tls_cert else "http"
    host = _reachable(config.host[0])
    endpoints = {name: f"{scheme}://{host}:{port}/{account.name}" for name, port in ports.items()}
    if account.has_development_key and endpoints.items() <= _DEVELOPMENT_ENDPOINTS.items():
        connection_string = "UseDevelopmentStorage=true"
    else:
        key = DEVELOPMENT_KEY if account.has_development_key else "<your key>"
        parts = [
            f"DefaultEndpointsProtocol={scheme};AccountName={account.name};AccountKey={key}",
            *(f"{_LABELS[name]}Endpoint={endpoint}" for name, endpoint in endpoints.items()),
        ]
        connection_string = ";".join(parts)
    return Start(
        version=partita.__version__,
        blob_endpoint=endpoints.get("blobs"),
        queue_endpoint=endpoints.get("queues"),
        table_endpoint=endpoints.get("tables"),
        connection_string=connection_string,
        addresses=[(host, port) for port in ports.values() for host in config.host],
        accounts=[account.name for account in config.accounts],
        store=config.store.shown,
        path=None if config.folder is None else str(config.folder.absolute()),
        durability="memory" if config.in_memory else config.durability.value,
    )


def as_line(start: Start) -> str:
    """Return one line of JSON, for programs that start a server."""
    return msgspec.json.encode(start).decode()


def as_text(start: Start) -> str:
    """Return the text for people: the endpoints, the data, what to type next."""
    listening = ", ".join(f"{_bracketed(host)}:{port}" for host, port in start.addresses)
    others = ", ".join(start.accounts[1:])
    endpoints = {
        "blobs": start.blob_endpoint,
        "queues": start.queue_endpoint,
        "tables": start.table_endpoint,
    }
    served = {name: endpoint for name, endpoint in endpoints.items() if endpoint}
    lines = [
        f"Partita {start.version} serves {_listed(list(served))}",
        *(f"  {name:<18} {endpoint}" for name, endpoint in served.items()),
        f"  listening on       {listening}",
        f"  data               {_place_of(start)} ({_DURABILITY[start.durability]})",
        f"  connection string  {start.connection_string}",
        *([f"  further accounts   {others}"] if others else []),
        "",
        *(f"  {line}" for line in _first_steps(list(served)[-1], start.connection_string)),
        "",
        "  Ctrl-C stops it.",
    ]
    return "\n".join(lines)


def _place_of(start: Start) -> str:
    """Return where the data is."""
    match start.store:
        case "sqlite":
            return start.path or "-"
        case "postgres":
            return f"PostgreSQL in {start.path}"
        case _:
            return start.store


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _first_steps(served: str, connection_string: str) -> list[str]:
    """Return lines of Python that use a service."""
    match served:
        case "tables":
            package, client = "data.tables", "TableServiceClient"
            steps = [
                'staff = service.create_table_if_not_exists("Staff")',
                'staff.upsert_entity({"PartitionKey": "Sales", "RowKey": "00010"})',
            ]
        case "queues":
            package, client = "storage.queue", "QueueServiceClient"
            steps = ['work = service.create_queue("work")', 'work.send_message("archive 00010")']
        case _:
            package, client = "storage.blob", "BlobServiceClient"
            steps = [
                'photos = service.create_container("photos")',
                'photos.upload_blob("staff/00010.png", b"...")',
            ]
    connecting = f'service = {client}.from_connection_string("{connection_string}")'
    return [f"from azure.{package} import {client}", connecting, *steps]


def _reachable(host: str) -> str:
    """Return the address that clients use for a bound one: 0.0.0.0 is not such an address."""
    if host == "localhost":
        return "127.0.0.1"  # SDKs treat localhost as Cosmos DB
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return _bracketed(host)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
