"""The guide's answer to the log data anti-pattern: lines in blobs, under names made of hours."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from partita.clock import ManualClock
from partita.errors import LimitExceededError, StoreBusyError, UnavailableError, UsageError
from partita.patterns import Database, LogBuffering, LogLine, LogPlace, connect
from partita.patterns.faults import Faults
from partita.patterns.sync import connect as connect_sync
from partita.service.hosting.in_process import LocalAccount

QUEUE = LogPlace("logs", "queue")
SIX = datetime(2014, 7, 31, 18, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DURABLE = LogBuffering(is_durable=True)


class CrashError(Exception):
    """The process ends here."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(SIX.timestamp()) * 10_000_000)


@pytest.fixture
async def db(partita_account: LocalAccount, clock: ManualClock) -> AsyncIterator[Database]:
    async with connect(partita_account, clock=clock) as opened:
        yield opened


def blobs_in(account: LocalAccount, prefix: str = "") -> dict[str, list[str]]:
    """The lines of each blob, without what the writer says of itself."""
    container = account.blobs.get_container_client("logs")
    found: dict[str, list[str]] = {}
    for name in container.list_blob_names(name_starts_with=prefix):
        text = container.download_blob(name).readall().decode()
        found[name] = [line for line in text.splitlines() if not line.startswith("#")]
    return found


async def read(db: Database, start: datetime, end: datetime) -> list[LogLine]:
    return [line async for line in db.log_lines(QUEUE, start, end)]


