"""Generate the synchronous twins of asynchronous modules.

    python tools/make_sync.py [--check]

With `--check` nothing is written: the names of stale files are printed, and the exit status is 1.
The reasons are in docs/decisions/0026-async-by-hand-sync-generated.md.
"""

import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst
from sync_translation import Renames, translate
from sync_wrapping import Wrapper, imports_of, wrap, wrap_opening, wrap_service

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "src/partita"
NOTICE = "Generated from {source} by tools/make_sync.py. Do not edit: change the source instead."
FIXES = (
    ("check", "--select", "F401,F811", "--fix-only"),
    (
        "check",
        "--select",
        "I",
        "--fix-only",
        "--config",
        "lint.isort.split-on-trailing-comma=false",
    ),
    ("format",),
)


@dataclass(frozen=True)
class Twin:
    """A synchronous module and the asynchronous one that it is translated from."""

    source: str
    target: str
    summary: str
    """The first line of its docstring."""
    renames: Renames = field(default_factory=Renames)

    def text(self) -> str:
        docstring = _docstring(self.summary, Path(self.source).name)
        return translate((PACKAGE / self.source).read_text("utf-8"), docstring, self.renames)


@dataclass(frozen=True)
class Wrapping:
    """A synchronous module whose classes run asynchronous ones on an event loop in a thread."""

    target: str
    summary: str
    imports: str
    """Imports of the module itself; those of the sources are added."""
    public: tuple[str, ...]
    """Imported names that belong to the API."""
    wrappers: tuple[Wrapper, ...]
    opening: tuple[str, str, str, str]
    """Module and name of the function that opens, the class that it returns, and a note."""
    service: tuple[str, ...] = ()
    """The same of the function that joins a service."""

    def text(self) -> str:
        module, name, result, note = self.opening
        modules = [*(each.module for each in self.wrappers), module]
        sources = {each: cst.parse_module(_path(each).read_text("utf-8")) for each in modules}
        wrapped = {each.name for each in self.wrappers}
        replaced = {*wrapped, *self.public, *TYPE_VARIABLES, "T", "logger"}
        code = [f'"""{self.summary}"""\n', self.imports]
        code += [imports_of(each, source, replaced) for each, source in sources.items()]
        names = [*self.public, *wrapped, name, *self.service[1:2]]
        code += [f"__all__ = {sorted(names)}\n"]
        code += [f'{each} = TypeVar("{each}")' for each in TYPE_VARIABLES]
        code += [wrap(each, sources[each.module], wrapped) for each in self.wrappers]
        code += [wrap_opening(sources[module], name, result, note)]
        if self.service:
            module, name, result, note = self.service
            source = cst.parse_module(_path(module).read_text("utf-8"))
            code += [SERVICE_TYPES, wrap_service(source, name, result, note)]
        names = ", ".join(dict.fromkeys(f"{each.rpartition('.')[2]}.py" for each in modules))
        renames = Renames(text={"`partita.open_state`": "`open_state`"})
        return translate("\n".join(code), _docstring(self.summary, names), renames)


def _docstring(summary: str, source: str) -> str:
    return f"{summary}\n\n{textwrap.fill(NOTICE.format(source=source), 100)}\n"


def _path(module: str) -> Path:
    return PROJECT / "src" / (module.replace(".", "/") + ".py")


