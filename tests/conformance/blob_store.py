"""The contract of blobs on a store, as a suite that every way to keep them subclasses.

Nothing here knows how content is kept. A subclass says how to open a store, and whether a
second opening finds what the first one left.
"""

import asyncio
import base64
import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any, ClassVar

import pytest

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules import limits
from partita.blobs.rules.checksums import sums_of
from partita.blobs.rules.model import (
    Blob,
    BlobName,
    BlobPrefix,
    Block,
    BlockChoice,
    Conditions,
    Declared,
    Headers,
    LeaseRequest,
    Listing,
    PageRange,
    Properties,
    Retention,
    SequenceConditions,
    Terms,
    etag_of,
)
from partita.clock import ManualClock
from partita.errors import PartitaError
from partita.policies import Policy

HERE = "photos"
LEASE_A = "11111111-1111-4111-8111-111111111111"
LEASE_B = "22222222-2222-4222-8222-222222222222"
LONG = bytes(range(256)) * 1200
"""Longer than what lies in a row: it goes into a file."""


def blob(name: str, snapshot: str | None = None, container: str = HERE) -> BlobName:
    return BlobName(container, name, snapshot)


def block_id(number: int) -> str:
    return base64.b64encode(f"block-{number:04}".encode()).decode()


def latest(*numbers: int) -> list[BlockChoice]:
    return [BlockChoice("Latest", block_id(number)) for number in numbers]


