"""The members of a service and their partitions: the service's record and the heartbeats.

Both are on a stream of the service. The last message of the stream is the service's record; it
is replaced by a fenced append, so that only one of two concurrent changes succeeds. Heartbeats
are registers that expire.

    record     MessagePack map | the last entry of the map: "crc32c", 4 bytes

The checksum covers everything before its 4 bytes. Earlier versions wrote format 1 without it, and
ignore it.
"""

import contextlib
import itertools

import msgspec
from crc32c import crc32c

from partita.errors import ChecksumError, FormatVersionError, QuorumLostError, UsageError
from partita.reliable.replication.stream import NoAnswer, PublishRefused, Stream
from partita.reliable.service.assignment import Placement, assign
from partita.ticks import Clock

FORMAT = 1
MEMBER_PREFIX = "member."
ANSWER_SECONDS = 2.0
RECORDS_KEPT = 16
OPEN_ATTEMPTS = 30


class Held(msgspec.Struct, frozen=True, array_like=True):
    """The status of one partition that a member holds and can serve."""

    applied: int
    is_primary: bool


class Member(msgspec.Struct, frozen=True):
    """The heartbeat of a member."""

    address: str
    holds: dict[int, Held]


class _Format(msgspec.Struct, frozen=True):
    format: int


class ServiceRecord(msgspec.Struct, frozen=True):
    """The fixed numbers of a service, and its current placement."""

    format: int
    partitions: int
    replicas: int
    members: tuple[str, ...] = ()
    places: tuple[tuple[int, ...], ...] = ()
    """For every partition the indexes of its members, the preferred primary first."""

    @property
    def placement(self) -> Placement:
        return tuple(tuple(self.members[place] for place in group) for group in self.places)

    def with_members(self, members: list[str]) -> "ServiceRecord":
        """Return the record with the partitions assigned to these members."""
        placement = assign(members, self.partitions, self.replicas, self.placement)
        place_of = {member: place for place, member in enumerate(members)}
        places = tuple(tuple(place_of[member] for member in group) for group in placement)
        return msgspec.structs.replace(self, members=tuple(members), places=places)


class _CheckedRecord(ServiceRecord, frozen=True):
    crc32c: bytes = bytes(4)


_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(ServiceRecord).decode
_decode_format = msgspec.msgpack.Decoder(_Format).decode
_decode_member = msgspec.msgpack.Decoder(Member).decode


_CHECK_START = _encode("crc32c") + _encode(bytes(4))[:-4]


def encode_record(record: ServiceRecord) -> bytes:
    body = _encode(_CheckedRecord(*msgspec.structs.astuple(record)))[:-4]
    return body + crc32c(body).to_bytes(4)


def decode_record(raw: bytes) -> ServiceRecord:
    """Parse a record; refuse a newer one, whose fields would be lost when it is written again."""
    has_checksum = raw[:-4].endswith(_CHECK_START)
    if has_checksum and crc32c(raw[:-4]).to_bytes(4) != raw[-4:]:
        raise _damaged()
    try:
        number = _decode_format(raw).format
        if number == FORMAT:
            return _decode_record(raw)
    except msgspec.MsgspecError as error:
        raise _damaged() from error
    if has_checksum and number > FORMAT:
        raise FormatVersionError(
            "FormatVersion",
            f"The record of the service has format {number}; this version reads {FORMAT}.",
            facts={"format": number},
            hint="Upgrade this process: another one of the service has a newer version.",
        )
    raise _damaged()  # a newer version would have written a checksum


