"""`partita serve`: build the server from a Config, print where it is, run until a signal.

`build` is the object graph of the whole server, written out with constructors; no other module
knows how the parts fit. What is printed at the start is a function of facts, for tests.
"""

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import msgspec

import partita
from partita.addresses import is_loopback
from partita.cli.config import Config, check, warnings
from partita.cli.local_store import local_store_warnings, opened_place
from partita.cli.operations import token_of
from partita.cli.reload import ServeFile, reload, serve_file
from partita.clock import SystemClock
from partita.errors import ConfigurationError, PartitaError
from partita.heat.answers import route as heat_route
from partita.service.accounts.account import (
    DEVELOPMENT_ACCOUNT,
    DEVELOPMENT_KEY,
    Account,
    Accounts,
)
from partita.service.accounts.respond import Front
from partita.service.accounts.seeding import create, seed
from partita.service.analytics.recorder import Recorder
from partita.service.auth.bearer import TokenIssuer
from partita.service.backup.scrubbing import Scrubber
from partita.service.hosting.event_sender import EventSender, receiver_of
from partita.service.hosting.locations import Remote
from partita.service.hosting.opening import open_accounts
from partita.service.hosting.server import Server, Servers, TlsFiles, run, serve_until_stopped
from partita.service.hosting.services import KINDS, ServiceKind
from partita.service.http.connections import ByteBudget
from partita.service.http.message_bytes import HttpLimits
from partita.service.observing.logs import Logs, RequestLogs, SlowLog
from partita.service.observing.meter import ServiceMeter
from partita.service.observing.operations import Operations
from partita.ticks import Clock

_DEVELOPMENT_ENDPOINTS = {
    kind.name: f"http://127.0.0.1:{kind.port}/{DEVELOPMENT_ACCOUNT}" for kind in KINDS
}
"""The endpoints that `UseDevelopmentStorage=true` means."""
OPEN_FILES_MAX = 65536
"""The limit that is requested: the connections of three services, and a file for many of them."""
CONNECTIONS_SHARE = 0.8
"""The part of the open files that connections may have: blobs, databases and logs need the rest."""
OPERATIONS_LIMITS = HttpLimits(connections_max=64, body_bytes_max=64 * 1024)
"""Of the operations endpoint: a few readers, which send no bodies."""
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
    database: str | None = None
    """The URL of the PostgreSQL of --local, for other verbs; it accepts this machine only."""
    metrics_endpoint: str | None = None
    metrics_token: str | None = None
    """Only if it is in no file."""
    console: str | None = None
    """The address of the console, with its token."""


class Built(msgspec.Struct, frozen=True):
    """A server that is ready to start, and the events that stop it."""

    servers: dict[str, Server]
    """By the name of the service."""
    accounts: Accounts
    operations: Operations
    operations_server: Server | None
    operations_token: str
    """Empty if a file has it."""
    local_database: str | None
    """The URL of the PostgreSQL of --local."""
    stopping: asyncio.Event
    failed: asyncio.Event
    """Set by a store that failed to sync: the process must end and recover by a restart."""


def serve(config: Config, *, as_json: bool, read: Callable[[], Config]) -> int:
    """Serve until a signal stops it; return the exit status. `read` reads the settings again."""
    check(config)
    logs = Logs(as_json=config.log_format == "json", access=config.access_log)
    logger.setLevel(logging.INFO)
    if config.request_log or config.access_log:
        logging.getLogger("partita").setLevel(logging.INFO)  # it says why a request was refused
    try:
        return _serve_with(config, logs, read, as_json=as_json)
    finally:
        logs.close()


