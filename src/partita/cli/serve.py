"""`partita serve`: build the server from a Config, announce it, run until it is told to stop.

`build` is the object graph of the whole server, written out with constructors; nothing else
knows how the parts fit. What is announced is a function of facts, so that it can be tested.
"""

import asyncio
import contextlib
import ipaddress
import logging
import sys
from collections.abc import AsyncIterator

import msgspec

import partita
from partita.cli.config import Config, check, warnings
from partita.clock import SystemClock
from partita.service.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Account, Accounts
from partita.service.app import App
from partita.service.http_wire import LoggedRequest
from partita.service.server import Server, TlsFiles, run, serve_until_stopped

_DEVELOPMENT_ENDPOINT = f"http://127.0.0.1:10002/{DEVELOPMENT_ACCOUNT}"
"""What `UseDevelopmentStorage=true` stands for."""
_DURABILITY = {
    "full": "durability full: a success answer is on disk",
    "fast": "durability fast: a power cut may take the last writes",
    "memory": "in memory: nothing survives a stop",
}


class Start(msgspec.Struct, frozen=True):
    """The facts of a start. It holds no key but the well-known one."""

    version: str
    table_endpoint: str
    connection_string: str
    addresses: list[tuple[str, int]]
    accounts: list[str]
    path: str | None
    durability: str


class Built(msgspec.Struct, frozen=True):
    """A server that is ready to start, and the events that end it."""

    server: Server
    stopping: asyncio.Event
    failed: asyncio.Event
    """Set by a store that could not sync: the process must end and recover by a restart."""


def serve(config: Config, *, as_json: bool) -> int:
    """Serve until a signal stops it; return the exit status."""
    check(config)
    logging.basicConfig(stream=sys.stderr, format="partita: %(levelname)s: %(message)s")
    if config.request_log:
        logging.getLogger("partita").setLevel(logging.INFO)  # why a request was not let in
    for warning in warnings(config):
        print("partita: warning:", warning, file=sys.stderr)
    return run(lambda: _serve(config, as_json=as_json))


async def _serve(config: Config, *, as_json: bool) -> int:
    async with build(config) as built:
        port = await built.server.start()
        running = asyncio.create_task(serve_until_stopped(built.server, built.stopping))
        await asyncio.sleep(0)  # signals are caught before anybody hears of the server
        start = start_of(config, [(host, port) for host in config.host])
        print(as_line(start) if as_json else as_text(start), flush=True)
        status = await running
    return 1 if built.failed.is_set() else status


@contextlib.asynccontextmanager
async def build(config: Config) -> AsyncIterator[Built]:
    """Build everything that serves, and take it down again: one store an account, one app."""
    clock = SystemClock()
    stopping, failed = asyncio.Event(), asyncio.Event()

    def stop(_error: BaseException) -> None:
        failed.set()
        stopping.set()

    async with contextlib.AsyncExitStack() as opened:
        accounts: list[Account] = []
        for each in config.accounts:
            account = await Account.open(
                each.name,
                each.keys,
                root=None if config.in_memory else config.path,
                durability=config.durability,
                clock=clock,
            )
            opened.push_async_callback(account.tables.close)
            account.database.on_failure = stop
            accounts.append(account)
        app = App(Accounts(accounts, clock), clock, allowed_hosts=frozenset(config.allowed_host))
        server = Server(
            app.respond,
            hosts=config.host,
            port=config.table_port,
            tls=_tls_of(config),
            clock=clock,
            log=_log_request if config.request_log else None,
            is_ready=lambda: all(account.database.is_writable for account in accounts),
        )
        yield Built(server, stopping, failed)


def _tls_of(config: Config) -> TlsFiles | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    return TlsFiles(config.tls_cert, config.tls_key)


def _log_request(done: LoggedRequest) -> None:
    target = f"{done.path}?{done.query}" if done.query else done.path
    sys.stderr.write(
        f"{done.peer} {done.method} {target} {done.status} {done.duration_seconds * 1000:.1f}ms"
        f" {done.body_bytes}B {done.request_id}\n"
    )


def start_of(config: Config, addresses: list[tuple[str, int]]) -> Start:
    """Say where the first account can be reached and how."""
    account = config.accounts[0]
    scheme = "https" if config.tls_cert else "http"
    host, port = addresses[0]
    endpoint = f"{scheme}://{_reachable(host)}:{port}/{account.name}"
    if account.has_development_key and endpoint == _DEVELOPMENT_ENDPOINT:
        connection_string = "UseDevelopmentStorage=true"
    else:
        key = DEVELOPMENT_KEY if account.has_development_key else "<your key>"
        connection_string = (
            f"DefaultEndpointsProtocol={scheme};AccountName={account.name};"
            f"AccountKey={key};TableEndpoint={endpoint}"
        )
    return Start(
        version=partita.__version__,
        table_endpoint=endpoint,
        connection_string=connection_string,
        addresses=addresses,
        accounts=[account.name for account in config.accounts],
        path=None if config.in_memory else str(config.path.absolute()),
        durability="memory" if config.in_memory else config.durability.value,
    )


def as_line(start: Start) -> str:
    """One line of JSON, for programs that start a server."""
    return msgspec.json.encode(start).decode()


def as_text(start: Start) -> str:
    """What a person needs next: where it is, where the data is, what to type."""
    listening = ", ".join(f"{_bracketed(host)}:{port}" for host, port in start.addresses)
    others = ", ".join(start.accounts[1:])
    create = f'TableServiceClient.from_connection_string("{start.connection_string}")'
    lines = [
        f"Partita {start.version} serves tables at {start.table_endpoint}",
        f"  listening on       {listening}",
        f"  data               {start.path or '-'} ({_DURABILITY[start.durability]})",
        f"  connection string  {start.connection_string}",
        *([f"  further accounts   {others}"] if others else []),
        "",
        "  from azure.data.tables import TableServiceClient",
        f'  staff = {create}.create_table_if_not_exists("Staff")',
        '  staff.upsert_entity({"PartitionKey": "Sales", "RowKey": "00010", "Name": "Ken Kwok"})',
        "",
        "  Ctrl-C stops it.",
    ]
    return "\n".join(lines)


def _reachable(host: str) -> str:
    """The address to type for a bound one: nobody connects to 0.0.0.0."""
    if host == "localhost":
        return "127.0.0.1"  # SDKs take localhost for Cosmos
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return _bracketed(host)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