class Membership:
    """The view of a service in one process; `id` is its own member id."""

    def __init__(self, stream: Stream, clock: Clock, name: str) -> None:
        self.id = clock.random_bytes(6).hex()
        self.members: dict[str, Member] = {}
        """The live members at the last look."""
        self._stream = stream
        self._clock = clock
        self._name = name
        self._sequence = 0
        self._record: ServiceRecord | None = None
        self._revision = 0

    @property
    def record(self) -> ServiceRecord:
        assert self._record is not None, "opened first"
        return self._record

    async def open(self, partitions: int | None, replicas: int) -> None:
        """Read the service's record, or create the service."""
        for attempt in itertools.count(1):
            try:
                if await self.refresh():
                    break
                if partitions is None:
                    raise _unknown(self._name)
                await self._append(ServiceRecord(FORMAT, partitions, replicas))
            except NoAnswer as error:
                if attempt == OPEN_ATTEMPTS:
                    raise QuorumLostError(
                        "QuorumLost",
                        "The record of the service cannot be read because too few nodes answer.",
                        facts={"service": self._name},
                        hint="Start the NATS nodes that are down; a majority is needed.",
                    ) from error
        found = self.record
        if (partitions or found.partitions, replicas) != (found.partitions, found.replicas):
            raise fixed(self._name, (partitions, replicas), (found.partitions, found.replicas))

    async def refresh(self) -> bool:
        """Read the newest record; return False if there is none. Raises NoAnswer."""
        _, last = await self._stream.bounds(timeout=ANSWER_SECONDS)
        if last > self._sequence:
            raw = await self._stream.get(last, timeout=ANSWER_SECONDS)
            if raw is None:
                raise NoAnswer("The record is not readable yet.")
            self._record, self._sequence = decode_record(raw), last
        return self._record is not None

    async def share_out(self) -> None:
        """Write a record for the live members. Raises NoAnswer."""
        await self._append(self.record.with_members(sorted(self.members)))
        await self.refresh()

    async def _append(self, record: ServiceRecord) -> None:
        """Append after the last known record; another member's record there is accepted."""
        with contextlib.suppress(PublishRefused):
            stored = await self._stream.publish(
                encode_record(record),
                epoch=0,
                expected=self._sequence,
                message_id=self._clock.new_id(),
                timeout=ANSWER_SECONDS,
            )
            if stored > RECORDS_KEPT:
                await self._stream.purge(stored - RECORDS_KEPT, timeout=ANSWER_SECONDS)

    async def beat(self, member: Member) -> None:
        """Write the heartbeat of this member. Raises NoAnswer."""
        key, value = MEMBER_PREFIX + self.id, _encode(member)
        for _ in range(2):
            revision = await self._stream.write_register(
                key, value, revision=self._revision, timeout=ANSWER_SECONDS
            )
            if revision is not None:
                self._revision = revision
                return
            found = await self._stream.read_register(key, timeout=ANSWER_SECONDS)
            self._revision = 0 if found is None else found.revision

    async def read_members(self) -> None:
        """Read the live members. Raises NoAnswer."""
        found = await self._stream.list_registers(MEMBER_PREFIX, timeout=ANSWER_SECONDS)
        self.members = {
            key.removeprefix(MEMBER_PREFIX): _decode_member(beat.value)
            for key, beat in sorted(found.items())
        }

    async def leave(self) -> None:
        """Remove the heartbeat, so that other members need not wait until it expires."""
        if self._revision:
            key = MEMBER_PREFIX + self.id
            with contextlib.suppress(NoAnswer):
                await self._stream.remove_register(
                    key, revision=self._revision, timeout=ANSWER_SECONDS
                )

    def primary_address(self, partition: int) -> str:
        """Return the address of the primary at the last look, "" if it is not known."""
        for member in self.members.values():
            held = member.holds.get(partition)
            if held is not None and held.is_primary:
                return member.address
        return ""


def fixed(name: str, asked: tuple[int | None, int], found: tuple[object, object]) -> UsageError:
    """Return the error for a service that was created with other numbers."""
    return UsageError(
        "PartitionCountFixed",
        f"The service {name!r} was created with partitions={found[0]} and replicas={found[1]};"
        " they cannot be changed, because the hash of a key decides its partition.",
        facts={"partitions": asked[0], "replicas": asked[1]},
        hint="Open it with these numbers. To change them, create a service of another name and"
        " copy the state.",
    )


def _damaged() -> ChecksumError:
    return ChecksumError(
        "ChecksumMismatch",
        "The record of the service is damaged.",
        hint="Check the disks of the NATS nodes, and restore their streams from a backup.",
    )


def _unknown(name: str) -> UsageError:
    return UsageError(
        "ServiceNotFound",
        f"There is no service {name!r} yet.",
        facts={"service": name},
        hint="Pass partitions=... to create it, or check the name and the address.",
    )