class TestLogDataInBlobs:
    async def test_the_name_tells_service_day_and_hour_and_the_file_is_the_first(
        self, partita_account: LocalAccount, db: Database
    ) -> None:
        async with db.log_writer(QUEUE) as log:
            await log.append("a message was put", SIX + 4 * MINUTE)

        assert list(blobs_in(partita_account)) == ["queue/2014/07/31/1800/000001.log"]

    async def test_messages_are_lines_that_begin_with_their_time(
        self, partita_account: LocalAccount, db: Database
    ) -> None:
        async with db.log_writer(QUEUE) as log:
            await log.append("put;200;0.4 ms", SIX + 4 * MINUTE)

        ((line,),) = blobs_in(partita_account).values()
        assert line == "2014-07-31T18:04:00.000000Z put;200;0.4 ms"

    async def test_the_times_of_the_first_and_last_message_are_in_the_metadata(
        self, partita_account: LocalAccount, db: Database
    ) -> None:
        async with db.log_writer(QUEUE) as log:
            for minute in (7, 3, 9):
                await log.append("x", SIX + minute * MINUTE)

        blob = partita_account.blobs.get_blob_client("logs", "queue/2014/07/31/1800/000001.log")
        metadata = blob.get_blob_properties().metadata
        assert {name.lower(): value for name, value in metadata.items()} == {
            "starttime": "2014-07-31T18:03:00.000000Z",
            "endtime": "2014-07-31T18:09:00.000000Z",
        }

    async def test_all_blobs_of_an_hour_are_found_by_a_prefix_of_their_names(
        self, partita_account: LocalAccount, db: Database
    ) -> None:
        for hour in range(3):
            async with db.log_writer(QUEUE) as log:
                await log.append("x", SIX + timedelta(hours=hour // 2))

        assert list(blobs_in(partita_account, "queue/2014/07/31/1800")) == [
            "queue/2014/07/31/1800/000001.log",
            "queue/2014/07/31/1800/000002.log",
        ]

    async def test_buffered_lines_share_a_write(self, db: Database, partita_faults: Faults) -> None:
        async with db.log_writer(QUEUE) as log:
            for number in range(500):
                await log.append(f"line {number}", SIX)

        appends = [line for line in partita_faults.requests if "comp=appendblock" in line]
        assert len(appends) == 1

    async def test_a_full_buffer_or_an_old_one_is_written(
        self, partita_account: LocalAccount, clock: ManualClock, db: Database
    ) -> None:
        log = db.log_writer(QUEUE, LogBuffering(bytes_max=1_000, seconds_max=5))
        await log.append("short")
        assert log.acknowledged == 0

        clock.advance(5)
        await log.append("later")
        assert log.acknowledged == 2
        await log.append("x" * 1_000)
        assert log.acknowledged == 3

    async def test_durable_lines_are_written_as_they_happen(
        self, partita_account: LocalAccount, db: Database
    ) -> None:
        log = db.log_writer(QUEUE, DURABLE)

        for number in range(5):
            ticket = await log.append(f"line {number}", SIX)
            assert log.acknowledged == ticket

        ((*lines,),) = blobs_in(partita_account).values()
        assert len(lines) == 5

    async def test_a_crash_loses_what_was_buffered_and_nothing_that_was_acknowledged(
        self, partita_account: LocalAccount, db: Database
    ) -> None:
        log = db.log_writer(QUEUE)
        for number in range(3):
            await log.append(f"line {number}", SIX)
        await log.flush()
        await log.append("line 3", SIX)
        assert log.acknowledged == 3  # and here the process ends

        lines = await read(db, SIX, SIX)
        assert [line.text for line in lines] == ["line 0", "line 1", "line 2"]

    async def test_a_span_of_two_minutes_is_found_without_reading_other_hours(
        self, db: Database
    ) -> None:
        three = datetime(2014, 7, 31, 15, tzinfo=UTC)
        for hour in range(-2, 3):
            async with db.log_writer(QUEUE) as log:
                for minute in range(60):
                    level = "ERROR" if minute % 2 else "INFO"
                    at = three + timedelta(hours=hour, minutes=minute)
                    await log.append(f"{level} {minute}", at)

        with db.measuring() as cost:
            lines = await read(db, three + 4 * MINUTE, three + 6 * MINUTE)
        errors = [line.text for line in lines if line.text.startswith("ERROR")]

        assert [line.text for line in lines] == ["INFO 4", "ERROR 5", "INFO 6"]
        assert errors == ["ERROR 5"]
        assert cost.requests == 2  # one list, one blob

    async def test_blobs_whose_metadata_says_that_they_hold_nothing_are_not_read(
        self, db: Database
    ) -> None:
        for minutes in ((0, 10), (20, 30), (40, 50)):
            async with db.log_writer(QUEUE) as log:
                for minute in range(*minutes):
                    await log.append(str(minute), SIX + minute * MINUTE)

        with db.measuring() as cost:
            lines = await read(db, SIX + 24 * MINUTE, SIX + 25 * MINUTE)

        assert [line.text for line in lines] == ["24", "25"]
        assert cost.requests == 2

    async def test_a_long_range_takes_few_lists(self, db: Database) -> None:
        async with db.log_writer(QUEUE) as log:
            for day in range(0, 90, 30):
                await log.append(str(day), SIX + timedelta(days=day))

        with db.measuring() as cost:
            lines = await read(db, SIX - timedelta(days=400), SIX + timedelta(days=400))

        assert [line.text for line in lines] == ["0", "30", "60"]
        assert cost.requests < 100  # not one for each of 19,200 hours

    async def test_what_is_read_equals_a_filter_of_all_lines(self, db: Database) -> None:
        written: list[tuple[datetime, str]] = []
        async with db.log_writer(QUEUE, LogBuffering(bytes_max=300)) as log:
            for number in range(200):
                at = SIX + timedelta(minutes=(number * 37) % 180)
                written.append((at, f"line {number}"))
                await log.append(f"line {number}", at)

        for start, end in ((0, 179), (30, 90), (59, 60), (100, 100), (500, 600)):
            first, last = SIX + start * MINUTE, SIX + end * MINUTE
            lines = await read(db, first, last)
            expected = [pair for pair in written if first <= pair[0] <= last]
            assert sorted((line.at, line.text) for line in lines) == sorted(expected)

    async def test_two_writers_of_one_hour_do_not_touch_each_others_files(
        self, partita_account: LocalAccount, db: Database
    ) -> None:
        first, second = db.log_writer(QUEUE, DURABLE), db.log_writer(QUEUE, DURABLE)

        async def write(log: object, name: str) -> None:
            for number in range(6):
                await log.append(f"{name}{number}", SIX)  # type: ignore[attr-defined]

        await asyncio.gather(write(first, "a"), write(second, "b"))

        files = blobs_in(partita_account)
        assert sorted(files) == [
            "queue/2014/07/31/1800/000001.log",
            "queue/2014/07/31/1800/000002.log",
        ]
        names = [[line.split(" ")[1] for line in lines] for lines in files.values()]
        assert sorted(names) == [[f"{name}{n}" for n in range(6)] for name in "ab"]

    async def test_tasks_that_share_a_writer_share_its_writes(
        self, partita_account: LocalAccount, db: Database, partita_faults: Faults
    ) -> None:
        log = db.log_writer(QUEUE, DURABLE)

        tickets = await asyncio.gather(*(log.append(f"line {n}", SIX) for n in range(50)))

        assert log.acknowledged == max(tickets) == 50
        appends = [line for line in partita_faults.requests if "comp=appendblock" in line]
        assert len(appends) < 10
        ((*lines,),) = blobs_in(partita_account).values()
        assert len(set(lines)) == 50

    @pytest.mark.parametrize("place", range(1, 6))
    async def test_a_crash_at_any_request_leaves_each_acknowledged_line_exactly_once(
        self, place: int, db: Database, partita_faults: Faults
    ) -> None:
        acknowledged: list[str] = []
        log = db.log_writer(QUEUE, DURABLE)
        partita_faults.fail_next(lambda _: partita_faults.count >= place, error=CrashError())

        async def write() -> None:
            for number in range(10):
                await log.append(f"line {number}", SIX + number * MINUTE)
                acknowledged.append(f"line {number}")

        with pytest.raises(CrashError):
            await write()
        partita_faults.stop()
        async with db.log_writer(QUEUE, DURABLE) as heir:
            await heir.append("the heir", SIX)

        lines = [line.text for line in await read(db, SIX, SIX + 10 * MINUTE)]
        assert [line for line in lines if line in acknowledged] == acknowledged
        assert len(lines) == len(set(lines))

    async def test_an_answer_that_was_lost_writes_no_line_twice(
        self, db: Database, partita_faults: Faults
    ) -> None:
        log = db.log_writer(QUEUE, DURABLE)
        await log.append("first", SIX)
        partita_faults.lose_answers(match="comp=appendblock")

        await log.append("second", SIX)

        assert [line.text for line in await read(db, SIX, SIX)] == ["first", "second"]

    async def test_after_an_error_the_lines_are_still_there_to_be_flushed(
        self, db: Database, partita_faults: Faults
    ) -> None:
        log = db.log_writer(QUEUE, DURABLE)
        partita_faults.fail_next("comp=appendblock")

        with pytest.raises(UnavailableError):
            await log.append("kept", SIX)
        assert await log.flush() == 1

        assert [line.text for line in await read(db, SIX, SIX)] == ["kept"]

    async def test_a_line_may_hold_any_text(self, db: Database) -> None:
        odd = ["two\nlines\r\n", "back\\slash \\n", "Łódź", "", " spaces "]
        async with db.log_writer(QUEUE) as log:
            for text in odd:
                await log.append(text, SIX)

        assert [line.text for line in await read(db, SIX, SIX)] == odd

    async def test_late_lines_go_to_the_hour_of_their_time(
        self, partita_account: LocalAccount, db: Database
    ) -> None:
        async with db.log_writer(QUEUE) as log:
            await log.append("now", SIX)
            await log.append("late", SIX - 30 * MINUTE)

        assert sorted(blobs_in(partita_account)) == [
            "queue/2014/07/31/1700/000001.log",
            "queue/2014/07/31/1800/000001.log",
        ]

    async def test_a_new_file_begins_when_one_is_full(
        self, partita_account: LocalAccount, db: Database
    ) -> None:
        buffering = LogBuffering(is_durable=True, blob_blocks_max=2)
        async with db.log_writer(QUEUE, buffering) as log:
            for number in range(5):
                await log.append(str(number), SIX)

        sizes = [len(lines) for lines in blobs_in(partita_account).values()]
        assert sizes == [2, 2, 1]

    async def test_a_log_that_was_never_written_is_empty(self, db: Database) -> None:
        assert await read(db, SIX, SIX + timedelta(hours=3)) == []

    async def test_a_writer_that_cannot_keep_up_says_so(
        self, db: Database, partita_faults: Faults
    ) -> None:
        log = db.log_writer(QUEUE, LogBuffering(bytes_max=2**40, seconds_max=1e9))
        line = "x" * 1_000_000
        with pytest.raises(LimitExceededError):
            await log.append("x" * 2_000_000, SIX)

        async def fill() -> None:
            for _ in range(70):
                await log.append(line, SIX)

        with pytest.raises(StoreBusyError):
            await fill()

    async def test_a_closed_log_takes_no_lines(self, db: Database) -> None:
        log = db.log_writer(QUEUE)
        await log.close()

        with pytest.raises(UsageError):
            await log.append("too late")

    def test_the_same_names_without_a_loop(self, partita_account: LocalAccount) -> None:
        with connect_sync(partita_account) as db:
            with db.log_writer(QUEUE, DURABLE) as log:
                log.append("plain", SIX)

            assert [line.text for line in db.log_lines(QUEUE, SIX, SIX)] == ["plain"]