def _serve_with(config: Config, logs: Logs, read: Callable[[], Config], *, as_json: bool) -> int:
    said = [*warnings(config), *local_store_warnings(config)]
    fitting = connections_that_fit(raise_open_files(), len(config.ports))
    if fitting < config.connections_max:
        said.append(
            f"the limit of open files leaves {fitting} connections for each service instead of"
            f" {config.connections_max}: raise it (ulimit -n), or lower --connections-max."
        )
    for warning in said:
        logger.warning("%s", warning)
    connections_max = min(fitting, config.connections_max)
    return run(lambda: _serve(config, connections_max, logs, read, as_json=as_json))


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
    config: Config,
    connections_max: int,
    logs: Logs,
    read: Callable[[], Config],
    *,
    as_json: bool,
) -> int:
    async with build(config, connections_max, logs) as built:
        all_servers = dict(built.servers)
        if built.operations_server is not None:
            all_servers["operations"] = built.operations_server
        servers = Servers(list(all_servers.values()))
        await servers.start()
        with serve_file(config.folder) as found:
            has_terminal = _has_terminal()

            def hung_up() -> None:
                if has_terminal and not _has_terminal():
                    built.stopping.set()  # the terminal was closed
                else:
                    logs.reopen()
                    _reload(config, read, built, found, all_servers)

            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)
            async with _console(config, built) as console:
                running = asyncio.create_task(serve_until_stopped(servers, built.stopping))
                await asyncio.sleep(0)  # signals are handled before the start is printed
                ports = {name: server.port for name, server in built.servers.items()}
                start = _with_built(start_of(config, ports, console), config, built)
                print(as_line(start) if as_json else as_text(start), flush=True)
                endpoints = (f"{name} on port {each.port}" for name, each in all_servers.items())
                logger.info(
                    "Partita %s started, process %d: %s; data: %s",
                    partita.__version__,
                    os.getpid(),
                    ", ".join(endpoints),
                    _place_of(start),
                )
                status = await running
            logger.info("Stopping: closing the stores.")
    if built.failed.is_set():
        logger.error("Stopped after a failure of the store.")
        return 1
    logger.info("Stopped.")
    return status


@contextlib.asynccontextmanager
async def _console(config: Config, built: Built) -> AsyncIterator[str | None]:
    """Serve the console beside the services if it is turned on; yield its address.

    It is a client of the services on loopback. If they listen with TLS or on other addresses only,
    it gets listeners of its own, because no certificate names 127.0.0.1.
    """
    if not config.console:
        yield None
        return
    from partita.console.hosting import (  # noqa: PLC0415 - only with a console
        ConsoleSettings,
        console_beside,
    )
    from partita.console.token_file import TOKEN_FILE, new_token, read_or_create  # noqa: PLC0415

    clock = SystemClock()
    file = config.console_token_file or (config.folder and config.folder / TOKEN_FILE)
    settings = ConsoleSettings(
        token=read_or_create(file, clock) if file else new_token(clock),
        host=config.console_host,
        port=config.console_port,
        tls=None if is_loopback(config.console_host) else _tls_of(config),
        allowed_hosts=config.allowed_host,
        is_read_only=config.console_read_only,
    )
    async with contextlib.AsyncExitStack() as opened:
        servers = built.servers
        if config.tls_cert or not any(map(_is_reached_on_loopback, config.host)):
            servers = await opened.enter_async_context(_loopback_servers(config, built, clock))
        remotes = [
            Remote(
                {
                    name: f"http://127.0.0.1:{each.port}/{account.name}"
                    for name, each in servers.items()
                },
                account.name,
                account.keys[0],
            )
            for account in config.accounts
        ]
        yield await opened.enter_async_context(
            console_beside(remotes, settings, built.operations.ask)
        )


@contextlib.asynccontextmanager
async def _loopback_servers(
    config: Config, built: Built, clock: Clock
) -> AsyncIterator[dict[str, Server]]:
    inner = msgspec.structs.replace(
        config,
        host=("127.0.0.1",),
        tls_cert=None,
        tls_key=None,
        blob_port=0,
        queue_port=0,
        table_port=0,
    )
    budget = ByteBudget(HttpLimits().unauthenticated_bytes_max)
    servers = {
        kind.name: _server_of(
            *(kind, inner, built.accounts, clock, budget, None),
            meter=built.operations.meters[kind.name],
        )
        for kind in KINDS
        if kind.name in built.servers
    }
    together = Servers(list(servers.values()))
    await together.start()
    try:
        yield servers
    finally:
        await together.stop(0)


def _is_reached_on_loopback(host: str) -> bool:
    return _reachable(host) == "127.0.0.1"