COLLECTIONS = "partita.reliable.collections"
TYPE_VARIABLES = ("K", "V", "D")
RELIABLE_IMPORTS = """
import functools
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast, overload
from partita.reliable import opening
from partita.reliable.blocking import Attempt, OnDataLoss, OpenCollection, OpenState
from partita.reliable.blocking import RestoreContext, Snapshot, Transaction
from partita.reliable.blocking import open_block
from partita.reliable.blocking import AutoOperations
from partita.reliable.blocking_feed import ChangeFeed, OpenDictionary
from partita.reliable.blocking_service import Service, open_service_block, restore_state
from partita.reliable.service import service
from partita.reliable.service.requests import Request
from partita.reliable.collections.concurrent_queue import (
    AutoConcurrentQueue as AsyncAutoConcurrentQueue,
)
from partita.reliable.collections.concurrent_queue import (
    ReliableConcurrentQueue as AsyncConcurrentQueue,
)
from partita.reliable.collections.dictionary import AutoDictionary as AsyncAutoDictionary
from partita.reliable.collections.dictionary import ReliableDictionary as AsyncDictionary
from partita.reliable.collections.queue import AutoQueue as AsyncAutoQueue
from partita.reliable.collections.queue import ReliableQueue as AsyncQueue
"""
UPSERT_NOTE = (
    "They are called in the thread of the state: they must be quick, and must not use the state."
)
SERVICE_NOTE = (
    "`opened` and `handle` are ordinary functions and are called in other threads. The process has "
    "joined when this returns, and leaves by `with`, by `close()`, or at the end of the program."
)
SERVICE_TYPES = """
OnOpened = Callable[[StateManager], None]
Handle = Callable[[StateManager, Request], bytes]
"""
OPEN_BODY = (
    "inner: object = self._within(tx, self._inner.open, declared)",
    "if isinstance(inner, AsyncQueue):",
    "    return ReliableQueue(self._thread, inner)",
    "if isinstance(inner, AsyncConcurrentQueue):",
    "    return ReliableConcurrentQueue(self._thread, inner)",
    "assert isinstance(inner, AsyncDictionary)",
    "return ReliableDictionary(self._thread, inner)",
)
OPENING_NOTE = (
    "The state is open when this returns, and closed by `with`, by `close()`, or at the end of the "
    "program. Open it after a fork, never before: in a worker of the server, not where the server "
    "loads your code."
)

