"""Front ends that share a database and its objects: locks, stamps, claims, the collector."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules.model import BlobName, Conditions, LeaseRequest, Terms
from partita.blobs.store.garbage_collector import Pause, no_pause
from partita.clock import ManualClock
from partita.errors import (
    ConfigurationError,
    DamageError,
    PartitaError,
    StoreBusyError,
)
from partita.scaleout.blobs import claims, postgres_store
from partita.scaleout.blobs import collector as collecting
from partita.scaleout.blobs.postgres_store import PostgresBlobStore
from partita.ticks import TICKS_PER_SECOND
from support.postgres_blobs import BlobDatabase, FrontEnd, blob_database, folder_url
from support.repeats import repeat

SEEDS = repeat(3, 20, 200)
CONTENT = b"0123456789abcdef" * 8192
OTHER = b"fedcba9876543210" * 8192
ABSENT = Terms(conditions=Conditions(if_none_match=("*",)))


class Pauses:
    """Holds whoever comes to a place until the test lets go."""

    def __init__(self, *places: str) -> None:
        self.places = set(places)
        self.arrived = asyncio.Event()
        self._go_on = asyncio.Event()

    async def __call__(self, place: str) -> None:
        if place in self.places:
            self.places.discard(place)
            self.arrived.set()
            await self._go_on.wait()

    def go_on(self) -> None:
        self._go_on.set()


class Fleet:
    """Two front ends on one database and one folder."""

    def __init__(self, one: FrontEnd, two: FrontEnd, folder: Path, clock: ManualClock) -> None:
        self.one, self.two, self.folder, self.clock = one, two, folder, clock

    async def collect(self) -> None:
        for front_end in (self.one, self.two):
            await front_end.contents.collector.collect()

    async def sweep(self) -> None:
        """List all objects as if they were old."""
        await self.one.contents.collector.sweep()


@asynccontextmanager
async def fleet(
    folder: Path, pause_one: Pause = no_pause, pause_two: Pause = no_pause
) -> AsyncIterator[Fleet]:
    url, clock, objects = await blob_database("front_ends"), ManualClock(), folder_url(folder)
    one = await FrontEnd.open(url, objects, clock, slot=1, pause=pause_one)
    two = await FrontEnd.open(url, objects, clock, slot=2, pause=pause_two)
    try:
        await one.engine.containers.create_container("here")
        yield Fleet(one, two, folder, clock)
    finally:
        await one.close()
        await two.close()


@pytest.fixture(autouse=True)
def old_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the tests stands in 2023: every file counts as old."""
    monkeypatch.setattr(collecting, "STRAY_SECONDS_MIN", -(10**9))


def blob(name: str) -> BlobName:
    return BlobName("here", name)


async def read(engine: BlobEngine, name: str) -> bytes:
    opened = await engine.open_blob(blob(name))
    try:
        return b"".join([part async for part in opened.content])
    finally:
        await opened.content.close()


async def code_of(work: Awaitable[object]) -> str | None:
    try:
        await work
    except PartitaError as error:
        return error.code
    return None


# Uploads and the collector


@pytest.mark.parametrize("place", ["claimed", "placed"])
async def test_an_upload_keeps_its_object_while_another_front_end_sweeps(
    tmp_path: Path, place: str
) -> None:
    pauses = Pauses()
    async with fleet(tmp_path, pauses) as ends:
        await ends.two.engine.put_blob(blob("old"), CONTENT)
        pauses.places.add(place)
        upload = asyncio.ensure_future(ends.one.engine.put_blob(blob("new"), CONTENT))
        await pauses.arrived.wait()

        await ends.two.engine.delete_blob(blob("old"))
        await ends.two.contents.collector.collect()
        await ends.two.contents.collector.sweep()
        await ends.two.contents.collector.collect()
        pauses.go_on()
        await upload
        await ends.collect()

        assert await read(ends.two.engine, "new") == CONTENT
        assert len(await ends.two.objects()) == 1


async def test_without_claims_an_upload_loses_its_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    careless = collecting._MARK.partition("   AND NOT EXISTS (SELECT FROM partita.upload_claim")[0]
    assert careless != collecting._MARK
    monkeypatch.setattr(collecting, "_MARK", careless)
    pauses = Pauses()
    async with fleet(tmp_path, pauses) as ends:
        await ends.two.engine.put_blob(blob("old"), CONTENT)
        pauses.places.add("placed")
        upload = asyncio.ensure_future(ends.one.engine.put_blob(blob("new"), CONTENT))
        await pauses.arrived.wait()

        await ends.two.engine.delete_blob(blob("old"))
        await ends.two.contents.collector.collect()
        pauses.go_on()
        await upload

        with pytest.raises(DamageError):
            await read(ends.two.engine, "new")