def _has_terminal() -> bool:
    """Return whether the process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _reload(
    config: Config,
    read: Callable[[], Config],
    built: Built,
    found: ServeFile | None,
    servers: Mapping[str, Server],
) -> None:
    error, restart = "", []
    with_tls = {name: server for name, server in servers.items() if server.scheme == "https"}
    try:
        restart = reload(config, read, built.accounts, with_tls)
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
async def build(
    config: Config, connections_max: int | None = None, logs: Logs | None = None
) -> AsyncIterator[Built]:
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
        known = Accounts(
            accounts, clock, allows_old_sas=config.allow_old_sas, copy_hosts=config.copy_from_host
        )
        known.allows_empty = config.allow_empty
        known.issuer = await _issuer_of(config, clock)
        await _prepare(accounts[0], config)
        sender = await opened.enter_async_context(_event_sender(config, known, clock))
        budget = ByteBudget(HttpLimits().unauthenticated_bytes_max)
        meters = {kind.name: ServiceMeter(kind.name) for kind in KINDS if kind.name in config.ports}
        servers = {
            kind.name: _server_of(
                kind, config, known, clock, budget, connections_max, meter=meters[kind.name]
            )
            for kind in KINDS
            if kind.name in config.ports
        }
        recorder = Recorder(accounts, meters, clock)
        opened.push_async_callback(recorder.close)
        recorder.start()
        token, token_file = "", None
        if config.metrics_port is not None:
            token, token_file = token_of(config, clock)
        operations = _operations_of(config, meters, known, clock, token)
        operations.servers.update(servers)
        operations.further += [] if sender is None else [sender.families]
        _observe(config, operations, clock, logs)
        if config.otel:
            opened.push_async_callback(asyncio.to_thread, _trace(config, operations, clock))
        yield Built(
            servers,
            known,
            operations,
            _operations_server_of(config, operations, clock),
            "" if token_file is not None else token,
            place.where if config.local and isinstance(place.where, str) else None,
            stopping,
            failed,
        )


@contextlib.asynccontextmanager
async def _event_sender(
    config: Config, accounts: Accounts, clock: Clock
) -> AsyncIterator[EventSender | None]:
    """Send notices of changed blobs while the server runs, if a receiver is set."""
    if config.blob_events is None:
        yield None
        return
    sender = EventSender(receiver_of(config.blob_events.text), accounts, clock)
    accounts.blob_events = sender
    try:
        yield sender
    finally:
        await sender.close()


async def _prepare(account: Account, config: Config) -> None:
    """Create what the settings name, in the first account."""
    if config.seed is not None:
        await seed(account, config.seed)
    for place in config.create:
        await create(account, place)


async def _issuer_of(config: Config, clock: Clock) -> TokenIssuer | None:
    """Return what checks bearer tokens; a file of keys must be readable now, a URL later."""
    if config.oauth == "off" and config.oauth_issuer is None:
        return None
    try:
        from partita.service.auth.tokens import TokenRules  # noqa: PLC0415 - it needs an extra
        from partita.service.hosting.token_issuer import (  # noqa: PLC0415
            DevelopmentIssuer,
            Issuer,
        )
    except ImportError as error:
        raise ConfigurationError(
            "Configuration",
            "Bearer tokens need packages that are not installed.",
            facts={"package": error.name or ""},
            hint="Run: pip install './partita[oauth]', or leave the --oauth flags out.",
        ) from error
    if config.oauth_issuer is None:
        return DevelopmentIssuer()
    rules = TokenRules(
        config.oauth_issuer,
        config.oauth_audience,
        config.oauth_roles_claim,
        config.oauth_role,
        config.oauth_skew_seconds,
    )
    issuer = Issuer(rules, config.oauth_jwks, clock)
    try:
        await issuer.read()
    except ConfigurationError as error:
        if isinstance(config.oauth_jwks, Path):
            raise
        logger.warning("%s %s %s", error.message, error.facts["reason"], error.hint)
    return issuer


def _observe(config: Config, operations: Operations, clock: Clock, logs: Logs | None) -> None:
    """Connect the logs with the counters of each service."""
    slow = SlowLog(clock, config.slow_ms / 1000 if config.slow_ms else math.inf)
    operations.routes["/api/v1/slow"] = slow.answer
    for meter in operations.meters.values():
        slow.follow(meter)
        if logs is not None:
            log = RequestLogs(clock, logs.messages, has_text=config.request_log, access=logs.access)
            log.follow(meter)
    if logs is not None:
        operations.log_dropped = logs.dropped


def _trace(config: Config, operations: Operations, clock: Clock) -> Callable[[], None]:
    """Export traces of all services; return what exports the last ones."""
    try:
        from partita.service.observing.traces import (  # noqa: PLC0415 - it needs an extra
            Traces,
            otlp_processor,
        )
    except ImportError as error:
        raise ConfigurationError(
            "Configuration",
            "Traces need packages that are not installed.",
            facts={"package": error.name or ""},
            hint="Run: pip install './partita[otel]', or leave --otel out.",
        ) from error
    traces = Traces(clock, otlp_processor(), version=partita.__version__, one_in=config.otel_one_in)
    for meter in operations.meters.values():
        traces.follow(meter)
    return traces.close


def _operations_of(
    config: Config,
    meters: Mapping[str, ServiceMeter],
    accounts: Accounts,
    clock: Clock,
    token: str,
) -> Operations:
    backings = {name: account.backing for name, account in accounts.items()}
    is_shared = config.is_on_postgresql and bool(backings)
    operations = Operations(
        meters,
        {"" if is_shared else name: backing.meter for name, backing in backings.items()},
        clock,
        version=partita.__version__,
        token=token,
        is_on_network=config.has_metrics_on_network,
        why_not_ready=lambda: _why_not_ready(accounts),
    )
    operations.accounts = tuple(accounts)
    first = next(iter(accounts.values()))
    operations.routes["/api/v1/heat"] = heat_route(first.heat, first.name, clock)
    return operations


def _operations_server_of(config: Config, operations: Operations, clock: Clock) -> Server | None:
    if config.metrics_port is None:
        return None
    return Server(
        operations.respond,
        hosts=[config.metrics_host],
        port=config.metrics_port,
        limits=OPERATIONS_LIMITS,
        tls=_tls_of(config) if config.has_metrics_on_network else None,
        clock=clock,
        has_fixed=False,
    )


def _why_not_ready(accounts: Accounts) -> str:
    return next(filter(None, (each.backing.why_not_ready for each in accounts.values())), "")


def _server_of(  # noqa: PLR0913 - what the server of a service is built from
    kind: ServiceKind,
    config: Config,
    accounts: Accounts,
    clock: Clock,
    budget: ByteBudget,
    connections_max: int | None,
    *,
    meter: ServiceMeter,
) -> Server:
    front = Front(
        kind.build(accounts, clock), accounts, clock, allowed_hosts=frozenset(config.allowed_host)
    )
    return Server(
        front.begin,
        hosts=config.host,
        port=config.ports[kind.name],
        limits=msgspec.structs.replace(
            kind.limits,
            connections_max=connections_max or config.connections_max,
            connections_per_peer_max=config.connections_per_peer_max,
        ),
        tls=_tls_of(config),
        clock=clock,
        observer=meter,
        why_not_ready=lambda: _why_not_ready(accounts),
        dialect=kind.dialect,
        budget=budget,
    )


def _tls_of(config: Config) -> TlsFiles | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    return TlsFiles(config.tls_cert, config.tls_key)


def _with_built(start: Start, config: Config, built: Built) -> Start:
    """Add the addresses that are known after the start.

    They are those of the PostgreSQL of --local and of the operations endpoint, whose token is
    added if it is in no file.
    """
    start = msgspec.structs.replace(start, database=built.local_database)
    server = built.operations_server
    if server is None:
        return start
    host = _reachable(config.metrics_host)
    return msgspec.structs.replace(
        start,
        metrics_endpoint=f"{server.scheme}://{host}:{server.port}",
        metrics_token=built.operations_token or None,
    )


def start_of(config: Config, ports: Mapping[str, int], console: str | None = None) -> Start:
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
        console=console,
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
        *([f"  database           {start.database}"] if start.database else []),
        f"  connection string  {start.connection_string}",
        *([f"  further accounts   {others}"] if others else []),
        *([f"  console            {start.console}"] if start.console else []),
        *([f"  operations         {start.metrics_endpoint}"] if start.metrics_endpoint else []),
        *([f"  operations token   {start.metrics_token}"] if start.metrics_token else []),
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
