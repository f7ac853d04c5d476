"""Run Alembic in worker processes, because its context is global to a process.

The parent writes one JSON line per database to the input of a worker and reads one line back.
Workers are started as commands, not forked or spawned from `__main__`, so that a script without a
main guard can upgrade in parallel. Credentials are sent through the pipe, not as arguments.
"""

import os
import queue
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import IO, Any

import msgspec
from alembic.config import Config

from partita import errors
from partita.errors import ConfigurationError, PartitaError, ShardError
from partita.shards.connections.engines import Engines
from partita.shards.fleet.migrations import Migrations, revision_text
from partita.shards.keys.mapping import Location

_START = "from partita.shards.fleet.migration_worker import serve; serve()"
_ERROR_TEXT_MAX = 2_000


class Project(msgspec.Struct, frozen=True):
    """An Alembic configuration that can be sent to another process."""

    ini: str | None
    toml: str | None
    section: str
    options: dict[str, str]
    path: list[str]

    @classmethod
    def of(cls, config: Config) -> "Project":
        if config.attributes:
            raise ConfigurationError(
                "MigrationConfigNotPortable",
                "Values in Config.attributes cannot be sent to other processes.",
                facts={"attributes": sorted(map(str, config.attributes))},
                hint="Use parallel=1, or set the values in the ini file or the environment.",
            )
        section = config.config_ini_section
        parser = config.file_config
        options = dict(parser.items(section, raw=True)) if parser.has_section(section) else {}
        toml = getattr(config, "toml_file_name", None)
        return cls(
            None if config.config_file_name is None else str(config.config_file_name),
            None if toml is None else str(toml),
            section,
            options,
            [entry or str(os.getcwd()) for entry in sys.path],  # noqa: PTH109 - as Python reads ''
        )

    def config(self) -> Config:
        more = {} if self.toml is None else {"toml_file": self.toml}
        config = Config(self.ini, ini_section=self.section, **more)  # type: ignore[arg-type]
        for name, value in self.options.items():
            config.set_section_option(self.section, name, value)
        return config


class Request(msgspec.Struct, frozen=True):
    """One database to upgrade; `login` is a URL with the credentials."""

    project: Project
    location: Location
    login: str | None
    target: str
    lock_timeout: float


class Failure(msgspec.Struct, frozen=True):
    """An error that is sent between processes."""

    family: str
    code: str
    message: str
    facts: dict[str, Any]
    hint: str

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        if not isinstance(error, PartitaError):
            text = f"{type(error).__name__}: {error}"[:_ERROR_TEXT_MAX]
            return cls("ShardError", "MigrationFailed", text, {}, "See the cause.")
        facts = {name: str(value) for name, value in error.facts.items()}
        return cls(type(error).__name__, error.code, error.message, facts, error.hint)

    def error(self) -> PartitaError:
        family = getattr(errors, self.family)
        made: PartitaError = family(self.code, self.message, facts=self.facts, hint=self.hint)
        return made


class Reply(msgspec.Struct, frozen=True):
    """The outcome of one database."""

    before: str | None = None
    after: str | None = None
    failure: Failure | None = None


def upgrade_database(request: Request, migrations: Migrations) -> Reply:
    """Upgrade one database in this process; errors are part of the reply."""
    engines = Engines(None if request.login is None else lambda _location: request.login)
    before = after = None
    try:
        with engines.admin(request.location).connect() as connection:
            before = revision_text(migrations.read(connection).heads)
            try:
                after = revision_text(
                    migrations.upgrade(
                        connection, request.target, lock_timeout=request.lock_timeout
                    )
                )
            except Exception:
                after = revision_text(migrations.read(connection).heads)
                raise
    except Exception as error:  # noqa: BLE001 - migrations raise anything; the parent gets it
        return Reply(before, after, Failure.of(error))
    finally:
        engines.dispose()
    return Reply(before, after)


def serve() -> None:
    """Answer requests until the input ends."""
    # Migrations may print: standard output becomes standard error, and answers use a copy.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    project: Project | None = None
    migrations: Migrations | None = None
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=Request)
        if request.project != project or migrations is None:
            project = request.project
            sys.path[:] = project.path
            try:
                migrations = Migrations(project.config())
            except PartitaError as error:
                answers.write(msgspec.json.encode(Reply(failure=Failure.of(error))) + b"\n")
                answers.flush()
                continue
        answers.write(msgspec.json.encode(upgrade_database(request, migrations)) + b"\n")
        answers.flush()


class Workers:
    """Worker processes, started on demand and ended with the `with` block."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[_WorkerProcess] = queue.SimpleQueue()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while not self._idle.empty():
            self._idle.get().stop()

    def run(self, request: Request) -> Reply:
        """Send the request to an idle worker or a new one; raise if the worker dies."""
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            worker = _WorkerProcess()
        try:
            reply = worker.ask(request)
        except BaseException:
            worker.kill()
            raise
        self._idle.put(worker)
        return reply


class _WorkerProcess:
    def __init__(self) -> None:
        # A file, because a pipe that is not read would fill up.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": path},
        )

    def ask(self, request: Request) -> Reply:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        answer = self._process.stdout.readline()
        if not answer:
            raise self._died()
        return msgspec.json.decode(answer, type=Reply)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    # The process has ended and cannot read the remaining output.
                    continue

    def _died(self) -> ShardError:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        return ShardError(
            "MigrationProcessDied",
            f"The migration process ended with code {code}.",
            facts={"code": code, "said": said[-_ERROR_TEXT_MAX:]},
            hint="Its transaction was rolled back. Upgrade again: current shards are skipped.",
        )