async def remove_late(ends: Fleet, pauses: Pauses) -> None:
    """Upload a content again after its removal was decided, and before it is done."""
    await ends.one.engine.put_blob(blob("old"), CONTENT)
    pauses.places.add("checked")
    await ends.one.engine.delete_blob(blob("old"))
    removal = asyncio.ensure_future(ends.two.contents.collector.collect())
    await pauses.arrived.wait()

    await ends.one.engine.put_blob(blob("new"), CONTENT)
    pauses.go_on()
    await removal


async def test_a_removal_that_comes_late_hits_no_later_upload(tmp_path: Path) -> None:
    pauses = Pauses()
    async with fleet(tmp_path, pause_two=pauses) as ends:
        await remove_late(ends, pauses)

        assert await read(ends.two.engine, "new") == CONTENT
        assert len(await ends.one.objects()) == 1


async def test_with_names_that_come_again_a_late_removal_hits_a_later_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claims.claim_object
    monkeypatch.setattr(
        postgres_store,
        "claim_object",
        lambda pool, digest, _salt, now: claim(pool, digest, bytes(8), now),
    )
    pauses = Pauses()
    async with fleet(tmp_path, pause_two=pauses) as ends:
        await remove_late(ends, pauses)

        with pytest.raises(DamageError):
            await read(ends.two.engine, "new")


async def test_an_upload_that_slept_for_days_is_refused_and_can_be_sent_again(
    tmp_path: Path,
) -> None:
    pauses = Pauses("placed")
    async with fleet(tmp_path, pauses) as ends:
        upload = asyncio.ensure_future(ends.one.engine.put_blob(blob("a"), CONTENT))
        await pauses.arrived.wait()

        ends.clock.advance(collecting.CLAIM_SECONDS_MAX + 1)
        await ends.two.contents.collector.collect()
        pauses.go_on()

        with pytest.raises(StoreBusyError) as refused:
            await upload
        assert refused.value.facts["reason"] == "claim"
        await ends.one.engine.put_blob(blob("a"), CONTENT)
        assert await read(ends.two.engine, "a") == CONTENT


async def test_an_upload_that_comes_late_is_swept(tmp_path: Path) -> None:
    pauses = Pauses("claimed")
    async with fleet(tmp_path, pauses) as ends:
        upload = asyncio.ensure_future(ends.one.engine.put_blob(blob("a"), CONTENT))
        await pauses.arrived.wait()
        ends.clock.advance(collecting.CLAIM_SECONDS_MAX + 1)
        await ends.two.contents.collector.collect()
        pauses.go_on()
        assert await code_of(upload) == "ServerBusy"
        assert len(await ends.two.objects()) == 1

        await ends.sweep()
        await ends.collect()

        assert await ends.two.objects() == []


async def test_an_upload_cancelled_at_any_moment_leaves_no_claim_and_no_object(
    tmp_path: Path,
) -> None:
    chance = random.Random(3)
    async with fleet(tmp_path) as ends:
        kept = {}
        for number in range(5 * SEEDS):
            name, content = f"b{number}", CONTENT + bytes([number % 256])
            upload = asyncio.ensure_future(ends.one.engine.put_blob(blob(name), content))
            await asyncio.sleep(chance.random() / 20)
            upload.cancel()
            await asyncio.wait([upload])
            if not upload.cancelled():
                kept[name] = content
        ends.clock.advance(collecting.CLAIM_SECONDS_MAX + 1)  # of claims nobody could abandon
        await ends.collect()

        for name, content in kept.items():
            assert await read(ends.two.engine, name) == content
        listing = await ends.two.engine.containers.list_blobs("here")
        contents = {await read(ends.two.engine, item.name) for item in listing.items}
        assert len(await ends.two.objects()) == len(contents)
        assert await ends.one.pool.read("SELECT 1 FROM partita.upload_claim") == []


