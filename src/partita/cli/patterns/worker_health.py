"""The health port of `partita patterns worker`: /healthz, /readyz and /metrics.

On loopback no token is needed. Beyond it /metrics needs the token of a file, and health does not.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import partita
from partita.addresses import is_loopback
from partita.cli.kit.commands import Given
from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.service.hosting.server import Server
from partita.service.observing.operations import Operations

STOP_SECONDS = 1.0


@contextlib.asynccontextmanager
async def health(given: Given, why_not_ready: Callable[[], str]) -> AsyncIterator[str | None]:
    """Serve the health port; yield its address, or None if the flags do not ask for one."""
    if given.health_port is None:
        yield None
        return
    clock = SystemClock()
    operations = Operations(
        {},
        {},
        clock,
        version=partita.__version__,
        token=_token(given.health_token_file),
        is_on_network=not is_loopback(given.health_host),
        why_not_ready=why_not_ready,
    )
    server = Server(
        operations.respond,
        hosts=[given.health_host],
        port=given.health_port,
        clock=clock,
        has_fixed=False,
    )
    try:
        port = await server.start()
    except ConfigurationError as error:
        if error.code == "AddressUnusable":
            error.hint = "Stop the process that uses the port, or choose another --health-port."
        raise
    try:
        yield f"http://{_shown(given.health_host)}:{port}"
    finally:
        await server.stop(STOP_SECONDS)


def _token(file: str | None) -> str:
    if file is None:
        return ""
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            "Configuration",
            f"The token file {file} cannot be read.",
            hint="Check --health-token-file and the permissions of the file.",
        ) from error


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
