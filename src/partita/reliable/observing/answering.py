"""What a replica answers to observers over NATS, and the questions themselves.

Every replica listens on `partita.ops.<partition>.<replica>`: only the primary knows its locks, and
only the primary can hand over. Questions and answers are MessagePack maps; fields are only added,
with defaults, because replicas and observers of two versions talk to each other.
"""

import asyncio
import logging
from typing import Literal

import msgspec

from partita.errors import NotPrimaryError, PartitaError
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.observing.facts import LockReport
from partita.reliable.observing.views import lock_report
from partita.reliable.replication.replica import Replica

logger = logging.getLogger("partita.reliable")


class Question(msgspec.Struct, frozen=True):
    """What an observer asks of a replica."""

    what: Literal["locks", "step_down"]
    limit: int = 100
    """Locks to report."""
    to: str = ""
    """The replica that becomes primary next; empty for any."""


class Refusal(msgspec.Struct, frozen=True):
    """An error of the replica."""

    code: str
    message: str
    hint: str = ""


class Reply(msgspec.Struct, frozen=True):
    """The answer of a replica."""

    locks: LockReport | None = None
    sequence: int = 0
    """The last record when the primary stopped committing."""
    epoch: int = 0
    refusal: Refusal | None = None


encode = msgspec.msgpack.Encoder(enc_hook=str).encode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
_decode_question = msgspec.msgpack.Decoder(Question).decode


def subject_of(partition: str, replica: str) -> str:
    """Return the subject on which a replica listens."""
    return f"partita.ops.{partition}.{replica}"


class Answering:
    """Answers the questions of observers about one replica."""

    def __init__(self, state: StateManager) -> None:
        self._state = state
        self._stepping = asyncio.Lock()

    async def answer(self, raw: bytes) -> bytes:
        try:
            question = _decode_question(raw)
        except msgspec.MsgspecError:
            return encode(Reply(refusal=_not_understood()))
        try:
            return encode(await self._reply(question))
        except PartitaError as error:
            return encode(Reply(refusal=Refusal(error.code, error.message, error.hint)))

    async def _reply(self, question: Question) -> Reply:
        state = self._state
        if not state.is_primary:
            raise NotPrimaryError(
                "NotPrimary",
                "This replica is not the primary any more.",
                hint="Repeat the command: another replica is primary, or will be within seconds.",
            )
        if question.what == "locks":
            return Reply(locks=lock_report(state.core, state.replica_id, limit=question.limit))
        async with self._stepping:
            replica, epoch = state.replica, state.epoch
            assert isinstance(replica, Replica)
            await replica.step_down(question.to)
            logger.warning("replica %s stepped down on request", state.replica_id)
            return Reply(sequence=state.sequence, epoch=epoch)


def _not_understood() -> Refusal:
    return Refusal(
        "InvalidRequest",
        "The replica does not understand the question.",
        "Use the same version of Partita for the command and the replicas.",
    )