async def in_parts(content: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for place in range(0, len(content), size):
        await asyncio.sleep(0)
        yield content[place : place + size]


async def code_of(work: Coroutine[Any, Any, Any]) -> str:
    with pytest.raises(PartitaError) as refused:
        await work
    return refused.value.code


def names_of(listing: Listing) -> list[str]:
    return [
        item.name if isinstance(item, BlobPrefix) or item.snapshot is None else f"{item.name}@"
        for item in listing.items
    ]


def kinds_of(listing: Listing) -> list[str]:
    """Describe the blobs of a listing: current or not, a snapshot, a version, deleted."""
    kinds = []
    for item in listing.items:
        assert isinstance(item, Blob)
        words = [
            "snapshot" if item.snapshot else "version" if item.version else "blob",
            "current" if item.is_current else "",
            "deleted" if item.deleted_at else "",
            "only versions" if item.has_only_versions else "",
        ]
        kinds.append(" ".join(filter(None, words)))
    return kinds


def metadata_of(found: Blob) -> dict[str, str]:
    return dict(found.metadata)


class BlobStoreConformance(ABC):
    is_durable: ClassVar[bool] = True
    stores_nul: ClassVar[bool] = True
    """Whether a name may contain U+0000."""
    engine: BlobEngine
    folder: Path
    clock: ManualClock

    @abstractmethod
    async def open_engine(self) -> BlobEngine: ...

    @abstractmethod
    async def close_engine(self) -> None: ...

    @abstractmethod
    async def collect(self) -> None:
        """Reclaim the space of what was deleted."""

    @abstractmethod
    async def forget_stale(self) -> None:
        """Remove the blocks that were staged too long ago."""

    @abstractmethod
    def rows_of(self, table: str) -> int:
        """Count the rows of a table of the store."""

    @abstractmethod
    async def contents(self) -> list[bytes]:
        """List the contents that are kept outside of rows."""

    @pytest.fixture(autouse=True)
    async def _opened(self, tmp_path: Path) -> AsyncIterator[None]:
        self.folder = tmp_path / "account"
        self.clock = ManualClock()
        self.engine = await self.open_engine()
        await self.engine.containers.create_container(HERE)
        yield
        await self.close_engine()

    async def reopen(self) -> None:
        await self.close_engine()
        self.engine = await self.open_engine()

    async def read(
        self, name: BlobName, first: int | None = None, last: int | None = None
    ) -> bytes:
        opened = await self.engine.open_blob(name, first=first, last=last)
        try:
            content = b"".join([part async for part in opened.content])
        finally:
            await opened.content.close()
        assert len(content) == opened.content.length == opened.last - opened.first + 1
        return content

    async def lease(self, name: str, seconds: int = 15, lease_id: str = LEASE_A) -> None:
        await self.engine.lease_blob(
            blob(name), LeaseRequest("acquire", proposed_id=lease_id, duration=seconds)
        )

    # Containers

    async def test_a_container_is_found_by_its_name(self) -> None:
        made = await self.engine.containers.create_container(
            "docs", metadata={"Of": "Ken"}, access="blob"
        )

        found = await self.engine.containers.get_container("docs")

        assert found == made
        assert (found.metadata, found.access, found.lease.state) == (
            {"Of": "Ken"},
            "blob",
            "available",
        )
        assert found.etag == etag_of(found.changed_at)

    async def test_a_name_is_taken_once(self) -> None:
        assert (
            await code_of(self.engine.containers.create_container(HERE)) == "ContainerAlreadyExists"
        )

    @pytest.mark.parametrize(
        ("name", "code"),
        [
            ("ab", "OutOfRangeInput"),
            ("a" * 64, "OutOfRangeInput"),
            ("Photos", "InvalidResourceName"),
            ("a--b", "InvalidResourceName"),
            ("-ab", "InvalidResourceName"),
            ("ab-", "InvalidResourceName"),
            ("a/b", "InvalidResourceName"),
            ("$other", "InvalidResourceName"),
        ],
    )
    async def test_a_container_name_has_rules(self, name: str, code: str) -> None:
        assert await code_of(self.engine.containers.create_container(name)) == code
        assert await code_of(self.engine.containers.get_container(name)) == code
        assert await code_of(self.engine.put_blob(blob("a", container=name), b"")) == code

    async def test_the_special_containers_have_a_dollar(self) -> None:
        for name in ("$root", "$web", "$logs"):
            await self.engine.containers.create_container(name)

    async def test_metadata_policies_and_access_change_the_etag_of_a_container(self) -> None:
        first = await self.engine.containers.get_container(HERE)

        second = await self.engine.containers.set_container_metadata(HERE, {"a": "1"})
        third = await self.engine.containers.set_policies(
            HERE, [Policy("p", permission="r")], access="blob"
        )

        assert first.changed_at < second.changed_at < third.changed_at
        found = await self.engine.containers.get_container(HERE)
        assert found.policies == [Policy("p", None, None, "r")]
        assert (found.access, found.metadata) == ("blob", {"a": "1"})

    async def test_setting_policies_without_access_makes_a_container_private(self) -> None:
        await self.engine.containers.set_policies(HERE, [], access="container")

        await self.engine.containers.set_policies(HERE, [])

        assert (await self.engine.containers.get_container(HERE)).access is None

    async def test_a_blob_or_a_lease_does_not_change_the_etag_of_its_container(self) -> None:
        before = await self.engine.containers.get_container(HERE)

        await self.engine.put_blob(blob("a"), b"1")
        outcome = await self.engine.containers.lease_container(
            HERE, LeaseRequest("acquire", duration=-1)
        )

        assert (await self.engine.containers.get_container(HERE)).changed_at == before.changed_at
        assert outcome.etag == before.etag

    async def test_a_deleted_container_is_gone_with_its_blobs_and_its_name_is_free(self) -> None:
        await self.engine.put_blob(blob("a"), b"1")
        await self.engine.block_blobs.put_block(blob("b"), block_id(1), b"2")

        await self.engine.containers.delete_container(HERE)

        assert await code_of(self.engine.containers.get_container(HERE)) == "ContainerNotFound"
        assert await code_of(self.engine.get_blob(blob("a"))) == "ContainerNotFound"
        await self.engine.containers.create_container(HERE)
        assert names_of(await self.engine.containers.list_blobs(HERE)) == []
        assert await code_of(self.engine.get_blob(blob("a"))) == "BlobNotFound"
        assert await code_of(self.engine.block_blobs.get_block_list(blob("b"))) == "BlobNotFound"

    async def test_a_leased_container_is_deleted_only_by_who_holds_it(self) -> None:
        await self.engine.containers.lease_container(
            HERE, LeaseRequest("acquire", proposed_id=LEASE_A, duration=15)
        )

        assert await code_of(self.engine.containers.delete_container(HERE)) == "LeaseIdMissing"
        assert (
            await code_of(self.engine.containers.delete_container(HERE, terms=Terms(LEASE_B)))
            == "LeaseIdMismatchWithContainerOperation"
        )
        await self.engine.containers.set_container_metadata(HERE, {})
        await self.engine.put_blob(blob("a"), b"not protected")
        self.clock.advance(16)
        assert (
            await code_of(self.engine.containers.delete_container(HERE, terms=Terms(LEASE_A)))
            == "LeaseLost"
        )
        await self.engine.containers.delete_container(HERE)

    async def test_containers_have_conditions_on_time_only(self) -> None:
        changed = (await self.engine.containers.get_container(HERE)).changed_at

        assert (
            await code_of(
                self.engine.containers.set_container_metadata(
                    HERE, {}, terms=Terms(conditions=Conditions(if_modified_since=changed))
                )
            )
            == "ConditionNotMet"
        )
        assert (
            await code_of(
                self.engine.containers.delete_container(
                    HERE, terms=Terms(conditions=Conditions(if_match=("x",)))
                )
            )
            == "ConditionHeadersNotSupported"
        )
        await self.engine.containers.delete_container(
            HERE, terms=Terms(conditions=Conditions(if_unmodified_since=changed))
        )

    async def test_containers_are_listed_in_order_and_pages(self) -> None:
        for name in ("abc", "b-1", "b-2", "b-3", "zoo"):
            await self.engine.containers.create_container(name)

        first = await self.engine.containers.list_containers(prefix="b", limit=2)
        assert first.next_marker is not None
        second = await self.engine.containers.list_containers(
            prefix="b", marker=first.next_marker, limit=2
        )

        assert [each.name for each in first.items] == ["b-1", "b-2"]
        assert [each.name for each in second.items] == ["b-3"]
        assert second.next_marker is None

    # Whole blobs

    @pytest.mark.parametrize("content", [b"", b"x", LONG[:65536], LONG[:65537], LONG])
    @pytest.mark.parametrize("is_streamed", [False, True])
    async def test_what_was_put_is_read(self, content: bytes, is_streamed: bool) -> None:
        written = await self.engine.put_blob(
            blob("a"), in_parts(content) if is_streamed else content
        )

        assert await self.read(blob("a")) == content
        found = await self.engine.get_blob(blob("a"))
        assert (found.length, found.kind, found.etag) == (len(content), "BlockBlob", written.etag)
        assert found.headers.content_md5 == written.md5 == hashlib.md5(content).digest()
        assert found.headers.content_type == "application/octet-stream"

    async def test_ranges_of_long_and_short_blobs_are_read(self) -> None:
        for content in (b"0123456789", LONG):
            await self.engine.put_blob(blob("a"), content)
            size = len(content)
            ranges = [(0, 0), (0, 4), (3, 7), (size - 1, size - 1), (size - 3, size + 100)]
            ranges += [(65535, 65536), (65536, 70000), (1, size - 2)] if size > 70000 else []
            for first, last in ranges:
                assert await self.read(blob("a"), first, last) == content[first : last + 1]
            assert await self.read(blob("a"), 2) == content[2:]

    async def test_a_range_behind_the_end_is_refused_with_the_length(self) -> None:
        await self.engine.put_blob(blob("a"), b"12345")
        await self.engine.put_blob(blob("empty"), b"")

        for name, first, length in (("a", 5, 5), ("empty", 0, 0)):
            with pytest.raises(PartitaError) as refused:
                await self.engine.open_blob(blob(name), first=first)
            assert (refused.value.code, refused.value.facts["length"]) == ("InvalidRange", length)
        assert await self.read(blob("empty")) == b""

    async def test_the_md5_of_a_short_range_is_given_on_demand(self) -> None:
        await self.engine.put_blob(blob("a"), LONG)

        opened = await self.engine.open_blob(blob("a"), first=10, last=70000, wants_md5=True)

        assert opened.md5 == hashlib.md5(LONG[10:70001]).digest()
        assert b"".join([part async for part in opened.content]) == LONG[10:70001]
        await opened.content.close()

    async def test_the_crc64_of_a_short_range_is_given_on_demand(self) -> None:
        await self.engine.put_blob(blob("a"), LONG)

        opened = await self.engine.open_blob(blob("a"), first=10, last=70000, wants_crc64=True)

        assert opened.md5 is None
        assert opened.crc64 == sums_of(LONG[10:70001], wants_md5=False).crc64
        assert b"".join([part async for part in opened.content]) == LONG[10:70001]
        await opened.content.close()

    async def test_properties_come_back_as_they_were_given(self) -> None:
        headers = Headers("text/plain", "gzip", "de", "attachment", "no-cache")
        properties = Properties(headers, {"UP": "UPval", "low": ""}, {"k": "v"}, "Cool")

        await self.engine.put_blob(blob("a"), b"1", properties=properties)

        found = await self.engine.get_blob(blob("a"))
        assert found.headers.content_encoding == "gzip"
        assert (found.metadata, found.tags, found.tier) == (
            {"UP": "UPval", "low": ""},
            {"k": "v"},
            "Cool",
        )

    async def test_an_overwrite_drops_everything_but_snapshots_and_the_lease(self) -> None:
        properties = Properties(Headers("text/plain"), {"a": "1"}, {"k": "v"}, "Cool")
        await self.engine.put_blob(blob("a"), b"old", properties=properties)
        kept = await self.engine.snapshot(blob("a"))
        await self.lease("a", -1)
        await self.engine.block_blobs.put_block(blob("a"), block_id(1), b"staged", lease_id=LEASE_A)

        await self.engine.put_blob(blob("a"), b"new", terms=Terms(LEASE_A))

        found = await self.engine.get_blob(blob("a"))
        assert (found.metadata, found.tags, found.tier) == ({}, {}, None)
        assert found.lease.state == "leased"
        assert (await self.engine.block_blobs.get_block_list(blob("a"))).uncommitted == []
        assert await self.read(blob("a", kept.snapshot)) == b"old"

    async def test_content_that_is_not_what_its_sender_says_is_refused(self) -> None:
        wrong = bytes(16)
        for content in (b"12345", LONG):
            declared = Declared(md5=wrong)
            put = self.engine.put_blob(blob("a"), content, declared=declared)
            assert await code_of(put) == "Md5Mismatch"
            put = self.engine.put_blob(
                blob("a"), content, properties=Properties(Headers(content_md5=wrong))
            )
            assert await code_of(put) == "Md5Mismatch"
            put = self.engine.put_blob(blob("a"), content, declared=Declared(crc64=bytes(8)))
            assert await code_of(put) == "Crc64Mismatch"
        assert await code_of(self.engine.get_blob(blob("a"))) == "BlobNotFound"

    async def test_checksums_of_the_protocol_are_accepted(self) -> None:
        declared = Declared(hashlib.md5(b"hello world").digest(), base64.b64decode("vo7q9sPVKY0="))

        written = await self.engine.put_blob(blob("a"), b"hello world", declared=declared)

        assert Declared(written.md5, written.crc64) == declared

    async def test_every_change_has_a_new_etag_though_time_stands_still(self) -> None:
        etags = [
            (await self.engine.put_blob(blob("a"), b"1")).etag,
            (await self.engine.put_blob(blob("a"), b"1")).etag,
            (await self.engine.set_metadata(blob("a"), {})).etag,
            (await self.engine.set_headers(blob("a"), Headers())).etag,
        ]

        assert sorted(set(etags)) == etags

    async def test_tiers_tags_leases_and_snapshots_leave_the_etag(self) -> None:
        written = await self.engine.put_blob(blob("a"), b"1")

        assert not await self.engine.set_tier(blob("a"), "Cool")
        await self.engine.set_tags(blob("a"), {"k": "v"})
        await self.lease("a")
        taken = await self.engine.snapshot(blob("a"))

        found = await self.engine.get_blob(blob("a"))
        assert found.etag == taken.etag == written.etag
        assert (found.tier, found.tags) == ("Cool", {"k": "v"})
        assert await self.engine.get_tags(blob("a")) == {"k": "v"}

    async def test_an_archived_blob_cannot_be_read_until_it_is_back(self) -> None:
        await self.engine.put_blob(blob("a"), b"1")
        await self.engine.set_tier(blob("a"), "Archive")
        assert await code_of(self.engine.open_blob(blob("a"))) == "BlobArchived"

        assert await self.engine.set_tier(blob("a"), "Hot")

        found = await self.engine.get_blob(blob("a"))
        assert (found.tier, found.rehydrates_to) == ("Archive", "Hot")
        assert await code_of(self.engine.open_blob(blob("a"))) == "BlobArchived"
        self.clock.advance(60)
        assert await self.read(blob("a")) == b"1"
        assert (await self.engine.get_blob(blob("a"))).rehydrates_to is None

    @pytest.mark.parametrize(
        "name",
        ["../../etc/passwd", "C:\\x", "a//b/", ".", "%2e%2e%2f", "e\u0301", "\x00\x01", "\uffff"],
    )
    async def test_any_text_is_a_blob_name(self, name: str) -> None:
        if "\0" in name and not self.stores_nul:
            assert await code_of(self.engine.put_blob(blob(name), LONG)) == "InvalidUri"
            assert await code_of(self.engine.get_blob(blob(name))) == "BlobNotFound"
            return
        await self.engine.put_blob(blob(name), LONG)

        assert await self.read(blob(name)) == LONG
        assert names_of(await self.engine.containers.list_blobs(HERE)) == [name]

    @pytest.mark.parametrize("name", ["", "x" * 1025, "/".join("x" * 255), "\ud800"])
    async def test_a_blob_name_has_limits(self, name: str) -> None:
        assert await code_of(self.engine.put_blob(blob(name), b"")) in (
            "OutOfRangeInput",
            "InvalidUri",
        )

    async def test_a_missing_blob_and_a_missing_container_are_told_apart(self) -> None:
        for name, code in (
            (blob("a"), "BlobNotFound"),
            (blob("a", container="nobody"), "ContainerNotFound"),
        ):
            assert await code_of(self.engine.get_blob(name)) == code
            assert await code_of(self.engine.open_blob(name)) == code
            assert await code_of(self.engine.delete_blob(name)) == code
            assert await code_of(self.engine.set_metadata(name, {})) == code
            assert await code_of(self.engine.append_blobs.append_block(name, b"1")) == code

    # Conditions

    async def test_only_if_none_is_there(self) -> None:
        if_none = Conditions(if_none_match=("*",))
        await self.engine.put_blob(blob("a"), b"1", terms=Terms(conditions=if_none))

        put = self.engine.put_blob(blob("a"), b"2", terms=Terms(conditions=if_none))
        assert await code_of(put) == "BlobAlreadyExists"
        put = self.engine.block_blobs.put_block_list(blob("a"), [], terms=Terms(conditions=if_none))
        assert await code_of(put) == "BlobAlreadyExists"
        assert await self.read(blob("a")) == b"1"

    async def test_who_proves_a_lease_overwrites_although_there_is_one(self) -> None:
        if_none = Conditions(if_none_match=("*",))
        await self.engine.put_blob(blob("a"), b"1")
        await self.lease("a")

        await self.engine.put_blob(blob("a"), b"2", terms=Terms(LEASE_A, if_none))
        self.clock.advance(16)
        put = self.engine.put_blob(blob("a"), b"3", terms=Terms(LEASE_A, if_none))

        assert await code_of(put) == "LeaseLost"
        assert await self.read(blob("a")) == b"2"

    async def test_a_stale_etag_changes_nothing(self) -> None:
        old = (await self.engine.put_blob(blob("a"), b"1")).etag
        new = (await self.engine.put_blob(blob("a"), b"2")).etag
        stale = Conditions(if_match=(old,))

        for work in (
            self.engine.put_blob(blob("a"), b"3", terms=Terms(conditions=stale)),
            self.engine.delete_blob(blob("a"), terms=Terms(conditions=stale)),
            self.engine.set_metadata(blob("a"), {"x": "y"}, terms=Terms(conditions=stale)),
            self.engine.snapshot(blob("a"), terms=Terms(conditions=stale)),
            self.engine.open_blob(blob("a"), terms=Terms(conditions=stale)),
        ):
            assert await code_of(work) == "ConditionNotMet"

        assert await self.read(blob("a")) == b"2"
        await self.engine.delete_blob(
            blob("a"), terms=Terms(conditions=Conditions(if_match=("0x1", new)))
        )

    async def test_a_read_that_wants_something_newer_is_told_that_nothing_is(self) -> None:
        written = await self.engine.put_blob(blob("a"), b"1")

        for conditions in (
            Conditions(if_none_match=(written.etag,)),
            Conditions(if_modified_since=written.changed_at),
        ):
            with pytest.raises(PartitaError) as refused:
                await self.engine.get_blob(blob("a"), terms=Terms(conditions=conditions))
            assert refused.value.code == "ConditionNotMet"
            assert refused.value.facts == {"unchanged": True}

    async def test_tags_are_conditions(self) -> None:
        await self.engine.put_blob(blob("a"), b"1", properties=Properties(tags={"k": "v"}))

        await self.engine.get_blob(
            blob("a"), terms=Terms(conditions=Conditions(if_tags="\"k\" = 'v'"))
        )
        refused = self.engine.get_blob(
            blob("a"), terms=Terms(conditions=Conditions(if_tags="\"k\" = 'w'"))
        )
        assert await code_of(refused) == "ConditionNotMet"

    # Leases

    async def test_a_leased_blob_is_changed_only_by_who_holds_it(self) -> None:
        await self.engine.put_blob(blob("a"), b"1")
        await self.lease("a")

        for lease_id, code in (
            (None, "LeaseIdMissing"),
            (LEASE_B, "LeaseIdMismatchWithBlobOperation"),
        ):
            for work in (
                self.engine.put_blob(blob("a"), b"2", terms=Terms(lease_id)),
                self.engine.put_blob(blob("a"), in_parts(LONG), terms=Terms(lease_id)),
                self.engine.block_blobs.put_block(blob("a"), block_id(1), b"2", lease_id=lease_id),
                self.engine.block_blobs.put_block_list(blob("a"), [], terms=Terms(lease_id)),
                self.engine.set_metadata(blob("a"), {}, terms=Terms(lease_id)),
                self.engine.set_tags(blob("a"), {}, terms=Terms(lease_id)),
                self.engine.delete_blob(blob("a"), terms=Terms(lease_id)),
            ):
                assert await code_of(work) == code
        assert await self.read(blob("a")) == b"1"
        assert (
            await code_of(self.engine.get_blob(blob("a"), terms=Terms(LEASE_B)))
            == "LeaseIdMismatchWithBlobOperation"
        )
        await self.engine.set_metadata(blob("a"), {"k": "v"}, terms=Terms(LEASE_A))
        await self.engine.delete_blob(blob("a"), terms=Terms(LEASE_A))

    async def test_a_lease_ends_by_itself(self) -> None:
        await self.engine.put_blob(blob("a"), b"1")
        await self.lease("a", 15)
        self.clock.advance(14.9)
        assert await code_of(self.engine.delete_blob(blob("a"))) == "LeaseIdMissing"

        self.clock.advance(0.2)

        assert (await self.engine.get_blob(blob("a"))).lease.state == "expired"
        await self.engine.put_blob(blob("a"), b"2")
        assert (await self.engine.get_blob(blob("a"))).lease.state == "available"

    async def test_a_leap_of_the_wall_clock_neither_ends_nor_extends_a_lease(self) -> None:
        await self.engine.put_blob(blob("a"), b"1")
        for seconds in (60, 30 * 86_400, -3600):
            await self.lease("a", 15)

            self.clock.jump(seconds)

            assert await code_of(self.engine.delete_blob(blob("a"))) == "LeaseIdMissing"
            self.clock.advance(15.1)
            assert (await self.engine.get_blob(blob("a"))).lease.state == "expired"
            self.clock.jump(-seconds)

    async def test_a_lease_of_a_missing_blob_cannot_be_proved(self) -> None:
        put = self.engine.put_blob(blob("a"), b"1", terms=Terms(LEASE_A))

        assert await code_of(put) == "LeaseNotPresentWithBlobOperation"

    # Blocks

    async def test_a_block_list_is_the_content(self) -> None:
        for number in (1, 2, 3):
            await self.engine.block_blobs.put_block(
                blob("a"), block_id(number), LONG[: number * 40_000]
            )

        await self.engine.block_blobs.put_block_list(blob("a"), latest(3, 1, 1))

        expected = LONG[:120_000] + LONG[:40_000] * 2
        assert await self.read(blob("a")) == expected
        assert await self.read(blob("a"), 119_990, 170_000) == expected[119_990:170_001]
        found = await self.engine.block_blobs.get_block_list(blob("a"))
        assert found.committed == [
            Block(block_id(3), 120_000),
            Block(block_id(1), 40_000),
            Block(block_id(1), 40_000),
        ]
        assert found.uncommitted == []
        assert found.blob.headers.content_md5 is None

    async def test_a_list_may_take_committed_and_staged_blocks(self) -> None:
        await self.engine.block_blobs.put_block(blob("a"), block_id(1), b"one,")
        await self.engine.block_blobs.put_block(blob("a"), block_id(2), b"two,")
        await self.engine.block_blobs.put_block_list(blob("a"), latest(1, 2))
        await self.engine.block_blobs.put_block(blob("a"), block_id(1), b"new,")

        await self.engine.block_blobs.put_block_list(
            blob("a"),
            [
                BlockChoice("Committed", block_id(1)),
                BlockChoice("Uncommitted", block_id(1)),
                BlockChoice("Latest", block_id(1)),
                BlockChoice("Latest", block_id(2)),
            ],
        )

        assert await self.read(blob("a")) == b"one,new,new,two,"

    async def test_a_list_with_an_unknown_block_changes_nothing(self) -> None:
        await self.engine.block_blobs.put_block(blob("a"), block_id(1), b"one")

        commit = self.engine.block_blobs.put_block_list(blob("a"), latest(1, 2))
        assert await code_of(commit) == "InvalidBlockList"

        found = await self.engine.block_blobs.get_block_list(blob("a"))
        assert (found.uncommitted, found.blob.is_committed) == ([Block(block_id(1), 3)], False)

    async def test_staged_blocks_alone_are_no_blob(self) -> None:
        await self.engine.block_blobs.put_block(blob("a"), block_id(1), b"one")

        assert await code_of(self.engine.get_blob(blob("a"))) == "BlobNotFound"
        assert await code_of(self.engine.delete_blob(blob("a"))) == "BlobNotFound"
        assert names_of(await self.engine.containers.list_blobs(HERE)) == []
        listing = await self.engine.containers.list_blobs(HERE, include={"uncommittedblobs"})
        assert names_of(listing) == ["a"]
        await self.engine.put_blob(
            blob("a"), b"1", terms=Terms(conditions=Conditions(if_none_match=("*",)))
        )

    async def test_an_empty_list_is_an_empty_blob(self) -> None:
        await self.engine.block_blobs.put_block_list(blob("a"), [])

        assert await self.read(blob("a")) == b""

    async def test_a_block_staged_again_counts(self) -> None:
        await self.engine.block_blobs.put_block(blob("a"), block_id(1), b"first")
        await self.engine.block_blobs.put_block(blob("a"), block_id(1), LONG)

        await self.engine.block_blobs.put_block_list(blob("a"), latest(1))

        assert await self.read(blob("a")) == LONG

    async def test_block_ids_have_one_length_and_are_base64(self) -> None:
        await self.engine.block_blobs.put_block(blob("a"), block_id(1), b"one")

        for identity, code in (
            ("MQ==", "InvalidBlobOrBlock"),
            ("no base64", "InvalidQueryParameterValue"),
            ("", "InvalidQueryParameterValue"),
            (base64.b64encode(bytes(65)).decode(), "InvalidQueryParameterValue"),
        ):
            assert (
                await code_of(self.engine.block_blobs.put_block(blob("a"), identity, b"2")) == code
            )
        await self.engine.block_blobs.put_block_list(blob("a"), latest(1))
        assert (
            await code_of(self.engine.block_blobs.put_block(blob("a"), "MQ==", b"2"))
            == "InvalidBlobOrBlock"
        )

    async def test_only_so_many_blocks_are_staged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "BLOCKS_STAGED_MAX", 3)
        for number in (1, 2, 2, 2, 3):
            await self.engine.block_blobs.put_block(blob("a"), block_id(number), b"x")

        more = self.engine.block_blobs.put_block(blob("a"), block_id(4), b"x")
        assert await code_of(more) == "BlockCountExceedsLimit"
        await self.engine.block_blobs.put_block_list(blob("a"), latest(1))
        await self.engine.block_blobs.put_block(blob("a"), block_id(4), b"x")

    async def test_blocks_nobody_commits_are_forgotten_after_a_week(self) -> None:
        await self.engine.block_blobs.put_block(blob("a"), block_id(1), LONG)
        await self.engine.put_blob(blob("b"), b"kept")
        await self.engine.block_blobs.put_block(blob("b"), block_id(1), b"two")
        self.clock.advance(6 * 24 * 3600)
        await self.engine.block_blobs.put_block(blob("c"), block_id(1), b"young")
        self.clock.advance(24 * 3600 + 1)

        await self.forget_stale()
        await self.collect()

        assert await code_of(self.engine.block_blobs.get_block_list(blob("a"))) == "BlobNotFound"
        assert (await self.engine.block_blobs.get_block_list(blob("b"))).uncommitted == []
        assert len((await self.engine.block_blobs.get_block_list(blob("c"))).uncommitted) == 1
        assert await self.contents() == []

    async def test_a_forward_leap_that_is_corrected_forgets_no_block(self) -> None:
        await self.engine.block_blobs.put_block(blob("a"), block_id(1), LONG)

        self.clock.jump(30 * 24 * 3600)
        await self.forget_stale()
        await self.engine.put_blob(blob("b"), b"written during the leap")
        self.clock.jump(-30 * 24 * 3600)
        await self.forget_stale()
        await self.collect()

        await self.engine.block_blobs.put_block_list(blob("a"), latest(1))
        assert await self.read(blob("a")) == LONG

    # Appends

    async def test_appends_return_where_they_begin(self) -> None:
        await self.engine.append_blobs.create_append_blob(blob("log"))
        expected = b""
        for number, line in enumerate((b"one\n", LONG, b"two\n", b"x" * 70_000), start=1):
            appended = await self.engine.append_blobs.append_block(blob("log"), line)
            assert (appended.offset, appended.block_count) == (len(expected), number)
            expected += line

        assert await self.read(blob("log")) == expected
        size = len(LONG)
        assert await self.read(blob("log"), 2, size + 10) == expected[2 : size + 11]
        assert (await self.engine.get_blob(blob("log"))).block_count == 4

    async def test_appends_at_the_same_time_lie_one_behind_another(self) -> None:
        await self.engine.append_blobs.create_append_blob(blob("log"))

        appended = await asyncio.gather(
            *(
                self.engine.append_blobs.append_block(blob("log"), f"{n:03}".encode())
                for n in range(50)
            )
        )

        content = await self.read(blob("log"))
        for number, each in enumerate(appended):
            assert content[each.offset : each.offset + 3] == f"{number:03}".encode()
        assert sorted(each.offset for each in appended) == list(range(0, 150, 3))

    async def test_an_append_may_ask_for_its_place_and_for_a_limit(self) -> None:
        await self.engine.append_blobs.create_append_blob(blob("log"))
        await self.engine.append_blobs.append_block(blob("log"), b"12345", position=0, size_max=5)

        late = self.engine.append_blobs.append_block(blob("log"), b"6", position=0)
        assert await code_of(late) == "AppendPositionConditionNotMet"
        long = self.engine.append_blobs.append_block(blob("log"), b"6", size_max=5)
        assert await code_of(long) == "MaxBlobSizeConditionNotMet"
        assert await self.read(blob("log")) == b"12345"

    async def test_a_sealed_blob_takes_no_more(self) -> None:
        await self.engine.append_blobs.create_append_blob(blob("log"))
        await self.engine.append_blobs.append_block(blob("log"), b"12345")
        early = self.engine.append_blobs.seal(blob("log"), position=4)
        assert await code_of(early) == "AppendPositionConditionNotMet"

        await self.engine.append_blobs.seal(blob("log"), position=5)

        assert (
            await code_of(self.engine.append_blobs.append_block(blob("log"), b"6"))
            == "BlobIsSealed"
        )
        assert (await self.engine.get_blob(blob("log"))).is_sealed

    async def test_a_kind_has_its_own_operations(self) -> None:
        await self.engine.put_blob(blob("block"), b"1")
        await self.engine.append_blobs.create_append_blob(blob("append"))
        await self.engine.page_blobs.create_page_blob(blob("page"), 512)

        for work in (
            self.engine.append_blobs.append_block(blob("block"), b"2"),
            self.engine.block_blobs.put_block(blob("append"), block_id(1), b"2"),
            self.engine.block_blobs.put_block_list(blob("page"), []),
            self.engine.page_blobs.clear_pages(blob("append"), 0, 511),
            self.engine.block_blobs.get_block_list(blob("append")),
        ):
            assert await code_of(work) == "InvalidBlobType"
        await self.engine.put_blob(blob("append"), b"any kind may be overwritten")

    async def test_a_reader_sees_what_was_there_when_it_began(self) -> None:
        await self.engine.append_blobs.create_append_blob(blob("log"))
        for _ in range(20):
            await self.engine.append_blobs.append_block(blob("log"), LONG[:70_000])
        opened = await self.engine.open_blob(blob("log"))

        await self.engine.append_blobs.append_block(blob("log"), b"later")
        await self.engine.delete_blob(blob("log"))
        await self.collect()

        parts = [part async for part in opened.content]
        assert b"".join(parts) == LONG[:70_000] * 20
        await opened.content.close()
        await self.collect()
        assert await self.contents() == []
        assert self.rows_of("piece") == self.rows_of("extent") == 0

    # Snapshots and deletes

    async def test_a_snapshot_stays_as_it_was(self) -> None:
        await self.engine.put_blob(
            blob("a"), LONG, properties=Properties(metadata={"k": "v"}, tags={"t": "1"})
        )
        await self.lease("a")

        first = await self.engine.snapshot(blob("a"))
        second = await self.engine.snapshot(blob("a"), metadata={"other": "1"})
        await self.engine.put_blob(blob("a"), b"new", terms=Terms(LEASE_A))

        assert first.snapshot is not None
        assert second.snapshot is not None
        assert first.snapshot < second.snapshot
        assert await self.read(blob("a", first.snapshot)) == LONG
        assert metadata_of(await self.engine.get_blob(blob("a", first.snapshot))) == {"k": "v"}
        assert metadata_of(await self.engine.get_blob(blob("a", second.snapshot))) == {"other": "1"}
        assert (await self.engine.get_blob(blob("a", first.snapshot))).lease.state == "available"

    async def test_a_snapshot_cannot_be_written(self) -> None:
        await self.engine.put_blob(blob("a"), b"1")
        taken = await self.engine.snapshot(blob("a"))
        name = blob("a", taken.snapshot)

        for work in (
            self.engine.put_blob(name, b"2"),
            self.engine.set_metadata(name, {}),
            self.engine.lease_blob(name, LeaseRequest("acquire", duration=-1)),
            self.engine.snapshot(name),
        ):
            assert await code_of(work) == "InvalidQueryParameterValue"

    @pytest.mark.parametrize("text", ["1", "2022-13-01T00:00:00.0000000Z", "yesterday"])
    async def test_the_time_of_a_snapshot_has_a_form(self, text: str) -> None:
        await self.engine.put_blob(blob("a"), b"1")

        assert await code_of(self.engine.get_blob(blob("a", text))) == "InvalidQueryParameterValue"
        unknown = self.engine.get_blob(blob("a", "2022-01-01T00:00:00.0000000Z"))
        assert await code_of(unknown) == "BlobNotFound"

    async def test_snapshots_of_an_appended_blob_end_where_it_ended(self) -> None:
        await self.engine.append_blobs.create_append_blob(blob("log"))
        await self.engine.append_blobs.append_block(blob("log"), LONG)
        taken = await self.engine.snapshot(blob("log"))
        await self.engine.append_blobs.append_block(blob("log"), b"more")

        assert await self.read(blob("log", taken.snapshot)) == LONG
        await self.engine.copies.copy_blob(blob("log", taken.snapshot), blob("log"))
        await self.engine.append_blobs.append_block(blob("log"), b"other")
        assert await self.read(blob("log")) == LONG + b"other"
        assert await self.read(blob("log", taken.snapshot)) == LONG

    async def test_a_blob_with_snapshots_says_what_becomes_of_them(self) -> None:
        await self.engine.put_blob(blob("a"), b"1")
        await self.engine.snapshot(blob("a"))
        assert await code_of(self.engine.delete_blob(blob("a"))) == "SnapshotsPresent"

        await self.engine.delete_blob(blob("a"), snapshots="only")
        assert names_of(await self.engine.containers.list_blobs(HERE, include={"snapshots"})) == [
            "a"
        ]
        taken = await self.engine.snapshot(blob("a"))
        both = self.engine.delete_blob(blob("a", taken.snapshot), snapshots="include")
        assert await code_of(both) == "InvalidHeaderValue"
        await self.engine.delete_blob(blob("a", taken.snapshot))
        await self.engine.snapshot(blob("a"))
        await self.engine.delete_blob(blob("a"), snapshots="include")

        assert names_of(await self.engine.containers.list_blobs(HERE, include={"snapshots"})) == []

    async def test_a_delete_may_ask_for_the_time_of_the_last_tier(self) -> None:
        await self.engine.put_blob(blob("a"), b"1")
        await self.engine.set_tier(blob("a"), "Cool")
        now = self.clock.ticks()

        late = self.engine.delete_blob(
            blob("a"), terms=Terms(conditions=Conditions(if_tier_modified_since=now))
        )
        assert await code_of(late) == "ConditionNotMet"
        await self.engine.delete_blob(
            blob("a"), terms=Terms(conditions=Conditions(if_tier_unmodified_since=now))
        )

    # Copies

    async def test_a_copy_has_content_headers_and_metadata_but_no_tags(self) -> None:
        properties = Properties(Headers("text/plain"), {"k": "v"}, {"t": "1"}, "Cool")
        await self.engine.put_blob(blob("a"), LONG, properties=properties)

        copied = await self.engine.copies.copy_blob(blob("a"), blob("b"), source_address="http://a")

        found = await self.engine.get_blob(blob("b"))
        assert await self.read(blob("b")) == LONG
        assert (found.headers.content_type, found.metadata, found.tags, found.tier) == (
            "text/plain",
            {"k": "v"},
            {},
            "Cool",
        )
        assert found.copy == copied.copy
        assert (copied.copy.status, copied.copy.bytes_copied) == ("success", len(LONG))
        assert len(await self.contents()) == 1

    async def test_what_is_said_with_a_copy_replaces_what_the_source_has(self) -> None:
        await self.engine.put_blob(
            blob("a"), b"1", properties=Properties(metadata={"k": "v"}, tags={"t": "1"})
        )

        given = Properties(metadata={"other": "1"}, tags={"new": "1"})
        await self.engine.copies.copy_blob(blob("a"), blob("b"), properties=given)
        await self.engine.copies.copy_blob(blob("a"), blob("c"), copies_tags=True)

        assert metadata_of(await self.engine.get_blob(blob("b"))) == {"other": "1"}
        assert await self.engine.get_tags(blob("b")) == {"new": "1"}
        assert await self.engine.get_tags(blob("c")) == {"t": "1"}

    async def test_a_copy_lives_on_without_its_source(self) -> None:
        for number in (1, 2):
            await self.engine.block_blobs.put_block(blob("a"), block_id(number), LONG)
        await self.engine.block_blobs.put_block_list(blob("a"), latest(1, 2))
        await self.engine.copies.copy_blob(blob("a"), blob("b"))

        await self.engine.delete_blob(blob("a"))
        await self.collect()

        assert await self.read(blob("b")) == LONG * 2
        assert len((await self.engine.block_blobs.get_block_list(blob("b"))).committed) == 2

    async def test_a_write_ends_what_is_known_of_a_copy(self) -> None:
        await self.engine.put_blob(blob("a"), b"1")
        await self.engine.copies.copy_blob(blob("a"), blob("b"))
        copied = (await self.engine.get_blob(blob("b"))).copy
        assert copied is not None

        assert await code_of(self.engine.copies.abort_copy(blob("b"), copied.id)) == (
            "NoPendingCopyOperation"
        )
        assert await code_of(self.engine.copies.abort_copy(blob("b"), "other")) == "CopyIdMismatch"
        await self.engine.put_blob(blob("b"), b"2")
        assert (await self.engine.get_blob(blob("b"))).copy is None

    async def test_a_copy_respects_the_lease_and_conditions_of_both(self) -> None:
        etag = (await self.engine.put_blob(blob("a"), b"1")).etag
        await self.engine.put_blob(blob("b"), b"2")

        stale = self.engine.copies.copy_blob(
            blob("a"), blob("b"), source_terms=Terms(conditions=Conditions(if_none_match=(etag,)))
        )
        assert await code_of(stale) == "SourceConditionNotMet"
        taken = self.engine.copies.copy_blob(
            blob("a"), blob("b"), terms=Terms(conditions=Conditions(if_none_match=("*",)))
        )
        assert await code_of(taken) == "BlobAlreadyExists"
        await self.lease("b")
        assert await code_of(self.engine.copies.copy_blob(blob("a"), blob("b"))) == "LeaseIdMissing"
        finite = self.engine.copies.copy_blob(blob("a"), blob("b"), terms=Terms(LEASE_A))
        assert await code_of(finite) == "InfiniteLeaseDurationRequired"
        await self.lease("b", -1)
        await self.engine.copies.copy_blob(blob("a"), blob("b"), terms=Terms(LEASE_A))
        assert await self.read(blob("b")) == b"1"
        assert (await self.engine.get_blob(blob("b"))).lease.state == "leased"

    async def test_a_sealed_source_gives_a_sealed_copy(self) -> None:
        await self.engine.append_blobs.create_append_blob(blob("log"))
        await self.engine.append_blobs.append_block(blob("log"), b"1")
        await self.engine.copies.copy_blob(blob("log"), blob("open"))
        await self.engine.copies.copy_blob(blob("log"), blob("closed"), seals=True)
        await self.engine.append_blobs.seal(blob("log"))
        await self.engine.copies.copy_blob(blob("log"), blob("same"))

        sealed = [
            (await self.engine.get_blob(blob(name))).is_sealed
            for name in ("open", "closed", "same")
        ]

        assert sealed == [False, True, True]

    async def test_content_of_elsewhere_is_kept(self) -> None:
        await self.engine.put_blob(blob("a"), LONG, properties=Properties(metadata={"k": "v"}))
        opened = await self.engine.open_blob(blob("a"))

        copied = await self.engine.copies.put_copy(
            opened, blob("b"), source_address="http://other/a"
        )
        await opened.content.close()

        assert await self.read(blob("b")) == LONG
        assert metadata_of(await self.engine.get_blob(blob("b"))) == {"k": "v"}
        assert copied.written.md5 == hashlib.md5(LONG).digest()

    # Pages

    async def test_pages_read_as_zero_until_they_are_written(self) -> None:
        await self.engine.page_blobs.create_page_blob(blob("p"), 512 * 400, sequence_number=7)
        expected = bytearray(512 * 400)

        async def put(first: int, content: bytes) -> None:
            await self.engine.page_blobs.put_pages(
                blob("p"), first, content, last=first + len(content) - 1
            )
            expected[first : first + len(content)] = content

        await put(512, b"a" * 1024)
        await put(1024, b"b" * 1024)
        await put(512 * 100, LONG[: 512 * 200])
        await put(512 * 150, b"c" * 512)
        await self.engine.page_blobs.clear_pages(blob("p"), 512 * 120, 512 * 130 - 1)
        expected[512 * 120 : 512 * 130] = bytes(5120)

        assert await self.read(blob("p")) == bytes(expected)
        assert await self.read(blob("p"), 600, 90_000) == bytes(expected[600:90_001])
        found = await self.engine.page_blobs.page_ranges(blob("p"))
        assert found.ranges == [
            PageRange(512, 2047),
            PageRange(512 * 100, 512 * 120 - 1),
            PageRange(512 * 130, 512 * 300 - 1),
        ]
        first = await self.engine.page_blobs.page_ranges(blob("p"), first=1024, limit=1)
        assert (first.ranges, first.next_first) == ([PageRange(1024, 2047)], 512 * 100)

    async def test_every_range_of_pages_is_that_of_the_whole(self) -> None:
        await self.engine.page_blobs.create_page_blob(blob("p"), 512 * 8)
        for page in (2, 3, 6):
            await self.engine.page_blobs.put_pages(
                blob("p"), page * 512, bytes([page]) * 512, last=page * 512 + 511
            )
        whole = await self.read(blob("p"))

        places = [page * 512 + shift for page in range(8) for shift in (0, 200, 511)]
        for first, last in combinations(places, 2):
            assert await self.read(blob("p"), first, last) == whole[first : last + 1]

    async def test_a_snapshot_of_pages_stays_as_it_was(self) -> None:
        await self.engine.page_blobs.create_page_blob(blob("p"), 1024)
        await self.engine.page_blobs.put_pages(blob("p"), 0, b"a" * 1024, last=1023)
        taken = await self.engine.snapshot(blob("p"))

        await self.engine.page_blobs.put_pages(blob("p"), 0, b"b" * 512, last=511)
        await self.collect()

        assert await self.read(blob("p", taken.snapshot)) == b"a" * 1024
        assert await self.read(blob("p")) == b"b" * 512 + b"a" * 512

    async def test_a_reader_of_pages_sees_one_state(self) -> None:
        size = 512 * 1024
        await self.engine.page_blobs.create_page_blob(blob("p"), size)
        for number in range(64):
            first = number * 8192
            await self.engine.page_blobs.put_pages(blob("p"), first, b"a" * 8192, last=first + 8191)
        opened = await self.engine.open_blob(blob("p"))

        for number in range(64):
            first = number * 8192
            await self.engine.page_blobs.put_pages(blob("p"), first, b"b" * 8192, last=first + 8191)
        await self.collect()

        parts = [part async for part in opened.content]
        await opened.content.close()
        assert b"".join(parts) == b"a" * size
        await self.collect()
        assert self.rows_of("dropped_content") == 0
        assert await self.read(blob("p")) == b"b" * size

    async def test_pages_have_borders_lengths_and_sequence_numbers(self) -> None:
        await self.engine.page_blobs.create_page_blob(blob("p"), 1024, sequence_number=5)

        for work, code in (
            (
                self.engine.page_blobs.put_pages(blob("p"), 1, b"x" * 512, last=512),
                "InvalidPageRange",
            ),
            (
                self.engine.page_blobs.put_pages(blob("p"), 0, b"x" * 512, last=1023),
                "InvalidPageRange",
            ),
            (self.engine.page_blobs.clear_pages(blob("p"), 512, 1535), "InvalidPageRange"),
            (self.engine.page_blobs.create_page_blob(blob("q"), 100), "InvalidHeaderValue"),
            (
                self.engine.page_blobs.clear_pages(
                    blob("p"), 0, 511, sequence=SequenceConditions(below=5)
                ),
                "SequenceNumberConditionNotMet",
            ),
            (
                self.engine.page_blobs.clear_pages(
                    blob("p"), 0, 511, sequence=SequenceConditions(equal=4)
                ),
                "SequenceNumberConditionNotMet",
            ),
        ):
            assert await code_of(work) == code
        written = await self.engine.page_blobs.clear_pages(
            blob("p"), 0, 511, sequence=SequenceConditions(at_most=5)
        )
        assert written.sequence_number == 5
        numbers = [
            (
                await self.engine.page_blobs.set_sequence_number(blob("p"), "increment", None)
            ).sequence_number,
            (await self.engine.page_blobs.set_sequence_number(blob("p"), "max", 3)).sequence_number,
            (
                await self.engine.page_blobs.set_sequence_number(blob("p"), "update", 1)
            ).sequence_number,
        ]
        assert numbers == [6, 6, 1]

    async def test_pages_that_are_cut_off_read_as_zero_when_they_come_back(self) -> None:
        await self.engine.page_blobs.create_page_blob(blob("p"), 1024)
        await self.engine.page_blobs.put_pages(blob("p"), 0, b"a" * 1024, last=1023)

        await self.engine.page_blobs.resize(blob("p"), 512)
        await self.engine.page_blobs.resize(blob("p"), 1024)

        assert await self.read(blob("p")) == b"a" * 512 + bytes(512)

    # Listing

    async def put_all(self, names: Sequence[str]) -> None:
        await asyncio.gather(*(self.engine.put_blob(blob(name), b"1") for name in names))

    async def pages_of(self, limit: int, **options: Any) -> list[list[str]]:
        pages: list[list[str]] = []
        marker = ""
        while True:
            listing = await self.engine.containers.list_blobs(
                HERE, limit=limit, marker=marker, **options
            )
            pages.append(names_of(listing))
            if listing.next_marker is None:
                return pages
            marker = listing.next_marker

    async def test_blobs_are_listed_in_the_order_of_their_bytes(self) -> None:
        names = ["A", "B", "_", "a", "a ", "a/b", "aa", "\u00e9", "\ud7ff", "\uffff", "\U00010000"]
        await self.put_all(list(reversed(names)))

        assert await self.pages_of(100) == [names]
        assert list(chain.from_iterable(await self.pages_of(3))) == names
        assert await self.pages_of(100, prefix="a") == [["a", "a ", "a/b", "aa"]]
        assert await self.pages_of(100, prefix="\uffff") == [["\uffff"]]

    async def test_a_delimiter_hides_what_goes_on_behind_it(self) -> None:
        await self.put_all(["a", "a/1", "a/2", "a/b/3", "b", "c/1", "c/d/2", "d//1", "z"])

        assert await self.pages_of(100, delimiter="/") == [["a", "a/", "b", "c/", "d/", "z"]]
        for limit in (1, 2, 3, 4):
            pages = await self.pages_of(limit, delimiter="/")
            assert list(chain.from_iterable(pages)) == ["a", "a/", "b", "c/", "d/", "z"]
            assert all(len(page) == limit for page in pages[:-1])
        assert await self.pages_of(9, delimiter="/", prefix="a/") == [["a/1", "a/2", "a/b/"]]
        assert await self.pages_of(9, delimiter="//") == [
            ["a", "a/1", "a/2", "a/b/3", "b", "c/1", "c/d/2", "d//", "z"]
        ]

    async def test_a_marker_stays_right_when_blobs_come_and_go(self) -> None:
        await self.put_all(["a", "b", "c", "d"])
        first = await self.engine.containers.list_blobs(HERE, limit=2)
        assert first.next_marker is not None

        await self.engine.delete_blob(blob("c"))
        await self.engine.put_blob(blob("ab"), b"1")
        await self.engine.put_blob(blob("cc"), b"1")

        second = await self.engine.containers.list_blobs(HERE, limit=9, marker=first.next_marker)
        assert names_of(second) == ["cc", "d"]

    async def test_snapshots_stand_before_their_blob_oldest_first(self) -> None:
        await self.put_all(["a", "b"])
        first = await self.engine.snapshot(blob("b"))
        second = await self.engine.snapshot(blob("b"))

        listing = await self.engine.containers.list_blobs(HERE, include={"snapshots"})

        shown = [(item.name, item.snapshot) for item in listing.items if isinstance(item, Blob)]
        assert shown == [
            ("a", None),
            ("b", first.snapshot),
            ("b", second.snapshot),
            ("b", None),
        ]
        assert await self.pages_of(1, include={"snapshots"}) == [["a"], ["b@"], ["b@"], ["b"]]

    async def test_a_marker_that_is_none_is_refused(self) -> None:
        for marker in ("x", "!!!!", "AAAA"):
            listing = self.engine.containers.list_blobs(HERE, marker=marker)
            assert await code_of(listing) == "InvalidQueryParameterValue"

    # What is left behind

    async def test_deleted_content_is_reclaimed(self) -> None:
        await self.engine.put_blob(blob("small"), b"1")
        await self.engine.put_blob(blob("a"), LONG)
        await self.engine.put_blob(blob("b"), LONG)
        await self.engine.block_blobs.put_block(blob("c"), block_id(1), LONG + b"1")
        assert len(await self.contents()) == 2

        await self.engine.delete_blob(blob("a"))
        await self.collect()
        assert len(await self.contents()) == 2
        assert await self.read(blob("b")) == LONG

        await self.engine.containers.delete_container(HERE)
        await self.collect()
        assert await self.contents() == []
        for table in ("blob", "block", "piece", "extent", "dropped_content", "dropped_container"):
            assert self.rows_of(table) == 0, table

    async def test_a_refused_upload_leaves_nothing(self) -> None:
        async def broken() -> AsyncIterator[bytes]:
            for _ in range(40):
                yield LONG
            raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            await self.engine.put_blob(blob("a"), broken())
        assert await code_of(
            self.engine.put_blob(blob("a"), LONG, declared=Declared(md5=bytes(16)))
        )
        await self.engine.put_blob(blob("b"), b"1")
        put = self.engine.put_blob(
            blob("b"), LONG, terms=Terms(conditions=Conditions(if_none_match=("*",)))
        )
        assert await code_of(put) == "BlobAlreadyExists"
        await self.collect()

        assert await self.contents() == []
        assert names_of(await self.engine.containers.list_blobs(HERE)) == ["b"]

    async def test_a_cancelled_upload_leaves_nothing(self) -> None:
        begun = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield LONG
            begun.set()
            await asyncio.sleep(3600)
            yield b""

        upload = asyncio.ensure_future(self.engine.put_blob(blob("a"), endless()))
        await begun.wait()
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
        await self.collect()

        assert await self.contents() == []
        assert await code_of(self.engine.get_blob(blob("a"))) == "BlobNotFound"

    async def test_everything_is_there_after_a_restart(self) -> None:
        if not self.is_durable:
            pytest.skip("in memory nothing outlives the process")
        await self.engine.put_blob(blob("a"), LONG, properties=Properties(metadata={"k": "v"}))
        await self.engine.snapshot(blob("a"))
        await self.lease("a", -1)
        await self.engine.block_blobs.put_block(blob("b"), block_id(1), LONG)
        await self.engine.append_blobs.create_append_blob(blob("log"))
        await self.engine.append_blobs.append_block(blob("log"), b"12345")
        before = await self.engine.containers.list_blobs(
            HERE, include={"snapshots", "uncommittedblobs"}
        )

        await self.reopen()

        after = await self.engine.containers.list_blobs(
            HERE, include={"snapshots", "uncommittedblobs"}
        )
        assert after == before
        assert await self.read(blob("a")) == LONG
        await self.engine.block_blobs.put_block_list(blob("b"), latest(1))
        assert await self.read(blob("b")) == LONG
        appended = await self.engine.append_blobs.append_block(blob("log"), b"6")
        assert appended.offset == 5

    # Deleted blobs that are kept

    def keep(self, **retention: Any) -> None:
        self.engine.keeper.retention = Retention(**retention)

    async def kept(self, *include: Any) -> Listing:
        return await self.engine.containers.list_blobs(HERE, include=set(include))

    async def test_a_deleted_blob_is_listed_and_restored_until_its_time_is_over(self) -> None:
        self.keep(blob_days=2)
        properties = Properties(metadata={"k": "v"}, tags={"t": "1"})
        await self.engine.put_blob(blob("a"), LONG, properties=properties)
        before = await self.engine.get_blob(blob("a"))

        is_final = await self.engine.delete_blob(blob("a"))

        assert not is_final
        assert await code_of(self.engine.get_blob(blob("a"))) == "BlobNotFound"
        assert (await self.kept()).items == (await self.kept("snapshots", "versions")).items == []
        [shown] = (await self.kept("deleted")).items
        assert isinstance(shown, Blob)
        assert (shown.snapshot, shown.days_left, shown.metadata) == (None, 2, {"k": "v"})
        self.clock.advance(86_400)
        await self.forget_stale()
        await self.engine.undelete_blob(blob("a"))
        assert await self.engine.get_blob(blob("a")) == before
        assert await self.read(blob("a")) == LONG

    async def test_what_was_deleted_too_long_ago_is_gone_with_its_content(self) -> None:
        self.keep(blob_days=1)
        await self.engine.put_blob(blob("a"), LONG)
        await self.engine.put_blob(blob("a"), LONG + b"2")
        await self.engine.snapshot(blob("a"))
        await self.engine.delete_blob(blob("a"), snapshots="include")
        assert len((await self.kept("deleted", "snapshots")).items) == 3

        self.clock.advance(86_402)

        assert (await self.kept("deleted", "snapshots")).items == []
        assert await code_of(self.engine.undelete_blob(blob("a"))) == "BlobNotFound"
        await self.forget_stale()
        await self.collect()
        assert self.rows_of("blob") == 0
        assert await self.contents() == []

    async def test_undelete_without_anything_deleted(self) -> None:
        self.keep(blob_days=1)
        await self.engine.put_blob(blob("a"), b"1")

        await self.engine.undelete_blob(blob("a"))

        assert await self.read(blob("a")) == b"1"
        assert await code_of(self.engine.undelete_blob(blob("b"))) == "BlobNotFound"
        assert (
            await code_of(self.engine.undelete_blob(blob("b", container="none")))
            == "ContainerNotFound"
        )

    async def test_an_overwritten_blob_becomes_a_deleted_snapshot(self) -> None:
        self.keep(blob_days=1)
        await self.engine.put_blob(blob("a"), b"1")
        await self.engine.block_blobs.put_block(blob("a"), block_id(1), b"2")
        await self.engine.block_blobs.put_block_list(blob("a"), latest(1))
        await self.engine.copies.copy_blob(blob("a"), blob("a"), properties=Properties())

        assert kinds_of(await self.kept("snapshots")) == ["blob current"]
        assert kinds_of(await self.kept("deleted")) == ["blob current"]
        assert kinds_of(await self.kept("deleted", "snapshots")) == [
            "snapshot deleted",
            "snapshot deleted",
            "blob current",
        ]
        await self.engine.undelete_blob(blob("a"))
        [first, second, _] = (await self.kept("snapshots")).items
        assert isinstance(first, Blob)
        assert isinstance(second, Blob)
        assert await self.read(blob("a", first.snapshot)) == b"1"
        assert await self.read(blob("a", second.snapshot)) == b"2"

    async def test_a_blob_that_was_deleted_twice_is_restored_with_the_first_as_a_snapshot(
        self,
    ) -> None:
        self.keep(blob_days=1)
        for content in (b"1", b"2"):
            await self.engine.put_blob(blob("a"), content)
            await self.engine.delete_blob(blob("a"))
        assert kinds_of(await self.kept("deleted")) == ["blob deleted"]
        assert kinds_of(await self.kept("deleted", "snapshots")) == [
            "snapshot deleted",
            "blob deleted",
        ]

        await self.engine.undelete_blob(blob("a"))

        [first, _] = (await self.kept("snapshots", "deleted")).items
        assert isinstance(first, Blob)
        assert await self.read(blob("a", first.snapshot)) == b"1"
        assert await self.read(blob("a")) == b"2"

    async def test_deleted_snapshots_are_restored_with_their_blob(self) -> None:
        self.keep(blob_days=1)
        await self.engine.put_blob(blob("a"), b"1")
        kept = await self.engine.snapshot(blob("a"))
        assert await code_of(self.engine.delete_blob(blob("a"))) == "SnapshotsPresent"
        await self.engine.delete_blob(blob("a", kept.snapshot))
        assert await code_of(self.engine.get_blob(blob("a", kept.snapshot))) == "BlobNotFound"
        await self.engine.delete_blob(blob("a"))

        await self.engine.undelete_blob(blob("a"))

        assert await self.read(blob("a", kept.snapshot)) == b"1"
        assert await self.read(blob("a")) == b"1"

    async def test_a_new_blob_can_take_the_name_of_a_deleted_one(self) -> None:
        self.keep(blob_days=1)
        await self.engine.put_blob(blob("a"), b"1")
        await self.engine.delete_blob(blob("a"))

        await self.engine.put_blob(
            blob("a"), b"2", terms=Terms(conditions=Conditions(if_none_match=("*",)))
        )
        await self.engine.undelete_blob(blob("a"))

        assert await self.read(blob("a")) == b"2"
        assert kinds_of(await self.kept("snapshots")) == ["snapshot", "blob current"]

    async def test_staged_blocks_do_not_hide_a_deleted_blob(self) -> None:
        self.keep(blob_days=1)
        await self.engine.put_blob(blob("a"), b"1")
        await self.engine.delete_blob(blob("a"))
        await self.engine.block_blobs.put_block(blob("a"), block_id(1), b"2")
        assert kinds_of(await self.kept("deleted")) == ["blob deleted"]

        await self.engine.undelete_blob(blob("a"))

        assert await self.read(blob("a")) == b"1"

    async def test_only_what_is_deleted_is_removed_before_its_time(self) -> None:
        self.keep(blob_days=1)
        await self.engine.put_blob(blob("a"), b"1")
        kept = await self.engine.snapshot(blob("a"))
        snapshot = blob("a", kept.snapshot)
        assert (
            await code_of(self.engine.delete_blob(snapshot, is_permanent=True))
            == "InsufficientAccountPermissions"
        )
        self.keep(blob_days=1, allows_permanent_delete=True)
        assert await code_of(self.engine.delete_blob(snapshot, is_permanent=True)) == "BlobNotFound"
        await self.engine.delete_blob(snapshot)

        assert await self.engine.delete_blob(snapshot, is_permanent=True)

        assert kinds_of(await self.kept("snapshots", "deleted")) == ["blob current"]

    @pytest.mark.parametrize("delimiter", ["", "/"])
    async def test_kept_blobs_are_listed_in_pages_and_by_prefix(self, delimiter: str) -> None:
        self.keep(blob_days=1)
        for name in ("a", "b", "d/1"):
            for content in (b"1", b"2"):
                await self.engine.put_blob(blob(name), content)
        await self.engine.delete_blob(blob("b"))
        include: set[Any] = {"deleted", "snapshots"}
        whole = await self.engine.containers.list_blobs(HERE, include=include, delimiter=delimiter)

        found: list[Any] = []
        marker = ""
        while True:
            page = await self.engine.containers.list_blobs(
                HERE, include=include, delimiter=delimiter, limit=1, marker=marker
            )
            found += page.items
            if page.next_marker is None:
                break
            marker = page.next_marker

        assert found == whole.items
        below = ["d/"] if delimiter else ["d/1@", "d/1"]
        assert names_of(whole) == ["a@", "a", "b@", "b", *below]
        alone = await self.engine.containers.list_blobs(HERE, prefix="b", include={"deleted"})
        assert kinds_of(alone) == ["blob deleted"]

    # Versions

    async def test_each_write_of_a_whole_blob_makes_a_version(self) -> None:
        self.keep(keeps_versions=True)
        first = await self.engine.put_blob(blob("a"), b"1")
        second = await self.engine.put_blob(blob("a"), LONG)
        third = await self.engine.set_metadata(blob("a"), {"k": "v"})

        assert first.version is not None
        assert len({first.version, second.version, third.version}) == 3
        assert kinds_of(await self.kept("versions")) == ["version", "version", "version current"]
        assert kinds_of(await self.kept("snapshots", "deleted")) == ["version current"]
        assert await self.read(BlobName(HERE, "a", version=first.version)) == b"1"
        assert await self.read(BlobName(HERE, "a", version=second.version)) == LONG
        old = await self.engine.get_blob(BlobName(HERE, "a", version=second.version))
        assert (old.metadata, old.is_current, old.etag) == ({}, False, second.etag)
        current = await self.engine.get_blob(BlobName(HERE, "a", version=third.version))
        assert current == await self.engine.get_blob(blob("a"))
        assert (current.metadata, current.is_current) == ({"k": "v"}, True)

    async def test_other_changes_stay_in_their_version(self) -> None:
        self.keep(keeps_versions=True)
        made = await self.engine.append_blobs.create_append_blob(blob("log"))
        appended = await self.engine.append_blobs.append_block(blob("log"), b"1")
        await self.engine.set_tags(blob("log"), {"t": "1"})
        headed = await self.engine.set_headers(blob("log"), Headers("text/plain"))

        assert made.version == appended.written.version == headed.version
        assert kinds_of(await self.kept("versions")) == ["version current"]

    async def test_an_earlier_version_keeps_its_pages_and_its_end(self) -> None:
        self.keep(keeps_versions=True)
        await self.engine.page_blobs.create_page_blob(blob("p"), 1024)
        await self.engine.page_blobs.put_pages(blob("p"), 0, b"1" * 512, last=511)
        pages = (await self.engine.get_blob(blob("p"))).version
        await self.engine.append_blobs.create_append_blob(blob("log"))
        await self.engine.append_blobs.append_block(blob("log"), b"1")
        log = (await self.engine.get_blob(blob("log"))).version

        await self.engine.set_metadata(blob("p"), {"k": "v"})
        await self.engine.page_blobs.put_pages(blob("p"), 0, b"2" * 512, last=511)
        await self.engine.set_metadata(blob("log"), {"k": "v"})
        await self.engine.append_blobs.append_block(blob("log"), b"2")

        assert await self.read(BlobName(HERE, "p", version=pages)) == b"1" * 512 + bytes(512)
        assert await self.read(blob("p")) == b"2" * 512 + bytes(512)
        assert await self.read(BlobName(HERE, "log", version=log)) == b"1"
        assert await self.read(blob("log")) == b"12"

    async def test_a_deleted_blob_becomes_an_earlier_version_that_is_promoted_by_a_copy(
        self,
    ) -> None:
        self.keep(keeps_versions=True, blob_days=1)
        written = await self.engine.put_blob(blob("a"), LONG)
        version = BlobName(HERE, "a", version=written.version)

        await self.engine.delete_blob(blob("a"))

        assert await code_of(self.engine.get_blob(blob("a"))) == "BlobNotFound"
        assert (await self.kept("deleted", "snapshots")).items == []
        assert kinds_of(await self.kept("versions")) == ["version"]
        assert kinds_of(await self.kept("deletedwithversions")) == ["version only versions"]
        assert await self.read(version) == LONG
        copied = await self.engine.copies.copy_blob(version, blob("a"))
        assert await self.read(blob("a")) == LONG
        assert copied.written.version not in (None, written.version)
        assert kinds_of(await self.kept("versions")) == ["version", "version current"]

    async def test_versions_are_deleted_by_name_and_restored(self) -> None:
        self.keep(keeps_versions=True, blob_days=1)
        first = await self.engine.put_blob(blob("a"), b"1")
        second = await self.engine.put_blob(blob("a"), b"2")
        old = BlobName(HERE, "a", version=first.version)
        current = BlobName(HERE, "a", version=second.version)

        assert await code_of(self.engine.delete_blob(current)) == "OperationNotAllowedOnRootBlob"
        await self.engine.delete_blob(old)

        assert await code_of(self.engine.get_blob(old)) == "BlobNotFound"
        assert kinds_of(await self.kept("versions", "deleted")) == [
            "version deleted",
            "version current",
        ]
        await self.engine.undelete_blob(blob("a"))
        assert await self.read(old) == b"1"
        assert await self.read(blob("a")) == b"2"
        self.keep(keeps_versions=True)
        assert await self.engine.delete_blob(old)
        assert kinds_of(await self.kept("versions", "deleted")) == ["version current"]

    async def test_versions_outlive_the_end_of_versioning(self) -> None:
        self.keep(keeps_versions=True)
        written = await self.engine.put_blob(blob("a"), b"1")
        self.keep()

        await self.engine.put_blob(blob("a"), b"2")
        await self.engine.put_blob(blob("a"), b"3")

        assert kinds_of(await self.kept("versions")) == ["version", "blob current"]
        assert await self.read(BlobName(HERE, "a", version=written.version)) == b"1"

    async def test_a_blob_from_before_versions_becomes_one(self) -> None:
        await self.engine.put_blob(blob("a"), b"1")
        assert (await self.engine.get_blob(blob("a"))).version is None
        self.keep(keeps_versions=True)

        await self.engine.put_blob(blob("a"), b"2")

        [old, _] = (await self.kept("versions")).items
        assert isinstance(old, Blob)
        assert await self.read(BlobName(HERE, "a", version=old.version)) == b"1"

    async def test_a_snapshot_of_a_versioned_blob_makes_a_version(self) -> None:
        self.keep(keeps_versions=True)
        written = await self.engine.put_blob(blob("a"), b"1")

        kept = await self.engine.snapshot(blob("a"))

        assert await self.read(blob("a", kept.snapshot)) == b"1"
        assert kept.version not in (None, written.version)
        assert (await self.engine.get_blob(blob("a"))).version == kept.version
        assert await self.read(BlobName(HERE, "a", version=written.version)) == b"1"
        assert sorted(kinds_of(await self.kept("versions", "snapshots"))) == [
            "snapshot",
            "version",
            "version current",
        ]

    async def test_a_version_cannot_be_changed_but_tagged_and_moved_to_a_tier(self) -> None:
        self.keep(keeps_versions=True)
        written = await self.engine.put_blob(blob("a"), b"1")
        await self.engine.put_blob(blob("a"), b"2")
        old = BlobName(HERE, "a", version=written.version)

        assert await code_of(self.engine.set_metadata(old, {})) == "InvalidQueryParameterValue"
        assert await code_of(self.engine.put_blob(old, b"3")) == "InvalidQueryParameterValue"
        await self.engine.set_tags(old, {"t": "1"})
        await self.engine.set_tier(old, "Cool")

        found = await self.engine.get_blob(old)
        assert (found.tags, found.tier) == ({"t": "1"}, "Cool")
        assert (await self.engine.get_blob(blob("a"))).tags == {}

    async def test_a_time_that_is_no_version_names_nothing(self) -> None:
        self.keep(keeps_versions=True)
        written = await self.engine.put_blob(blob("a"), b"1")
        kept = await self.engine.snapshot(blob("a"))

        for name in (
            BlobName(HERE, "a", version=kept.snapshot),
            BlobName(HERE, "a", snapshot=written.version),
            BlobName(HERE, "a", version="2001-01-01T00:00:00.0000000Z"),
        ):
            assert await code_of(self.engine.get_blob(name)) == "BlobNotFound"
            assert await code_of(self.engine.open_blob(name)) == "BlobNotFound"
            assert await code_of(self.engine.delete_blob(name)) == "BlobNotFound"
            assert await code_of(self.engine.block_blobs.get_block_list(name)) == "BlobNotFound"

    async def test_what_is_kept_is_there_after_a_restart(self) -> None:
        if not self.is_durable:
            pytest.skip("in memory nothing outlives the process")
        self.keep(keeps_versions=True, blob_days=1, container_days=1)
        written = await self.engine.put_blob(blob("a"), LONG)
        await self.engine.put_blob(blob("a"), b"2")
        self.keep(blob_days=1)
        await self.engine.put_blob(blob("b"), b"1")
        await self.engine.delete_blob(blob("b"))
        include = "versions", "deleted", "snapshots"
        before = await self.kept(*include)

        await self.reopen()

        assert await self.kept(*include) == before
        assert await self.read(BlobName(HERE, "a", version=written.version)) == LONG
        await self.engine.undelete_blob(blob("b"))
        assert await self.read(blob("b")) == b"1"

    # Deleted containers

    async def test_a_deleted_container_is_restored_with_its_blobs(self) -> None:
        self.keep(container_days=3)
        await self.engine.put_blob(blob("a"), LONG)
        await self.engine.containers.set_container_metadata(HERE, {"k": "v"})

        await self.engine.containers.delete_container(HERE)

        assert await code_of(self.engine.get_blob(blob("a"))) == "ContainerNotFound"
        assert (await self.engine.containers.list_containers()).items == []
        [shown] = (await self.engine.containers.list_containers(with_deleted=True)).items
        assert (shown.name, shown.days_left, shown.metadata) == (HERE, 3, {"k": "v"})
        assert shown.version is not None
        await self.collect()
        restored = await self.engine.containers.restore_container(HERE, shown.version)
        assert (restored.version, restored.deleted_at, restored.metadata) == (
            None,
            None,
            {"k": "v"},
        )
        assert await self.read(blob("a")) == LONG

    async def test_a_container_is_restored_only_under_a_free_name_and_in_time(self) -> None:
        self.keep(container_days=1)
        await self.engine.containers.delete_container(HERE)
        await self.engine.containers.create_container(HERE)
        await self.engine.put_blob(blob("a"), b"new")
        listed = (await self.engine.containers.list_containers(with_deleted=True)).items
        assert [each.deleted_at is None for each in listed] == [True, False]
        version = listed[1].version
        assert version is not None

        assert (
            await code_of(self.engine.containers.restore_container(HERE, version))
            == "ContainerAlreadyExists"
        )
        assert (
            await code_of(self.engine.containers.restore_container(HERE, "0" * 16))
            == "ContainerNotFound"
        )
        self.clock.advance(86_402)
        assert (
            await code_of(self.engine.containers.restore_container(HERE, version))
            == "ContainerNotFound"
        )
        assert await self.read(blob("a")) == b"new"

    async def test_a_container_that_was_deleted_too_long_ago_is_gone(self) -> None:
        self.keep(container_days=1)
        await self.engine.put_blob(blob("a"), LONG)
        await self.engine.containers.delete_container(HERE)
        self.clock.advance(86_402)

        await self.forget_stale()
        await self.collect()

        assert (await self.engine.containers.list_containers(with_deleted=True)).items == []
        assert self.rows_of("blob") == self.rows_of("container") == 0
        assert await self.contents() == []

    async def test_deleted_containers_are_listed_in_pages(self) -> None:
        self.keep(container_days=1)
        for _ in range(3):
            await self.engine.containers.delete_container(HERE)
            await self.engine.containers.create_container(HERE)
        await self.engine.containers.create_container("photos-2")

        found: list[Any] = []
        marker = ""
        while True:
            page = await self.engine.containers.list_containers(
                with_deleted=True, limit=2, marker=marker
            )
            found += page.items
            if page.next_marker is None:
                break
            marker = page.next_marker

        assert [each.name for each in found] == [HERE] * 4 + ["photos-2"]
        assert len({each.version for each in found}) == 4
        names = [each.name for each in (await self.engine.containers.list_containers()).items]
        assert names == [HERE, "photos-2"]

    # Searches by tags

    async def found(self, expression: str, container: str | None = None) -> list[str]:
        listing = await self.engine.searches.find_blobs(expression, container=container)
        assert listing.next_marker is None
        return [f"{each.container}/{each.name}" for each in listing.items]

    @pytest.mark.parametrize(
        ("expression", "names"),
        [
            ("n = '2'", ["2"]),
            ("\"n\" > '2'", ["3", "4"]),
            ("n >= '2' AND n < '4'", ["2", "3"]),
            ("n <= '2'", ["1", "2"]),
            ("n > '0' and even = 'yes'", ["2", "4"]),
            ("@container = 'photos' AND n = '1'", ["1"]),
            ("n = '1' AND @container = 'others'", []),
            ("n = '1' AND none = ''", []),
            ("N = '1'", []),
        ],
    )
    async def test_blobs_are_found_by_their_tags(self, expression: str, names: list[str]) -> None:
        for number in range(1, 5):
            tags = {"n": str(number)} | ({"even": "yes"} if number % 2 == 0 else {})
            await self.engine.put_blob(blob(str(number)), b"", properties=Properties(tags=tags))
        await self.engine.put_blob(blob("untagged"), b"")

        assert await self.found(expression) == [f"{HERE}/{name}" for name in names]

    async def test_a_search_sees_the_tags_of_now_and_of_blobs_only(self) -> None:
        self.keep(blob_days=1, container_days=1)
        tagged = Properties(tags={"n": "1"})
        for name in ("changed", "snapshot", "overwritten", "deleted", "tagged"):
            await self.engine.put_blob(
                blob(name), b"", properties=Properties() if name == "tagged" else tagged
            )
        await self.engine.set_tags(blob("changed"), {"n": "2"})
        await self.engine.snapshot(blob("snapshot"))
        await self.engine.put_blob(blob("overwritten"), b"")
        await self.engine.delete_blob(blob("deleted"))
        await self.engine.set_tags(blob("tagged"), {"n": "1"})
        await self.engine.containers.create_container("gone")
        await self.engine.put_blob(blob("a", container="gone"), b"", properties=tagged)
        await self.engine.containers.delete_container("gone")

        assert await self.found("n = '1'") == [f"{HERE}/snapshot", f"{HERE}/tagged"]
        assert await self.found("n = '2'") == [f"{HERE}/changed"]

    async def test_a_search_in_a_container_sees_only_that_container(self) -> None:
        tagged = Properties(tags={"n": "1", "other": "x"})
        await self.engine.containers.create_container("others")
        for container in (HERE, "others"):
            await self.engine.put_blob(blob("a", container=container), b"", properties=tagged)

        assert await self.found("n = '1'") == [f"{HERE}/a", "others/a"]
        assert await self.found("n = '1'", "others") == ["others/a"]
        assert await self.found("n = '1' AND @container = 'photos'", "others") == []
        assert await code_of(self.found("n = '1'", "none")) == "ContainerNotFound"
        listing = await self.engine.searches.find_blobs("n = '1'")
        assert [each.tags for each in listing.items] == [{"n": "1"}, {"n": "1"}]

    async def test_a_search_is_read_in_pages(self) -> None:
        await self.engine.containers.create_container("others")
        names = [(container, f"{number}") for container in (HERE, "others") for number in range(4)]
        for container, name in names:
            tagged = Properties(tags={"n": "1"})
            await self.engine.put_blob(blob(name, container=container), b"", properties=tagged)

        found: list[tuple[str, str]] = []
        marker = ""
        while True:
            page = await self.engine.searches.find_blobs("n = '1'", limit=3, marker=marker)
            found += [(each.container, each.name) for each in page.items]
            if page.next_marker is None:
                break
            marker = page.next_marker

        assert found == names

    # What changed in a page blob since a snapshot

    async def changed_since(self, snapshot: str | None, **more: Any) -> list[tuple[int, int, bool]]:
        found = await self.engine.page_blobs.page_ranges(blob("p"), since=snapshot, **more)
        return [(each.first, each.last, each.is_cleared) for each in found.ranges]

    async def test_pages_that_were_written_or_cleared_since_a_snapshot_are_listed(self) -> None:
        pages = self.engine.page_blobs
        await pages.create_page_blob(blob("p"), 4096)
        await pages.put_pages(blob("p"), 0, b"1" * 2048, last=2047)
        first = await self.engine.snapshot(blob("p"))
        assert await self.changed_since(first.snapshot) == []

        await pages.put_pages(blob("p"), 512, b"2" * 512, last=1023)
        await pages.clear_pages(blob("p"), 1536, 2047)
        await pages.put_pages(blob("p"), 3584, b"2" * 512, last=4095)

        changed = [(512, 1023, False), (1536, 2047, True), (3584, 4095, False)]
        assert await self.changed_since(first.snapshot) == changed
        assert await self.changed_since(first.snapshot, first=600, last=2047) == [
            (600, 1023, False),
            (1536, 2047, True),
        ]
        assert await self.changed_since(first.snapshot, limit=1) == changed[:1]
        second = await self.engine.snapshot(blob("p"))
        await pages.put_pages(blob("p"), 0, b"3" * 512, last=511)
        assert await self.changed_since(second.snapshot) == [(0, 511, False)]
        between = await pages.page_ranges(blob("p", second.snapshot), since=first.snapshot)
        assert [(each.first, each.last, each.is_cleared) for each in between.ranges] == changed

    async def test_page_ranges_differ_only_from_an_earlier_snapshot_of_the_same_blob(self) -> None:
        pages = self.engine.page_blobs
        await pages.create_page_blob(blob("p"), 1024)
        first = await self.engine.snapshot(blob("p"))
        second = await self.engine.snapshot(blob("p"))

        assert (
            await code_of(pages.page_ranges(blob("p", first.snapshot), since=second.snapshot))
            == "PreviousSnapshotCannotBeNewer"
        )
        assert (
            await code_of(self.changed_since("2001-01-01T00:00:00.0000000Z"))
            == "PreviousSnapshotNotFound"
        )
        assert await code_of(self.changed_since("yesterday")) == "InvalidQueryParameterValue"
        await pages.create_page_blob(blob("p"), 1024)
        assert await code_of(self.changed_since(first.snapshot)) == "BlobOverwritten"

    # Encryption scopes

    async def test_the_encryption_scope_of_a_write_is_kept_with_the_blob(self) -> None:
        await self.engine.containers.create_container("scoped", encryption_scope="scope1")
        scoped = Properties(encryption_scope="scope2")

        written = await self.engine.put_blob(blob("a"), b"", properties=scoped)

        assert written.encryption_scope == "scope2"
        assert (await self.engine.get_blob(blob("a"))).encryption_scope == "scope2"
        assert (await self.engine.set_metadata(blob("a"), {})).encryption_scope == "scope2"
        assert (await self.engine.put_blob(blob("a"), b"")).encryption_scope is None
        found = await self.engine.containers.get_container("scoped")
        assert found.encryption_scope == "scope1"
        bad = self.engine.put_blob(blob("a"), b"", properties=Properties(encryption_scope="a b"))
        assert await code_of(bad) == "InvalidHeaderValue"
