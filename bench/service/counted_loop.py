"""The request loop whose instructions are counted: tables in one process, without sockets.

    python bench/service/counted_loop.py fill FOLDER
    python bench/service/counted_loop.py count FOLDER WORKLOAD REQUESTS [MODE]

The protocol, the front and a table store in a folder are those of the `partita` on PYTHONPATH.
Sixteen clients (one for W7) send one request each in a turn of the loop, and the next ones when
all have their answers, so that turns and commits always contain the same requests. Instrumentation
is switched on around these rounds only. Time advances by a step with each look at the clock.
"""

import asyncio
import base64
import contextlib
import ctypes
import gc
import itertools
import mmap
import os
import platform
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.tables.workload import (
    GROUP_OPERATIONS,
    PARTITION_ENTITIES,
    Load,
    Requests,
    Versions,
    generate,
    partition_key,
    row_key,
)

from partita.clock import SystemClock
from partita.service.accounts.account import (
    DEVELOPMENT_ACCOUNT,
    DEVELOPMENT_KEY,
    Account,
    Accounts,
)
from partita.service.accounts.folder_stores import open_folder_stores
from partita.service.accounts.respond import Front
from partita.service.http.connections import Connections
from partita.service.http.message_bytes import HttpLimits
from partita.service.http.protocol import HttpProtocol, Turn
from partita.service.tables.service import TableService
from partita.storage import database

CLIENTS = 16
PAGE_ENTITIES = 1000
PIECE_BYTES = 64 * 1024
"""The most that a socket hands over at once."""
WARM_REQUESTS = {"W1": 1040, "W4": 16, "W5": 1040, "W6": 400, "W7": 10}
"""Requests before the counted ones: short reads use a memory map after 1,000, and the filters of
W6 have a hundred different values."""
WARM_REQUESTS_ELSEWHERE = 160
HEAT_STRIDE = 60
"""The stride of heat at 15,360 requests per second."""
STEP_SECONDS = 1e-6
MODES = ("served", "meter", "off", "heat", "heat-exact")
"""As `partita serve` counts; or with counters only, with nothing, with heat only (all samples)."""


class StepClock(SystemClock):
    """A clock that advances by one step with each look: under valgrind, real time is too quick."""

    def __init__(self) -> None:
        whole_second = SystemClock.ticks(self) // 10_000_000 * 10_000_000
        self.ticks = itertools.count(whole_second, 10).__next__  # type: ignore[method-assign]
        self.monotonic = itertools.count(0.0, STEP_SECONDS).__next__


