"""The Stream contract, which the quorum log needs; JetStream and the simulator implement it.

A stream stores messages 1, 2, 3, … durably on a quorum of nodes. It has a small register (keys
with revisions that expire) for leases and heartbeats, and a file store for checkpoints. Only
`publish` proves that this process is up to date: a read may be answered by a node that is cut off
and does not know it yet.
"""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec


class PublishRefused(Exception):  # noqa: N818 - an answer that the log handles
    """The stream's last sequence is not the expected one; nothing was stored by this attempt."""


class NoAnswer(Exception):  # noqa: N818 - an answer that the log handles
    """No answer came in time, or no node answers: the request may have taken effect."""


class Register(msgspec.Struct, frozen=True):
    """The value of one key of the register, with its revision."""

    value: bytes
    revision: int


class Stream(Protocol):
    """A connection to one partition's stream, register and files."""

    message_bytes_max: int

    async def publish(
        self, raw: bytes, *, epoch: int, expected: int, message_id: str, timeout: float
    ) -> int:
        """Store at `expected` + 1 and return the sequence when a quorum has synced it.

        A message id that was stored in the last ten minutes is not stored again: its first
        sequence is returned, whatever `expected` is. `epoch` names the subject, which a `seal`
        may have closed (then NoAnswer or PublishRefused). Raises PublishRefused, NoAnswer.
        """
        ...

    async def get(self, sequence: int, *, timeout: float) -> bytes | None:
        """Return one message, None if the answering node does not have it. Raises NoAnswer."""
        ...

    async def bounds(self, *, timeout: float) -> tuple[int, int]:
        """Return the first and last sequence that one node knows, as a hint. Raises NoAnswer.

        An empty stream returns (last + 1, last).
        """
        ...

    def messages(self, start: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield stored messages from `start` in order without a gap.

        It waits for new messages, survives reconnects and changes of leader, and ends when the
        stream is closed. A `start` below the first stored sequence raises NotReadableError.
        """
        ...

    async def seal(self, epoch: int, *, timeout: float) -> None:
        """Accept only this epoch's subject from now on, besides the fence."""
        ...

    async def purge(self, below: int, *, timeout: float) -> None:
        """Remove all messages below a sequence. Raises NoAnswer."""
        ...

    async def read_register(self, key: str, *, timeout: float) -> Register | None: ...

    async def list_registers(self, prefix: str, *, timeout: float) -> dict[str, Register]:
        """Return all live keys that start with `prefix`."""
        ...

    async def write_register(
        self, key: str, value: bytes, *, revision: int, timeout: float
    ) -> int | None:
        """Write if the key's revision is still `revision` (0: absent); otherwise return None.

        The key expires after the register's time to live unless it is written again.
        """
        ...

    async def remove_register(self, key: str, *, revision: int, timeout: float) -> None:
        """Remove the key if it still has this revision; otherwise do nothing."""
        ...

    async def put_file(self, name: str, content: bytes, *, timeout: float) -> None:
        """Store a file durably, replacing an existing one."""
        ...

    async def get_file(self, name: str, *, timeout: float) -> bytes | None: ...

    async def close(self) -> None: ...