GENERATED: tuple[Twin | Wrapping, ...] = (
    Twin(
        "patterns/aio.py",
        "patterns/sync.py",
        "The synchronous API: the names of `partita.patterns`, without asyncio.",
        Renames(
            names={
                "AsyncPort": "SyncPort",
                "AsyncKeyLocks": "KeyLocks",
                "AsyncLoops": "ThreadLoops",
                "open_async": "open_sync",
            },
            modules={
                "partita.patterns.ports.aio_port": "partita.patterns.ports.sync_port",
                "partita.patterns.connect": "partita.patterns.sync",
            },
        ),
    ),
    Twin(
        "patterns/ports/sdk_port.py",
        "patterns/ports/sdk_port_sync.py",
        "The official SDK as a synchronous port: performs calls, translates errors.",
        Renames(
            names={
                "AioPort": "SdkPort",
                "AsyncHttpTransport": "HttpTransport",
                "AsyncMeteredTransport": "MeteredTransport",
            },
            modules={
                "azure.data.tables.aio": "azure.data.tables",
                "azure.storage.blob.aio": "azure.storage.blob",
                "azure.storage.queue.aio": "azure.storage.queue",
            },
        ),
    ),
    Twin(
        "service/hosting/azure_transport.py",
        "service/hosting/azure_transport_sync.py",
        "The transport of azure-core's synchronous clients to services in this process.",
        Renames(
            names={
                "AsyncAsks": "Asks",
                "AsyncHttpTransport": "HttpTransport",
                "AsyncInProcessTransport": "InProcessTransport",
                "AsyncResponse": "HttpResponseImpl",
                "aiohttp_request_of": "request_of",
                "async_parts_of": "parts_of",
            },
            modules={
                "partita.service.hosting.in_process_exchange.AsyncResponse": (
                    "azure.core.rest._http_response_impl"
                ),
            },
        ),
    ),
    Wrapping(
        "reliable/sync.py",
        "Reliable state without asyncio: for scripts, Django, Flask, and threads.",
        RELIABLE_IMPORTS,
        (
            *("Attempt", "ChangeFeed", "OnDataLoss", "RestoreContext", "Service", "Snapshot"),
            *("Transaction", "restore_state"),
        ),
        (
            Wrapper(
                f"{COLLECTIONS}.dictionary",
                "ReliableDictionary",
                "OpenDictionary[K, V]",
                (
                    *("auto", "get", "get_many", "contains", "get_versioned", "set", "add"),
                    *("try_add", "upsert", "get_or_add", "compare_and_set", "pop", "delete"),
                    *("clear", "count", "items", "keys", "values", "find"),
                ),
                notes={
                    "upsert": UPSERT_NOTE,
                    "items": "`where` is called in the thread of the state. Some hundred rows "
                    "are fetched ahead of those that are yielded.",
                },
            ),
            Wrapper(
                f"{COLLECTIONS}.dictionary",
                "AutoDictionary",
                "AutoOperations[AsyncAutoDictionary[K, V]], Generic[K, V]",
                (
                    *("get", "get_versioned", "get_many", "contains", "count", "set", "add"),
                    *("try_add", "upsert", "get_or_add", "compare_and_set", "pop", "delete"),
                    "clear",
                ),
                notes={"upsert": UPSERT_NOTE},
            ),
            Wrapper(
                f"{COLLECTIONS}.queue",
                "ReliableQueue",
                "OpenCollection[AsyncQueue[V]], Generic[V]",
                ("auto", "enqueue", "dequeue", "dequeue_many", "peek", "count", "items", "clear"),
            ),
            Wrapper(
                f"{COLLECTIONS}.queue",
                "AutoQueue",
                "AutoOperations[AsyncAutoQueue[V]], Generic[V]",
                ("enqueue", "dequeue", "dequeue_many", "peek", "count", "clear"),
            ),
            Wrapper(
                f"{COLLECTIONS}.concurrent_queue",
                "AutoConcurrentQueue",
                "AutoOperations[AsyncAutoConcurrentQueue[V]], Generic[V]",
                (
                    *("enqueue", "dequeue", "dequeue_many", "receive", "complete", "release"),
                    *("peek", "count", "clear"),
                ),
            ),
            Wrapper(
                f"{COLLECTIONS}.concurrent_queue",
                "ReliableConcurrentQueue",
                "OpenCollection[AsyncConcurrentQueue[V]], Generic[V]",
                (
                    "auto",
                    *("enqueue", "dequeue", "dequeue_many", "receive", "complete", "release"),
                    *("returned", "peek", "count", "items", "clear"),
                ),
            ),
            Wrapper(
                "partita.reliable.manager.state_manager",
                "StateManager",
                "OpenState",
                (
                    *("is_primary", "sequence", "epoch", "wait_primary", "step_down"),
                    *("set_mutation_check", "open", "dictionary", "queue", "concurrent_queue"),
                    *("collections", "drop", "promote_schema", "rewrite", "read_at_least"),
                    *("readable_versions", "outcome", "checkpoint", "backup"),
                    *("on_commit", "on_collections"),
                ),
                inner="_inner",
                notes={
                    "StateManager": "Any number of threads may use it, each with its own "
                    "transactions.",
                    "on_commit": "It is called in the thread of the state and must not use the "
                    "state.",
                },
                bodies={
                    "open": OPEN_BODY,
                    "drop": ("self._within(tx, self._inner.drop, name, timeout=timeout)",),
                },
            ),
        ),
        ("partita.reliable.opening", "open_state", "StateManager", OPENING_NOTE),
        ("partita.reliable.service.service", "open_service", "StateManager", SERVICE_NOTE),
    ),
)


def generate(twin: Twin | Wrapping) -> str:
    """Return the text of a generated module, formatted as the rest of the project."""
    text = twin.text()
    for fix in FIXES:
        name = f"src/partita/{twin.target}"
        command = [sys.executable, "-m", "ruff", *fix, "--quiet", "--stdin-filename", name, "-"]
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True, cwd=PROJECT
        )
        text = done.stdout
    return text


def main() -> int:
    is_check = "--check" in sys.argv[1:]
    stale = 0
    for twin in GENERATED:
        target = PACKAGE / twin.target
        text = generate(twin)
        if target.exists() and target.read_text("utf-8") == text:
            continue
        stale += 1
        print(f"{'stale' if is_check else 'generated'}: {target.relative_to(PROJECT)}")
        if not is_check:
            target.write_text(text, "utf-8")
    if is_check and stale:
        print("Run: python tools/make_sync.py")
    return int(is_check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