class Ledger:
    """What was acknowledged of blobs that only their writer changes."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    async def work(self, ends: Fleet, chance: random.Random, prefix: str) -> None:
        for _ in range(6):
            engine = chance.choice((ends.one, ends.two)).engine
            name = f"{prefix}{chance.randrange(2)}"
            content = chance.choice((CONTENT, OTHER, prefix.encode() + CONTENT))
            match chance.randrange(5):
                case 0 | 1:
                    await engine.put_blob(blob(name), content)
                    self.stored[name] = content
                case 2 if name in self.stored:
                    await engine.delete_blob(blob(name))
                    del self.stored[name]
                case 3 if name in self.stored:
                    await engine.copies.copy_blob(blob(name), blob(f"{prefix}2"))
                    self.stored[f"{prefix}2"] = self.stored[name]
                case _ if name in self.stored:
                    assert await read(engine, name) == self.stored[name]
                case _:
                    pass


async def run_at_random(seed: int, folder: Path) -> None:
    chance = random.Random(seed)
    ledger = Ledger()

    turn = asyncio.Event()

    async def pause(place: str) -> None:
        # On a machine of any speed some uploads meet whole sweeps of both front ends.
        for _ in range(0 if place == "checked" else chance.choice((0, 0, 2, 5))):
            await turn.wait()
        await asyncio.sleep(chance.random() / 50)

    async with fleet(folder, pause, pause) as ends:

        async def sweep(front_end: FrontEnd) -> None:
            nonlocal turn
            while not all(task.done() for task in work):
                await front_end.contents.collector.sweep()
                await front_end.contents.collector.collect()
                ended, turn = turn, asyncio.Event()
                ended.set()

        async with asyncio.TaskGroup() as group:
            work = [
                group.create_task(ledger.work(ends, chance, f"w{number}-")) for number in range(4)
            ]
            group.create_task(sweep(ends.one))
            group.create_task(sweep(ends.two))
        await ends.collect()
        listing = await ends.one.engine.containers.list_blobs("here")
        found = {item.name: await read(ends.two.engine, item.name) for item in listing.items}
        assert found == ledger.stored
        assert len(await ends.one.objects()) == len(set(found.values()))


@pytest.mark.repeated
async def test_no_order_of_uploads_deletes_and_sweeps_loses_a_content(tmp_path: Path) -> None:
    for seed in range(SEEDS):
        await run_at_random(seed, tmp_path / str(seed))


@pytest.mark.proof
async def test_that_ledger_finds_a_sweep_without_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    careless = collecting._MARK.partition("   AND NOT EXISTS (SELECT FROM partita.upload_claim")[0]
    monkeypatch.setattr(collecting, "_MARK", careless)
    monkeypatch.setattr(
        collecting,
        "_SUSPECT_STRAYS",
        collecting._SUSPECT_STRAYS.replace(
            "upload_claim c WHERE", "upload_claim c WHERE false AND"
        ),
    )

    async def run_all() -> None:
        for seed in range(20):
            await run_at_random(seed, tmp_path / str(seed))

    with pytest.raises((ExceptionGroup, DamageError, AssertionError)):
        await run_all()


async def test_a_sweep_leaves_what_is_young_and_what_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "STRAY_SECONDS_MIN", 3600)
    monkeypatch.setattr(collecting, "INCOMING_SECONDS_MAX", 3600)
    async with fleet(tmp_path) as ends:
        await ends.one.engine.put_blob(blob("a"), CONTENT)
        root = ends.one.contents.objects.root  # type: ignore[union-attr]
        folder = root / "00" / "11"
        folder.mkdir(parents=True)
        now = ends.clock.ticks() / TICKS_PER_SECOND
        ages = {
            folder / ("0011" + "ab" * 38): 7200,
            folder / ("0011" + "cd" * 38): 600,
            folder / "notes.txt": 7200,
            root / "incoming" / "slept": 7200,
            root / "incoming" / "under way": 600,
        }
        for path, age in ages.items():
            path.write_bytes(b"left by a crash")
            os.utime(path, (now - age, now - age))

        await ends.sweep()
        await ends.collect()

        assert [path.exists() for path in ages] == [False, True, True, False, True]
        assert await read(ends.two.engine, "a") == CONTENT


async def test_a_download_that_outlives_its_content_ends_and_is_not_called_damaged(
    tmp_path: Path,
) -> None:
    async with fleet(tmp_path) as ends:
        await ends.one.engine.append_blobs.create_append_blob(blob("log"))
        for _ in range(260):
            await ends.one.engine.append_blobs.append_block(blob("log"), b"x" * 100)
        reader = await ends.one.engine.open_blob(blob("log"))

        await ends.two.engine.delete_blob(blob("log"))
        await ends.two.contents.collector.collect()  # it keeps nothing, and has no pins

        with pytest.raises(StoreBusyError) as ended:
            _ = [part async for part in reader.content]
        assert ended.value.facts["reason"] == "removed"
        await reader.content.close()


async def test_what_was_deleted_is_kept_for_the_downloads_of_other_front_ends(
    tmp_path: Path,
) -> None:
    async with fleet(tmp_path) as ends:
        ends.two.contents.collector.seconds_kept = collecting.DROPPED_SECONDS_KEPT
        await ends.one.engine.put_blob(blob("a"), CONTENT * 40)
        reader = await ends.one.engine.open_blob(blob("a"))

        await ends.two.engine.delete_blob(blob("a"))
        ends.clock.advance(collecting.DROPPED_SECONDS_KEPT - 1)
        await ends.two.contents.collector.collect()

        assert b"".join([part async for part in reader.content]) == CONTENT * 40
        await reader.content.close()
        ends.clock.advance(2)
        await ends.two.contents.collector.collect()
        assert await ends.two.objects() == []


async def test_a_damaged_object_is_found_moved_aside_and_repaired_by_an_upload(
    tmp_path: Path,
) -> None:
    async with fleet(tmp_path) as ends:
        await ends.one.engine.put_blob(blob("a"), CONTENT)
        (name,) = await ends.one.objects()
        path = ends.folder / "blobs" / name.hex()[:2] / name.hex()[2:4] / name.hex()
        path.write_bytes(CONTENT[:100_000] + b"?" + CONTENT[100_001:])

        with pytest.raises(DamageError):
            await read(ends.two.engine, "a")
        assert await ends.two.store.quarantine(name)
        await ends.two.engine.put_blob(blob("b"), CONTENT)

        assert await read(ends.one.engine, "a") == CONTENT
        assert not await ends.two.store.quarantine(name)


# Locks and stamps


async def test_appends_of_two_front_ends_lie_one_behind_another(tmp_path: Path) -> None:
    async with fleet(tmp_path) as ends:
        await ends.one.engine.append_blobs.create_append_blob(blob("log"))

        async def append(front_end: FrontEnd, number: int) -> tuple[int, bytes]:
            line = b"%06d\n" % number
            done = await front_end.engine.append_blobs.append_block(blob("log"), line)
            return done.offset, line

        appended = await asyncio.gather(
            *(append((ends.one, ends.two)[number % 2], number) for number in range(40))
        )

        content = await read(ends.two.engine, "log")
        assert len(content) == 40 * 7
        for offset, line in appended:
            assert content[offset : offset + 7] == line


async def test_only_one_of_two_front_ends_creates_what_must_not_exist(tmp_path: Path) -> None:
    async with fleet(tmp_path) as ends:
        engines = [ends.one.engine, ends.two.engine] * 3

        blobs = [code_of(each.put_blob(blob("a"), b"1", terms=ABSENT)) for each in engines]
        assert sorted(map(str, await asyncio.gather(*blobs))) == ["BlobAlreadyExists"] * 5 + [
            "None"
        ]
        made = [code_of(each.containers.create_container("box")) for each in engines]
        codes = sorted(map(str, await asyncio.gather(*made)))
        assert codes == ["ContainerAlreadyExists"] * 5 + ["None"]


async def test_copies_back_and_forth_never_wait_in_a_circle(tmp_path: Path) -> None:
    async with fleet(tmp_path) as ends:
        await ends.one.engine.containers.create_container("there")
        names = [BlobName(box, name) for box in ("here", "there") for name in ("a", "b")]
        for name in names:
            await ends.one.engine.put_blob(name, b"1")
        before = await deadlocks(ends)

        async def copy(front_end: FrontEnd, seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(8):
                source, target = chance.sample(names, 2)
                await front_end.engine.copies.copy_blob(source, target)

        await asyncio.gather(*(copy((ends.one, ends.two)[n % 2], n) for n in range(8)))

        assert await deadlocks(ends) == before


async def deadlocks(ends: Fleet) -> int:
    ((count,),) = await ends.one.pool.read(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    return int(count)


async def test_a_blob_goes_into_a_container_or_the_container_is_gone(tmp_path: Path) -> None:
    async with fleet(tmp_path) as ends:
        for number in range(10):
            box = f"box-{number}"
            await ends.one.engine.containers.create_container(box)
            work = [
                code_of(ends.one.engine.put_blob(BlobName(box, f"b{each}"), b"1"))
                for each in range(3)
            ]
            drop = ends.two.engine.containers.delete_container(box)
            *codes, _ = await asyncio.gather(*work, drop)
            assert set(codes) <= {None, "ContainerNotFound"}
        await ends.collect()

        assert await ends.one.pool.read("SELECT 1 FROM partita.blob") == []
        assert await ends.one.pool.read("SELECT 1 FROM partita.extent") == []


async def test_two_deletes_of_one_content_at_the_same_time_reclaim_it(tmp_path: Path) -> None:
    async with fleet(tmp_path) as ends:
        for _ in range(10):
            await ends.one.engine.put_blob(blob("a"), CONTENT)
            await ends.one.engine.copies.copy_blob(blob("a"), blob("b"))

            await asyncio.gather(
                ends.one.engine.delete_blob(blob("a")), ends.two.engine.delete_blob(blob("b"))
            )
        await ends.collect()

        assert await ends.one.objects() == []


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
async def test_etags_rise_and_never_repeat_whatever_the_clocks_say(
    tmp_path: Path, seconds: float
) -> None:
    async with fleet(tmp_path) as ends:
        other = ManualClock()
        other.jump(seconds)
        ends.two.contents.clock.clock = other
        stamps = []
        for number in range(6):
            engine = (ends.one, ends.two)[number % 2].engine
            stamps.append((await engine.put_blob(blob("a"), b"1")).changed_at)
            stamps.append((await engine.set_metadata(blob("a"), {"k": str(number)})).changed_at)

        assert stamps == sorted(set(stamps))


async def test_a_lease_is_not_judged_by_the_clock_of_stamps(tmp_path: Path) -> None:
    async with fleet(tmp_path) as ends:
        other = ManualClock()
        other.jump(3600)
        ends.two.contents.clock.clock = other
        await ends.one.engine.put_blob(blob("a"), b"1")
        lease = LeaseRequest("acquire", duration=60)
        held = await ends.one.engine.lease_blob(blob("a"), lease)

        await ends.two.engine.put_blob(blob("a"), b"2", terms=Terms(held.lease_id))

        assert (await ends.one.engine.get_blob(blob("a"))).lease.state == "leased"


async def test_accounts_do_not_see_each_other(tmp_path: Path) -> None:
    async with fleet(tmp_path) as ends:
        await ends.one.pool.write(
            "INSERT INTO partita.account (name) VALUES ('second') ON CONFLICT DO NOTHING"
        )
        ((account,),) = await ends.one.pool.read(
            "SELECT id FROM partita.account WHERE name = 'second'"
        )
        second = BlobEngine(PostgresBlobStore(ends.one.contents, account))
        await ends.one.engine.put_blob(blob("a"), CONTENT)

        assert (await second.containers.list_containers()).items == []
        assert await code_of(read(second, "a")) == "ContainerNotFound"
        await second.containers.create_container("here")
        await second.put_blob(blob("a"), OTHER)
        await ends.one.engine.delete_blob(blob("a"))
        await ends.collect()
        assert await read(second, "a") == OTHER


# Which object store


async def test_an_object_store_belongs_to_one_database(tmp_path: Path) -> None:
    clock, url = ManualClock(), await blob_database("front_ends")
    one, two = folder_url(tmp_path / "one"), folder_url(tmp_path / "two")
    first = await FrontEnd.open(url, one, clock)
    await first.engine.containers.create_container("here")
    await first.engine.put_blob(blob("a"), CONTENT)
    await first.close()

    assert "does not have the blobs" in await refusal(url, two)
    other = await blob_database("others")
    assert "another database" in await refusal(other, one)
    again = await FrontEnd.open(url, one, clock)
    assert await read(again.engine, "a") == CONTENT
    await again.close()


@pytest.mark.parametrize(
    "url",
    ["file:///no/such/folder", "file://server/share", "ftp://host/x", "s3://", "nonsense"],
)
async def test_an_object_store_that_cannot_be_used_is_refused_at_the_start(url: str) -> None:
    assert await refusal(await blob_database("front_ends"), url)


async def refusal(url: BlobDatabase, blob_store: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        await FrontEnd.open(url, blob_store, ManualClock(seed=7))
    assert refused.value.code == "BlobStoreUnfit"
    return refused.value.message