class _Client:
    """The transport of one connection; its client reads at once."""

    def __init__(self, loop: "_Loop", protocol: HttpProtocol) -> None:
        self._loop = loop
        self.receive = protocol.data_received
        protocol.connection_made(self)  # type: ignore[arg-type]  # as far as the protocol uses it

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return ("127.0.0.1", 50000)

    def set_write_buffer_limits(self, **_limits: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def write(self, part: bytes) -> None:
        self._loop.answered(part)

    def writelines(self, parts: Sequence[bytes]) -> None:
        self._loop.answered(parts[0])


_Round = list[tuple[_Client, list[bytes]]]
"""One request of each client, in the pieces in which it arrives."""


class _Loop:
    """The clients of a table service, which send in rounds."""

    def __init__(self, account: Account, clock: SystemClock, mode: str, clients: int) -> None:
        accounts = Accounts([account], clock)
        front = Front(TableService(accounts, clock), accounts, clock)
        respond = getattr(front, "begin", front.respond)  # older ones have only the latter
        limits = HttpLimits()
        connections = Connections(limits, clock)
        self.meter: Any = None
        if mode in ("served", "meter"):
            from partita.service.observing import ServiceMeter  # noqa: PLC0415 - not in older ones

            connections.observer = self.meter = ServiceMeter("tables")
        if mode not in ("off", "meter"):
            from partita.heat.meter import Meter  # noqa: PLC0415 - not in older ones

            account.meter = Meter(clock)
            account.meter.stride = 1 if mode == "heat-exact" else HEAT_STRIDE
        turn = Turn(limits.write_buffer_bytes_max, clock)
        self._clients = [
            _Client(self, HttpProtocol(respond, limits, connections, turn=turn))
            for _ in range(clients)
        ]
        self._missing = 0
        self._is_answered: asyncio.Future[None]

    def rounds_of(self, requests: Sequence[bytes]) -> list[_Round]:
        """Return the requests as they are sent."""
        cut = [
            [request[at : at + PIECE_BYTES] for at in range(0, len(request), PIECE_BYTES)]
            for request in requests
        ]
        size = len(self._clients)
        return [
            list(zip(self._clients, cut[first : first + size], strict=False))
            for first in range(0, len(cut), size)
        ]

    async def send(self, rounds: Sequence[_Round]) -> None:
        """Send the requests, one round after the other."""
        loop = asyncio.get_running_loop()
        for part in rounds:
            self._missing = len(part)
            self._is_answered = loop.create_future()
            for client, pieces in part:
                for piece in pieces:
                    client.receive(piece)
            await self._is_answered

    def answered(self, head: bytes) -> None:
        """Count an answer; the next round begins after the last one."""
        if not head.startswith(b"HTTP/1.1 20"):
            self._is_answered.set_exception(AssertionError(head[:500]))
            return
        self._missing -= 1
        if not self._missing and not self._is_answered.done():
            self._is_answered.set_result(None)


def _requests_of(workload: str) -> Iterator[bytes]:
    requests = Requests(10002)
    if workload == "W7":
        pages = [requests.query("", _continuation(at)) for at in range(0, 10_000, PAGE_ENTITIES)]
        return itertools.cycle(pages)
    load = Load(PARTITION_ENTITIES, Versions(next_new=PARTITION_ENTITIES))
    return generate(workload, requests, load, 1_000_000, random.Random(1))


def _continuation(number: int) -> str:
    """Return the query options of the page that begins with an entity."""
    if not number:
        return ""
    keys = {"NextPartitionKey": partition_key(number), "NextRowKey": row_key(number)}
    return "&".join(f"{name}={quote(_printed(key), safe='')}" for name, key in keys.items())


def _printed(key: str) -> str:
    encoded = base64.b64encode(key.encode()).decode().replace("=", "-")
    return f"1!{len(encoded)}!{encoded}"


async def open_account(folder: Path, clock: SystemClock) -> Account:
    # How often real timers end depends on the load of the machine.
    database.LOCK_CHECK_SECONDS = 1e6
    with contextlib.suppress(ImportError):  # older ones have none
        from partita.storage import vacuum  # noqa: PLC0415

        vacuum.LOOK_SECONDS = 1e6
    stores = await open_folder_stores(DEVELOPMENT_ACCOUNT, folder, clock=clock)
    return await Account.open(DEVELOPMENT_ACCOUNT, [DEVELOPMENT_KEY], stores)


async def fill(folder: Path) -> None:
    """Store one partition of entities, by requests."""
    clock = StepClock()
    account = await open_account(folder, clock)
    loop, requests = _Loop(account, clock, "off", CLIENTS), Requests(10002)
    await loop.send(loop.rounds_of([requests.create_table()]))
    firsts = range(0, PARTITION_ENTITIES, GROUP_OPERATIONS)
    await loop.send(loop.rounds_of([requests.batch(first) for first in firsts]))
    await account.close()


async def count(folder: Path, workload: str, wanted: int, mode: str) -> None:
    """Send warm requests, then the counted ones."""
    clock = StepClock()
    account = await open_account(folder, clock)
    loop = _Loop(account, clock, mode, 1 if workload == "W7" else CLIENTS)
    requests = _requests_of(workload)
    warm = WARM_REQUESTS.get(workload, WARM_REQUESTS_ELSEWHERE)
    await loop.send(loop.rounds_of(list(itertools.islice(requests, warm))))
    counted = loop.rounds_of(list(itertools.islice(requests, wanted)))
    gc.freeze()
    gc.disable()  # a collection would fall into one of the runs that are compared
    instrument("on")
    await loop.send(counted)
    if loop.meter is not None:
        loop.meter.fold()
    instrument("off")
    await account.close()


def instrument(state: str) -> None:
    """Switch callgrind on or off."""
    if platform.machine() == "x86_64":
        _ask_callgrind(_START if state == "on" else _STOP)
        return
    # Starting the program is counted, too, which makes two runs differ by up to 0.4 %.
    subprocess.run(
        ["callgrind_control", "--instr=" + state, str(os.getpid())],
        check=True,
        stdout=subprocess.DEVNULL,
    )


_START, _STOP = 0x43540004, 0x43540005
"""Client requests of callgrind (valgrind/callgrind.h)."""
_CLIENT_REQUEST = bytes.fromhex(
    "4889f8"  # mov rax, rdi: the request and its arguments
    "31d2"  # xor edx, edx: the answer without valgrind
    "48c1c703 48c1c70d 48c1c73d 48c1c733"  # rol rdi, 3; 13; 61; 51: valgrind knows this sequence
    "4887db"  # xchg rbx, rbx
    "4889d0 c3"  # mov rax, rdx; ret
)


def _ask_callgrind(request: int) -> None:
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(_CLIENT_REQUEST)
    arguments = (ctypes.c_uint64 * 6)(request)
    function = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(
        ctypes.addressof(ctypes.c_char.from_buffer(code))
    )
    function(ctypes.addressof(arguments))


if __name__ == "__main__":
    import uvloop

    verb, place, *others = sys.argv[1:]
    if verb == "fill":
        uvloop.run(fill(Path(place)))
    else:
        uvloop.run(count(Path(place), others[0], int(others[1]), (others[2:] or MODES[:1])[0]))
