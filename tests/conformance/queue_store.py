"""The contract of partita.queues.store as a suite that every QueueStore subclasses.

Nothing here knows how a store keeps things. A subclass says how to open one, and whether a
second opening finds what the first one left.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import ClassVar

import pytest

from partita.clock import LEAP_CONFIRM_SECONDS, ManualClock
from partita.errors import (
    InvalidRequestError,
    MessageNotFoundError,
    QueueExistsError,
    QueueNotFoundError,
    ReceiptMismatchError,
)
from partita.policies import Policy
from partita.queues import limits
from partita.queues.message import Message, MessagePlace, find_place, find_receipt
from partita.queues.store import QueueStore
from partita.ticks import TICKS_PER_SECOND


def texts_of(messages: Iterable[Message]) -> list[str]:
    return [message.text for message in messages]


def place_of(message: Message) -> MessagePlace:
    place = find_place(message.id)
    assert place is not None
    return place


def receipt_of(message: Message) -> bytes:
    receipt = find_receipt(message.receipt)
    assert receipt is not None
    return receipt


class QueueStoreConformance(ABC):
    is_durable: ClassVar[bool] = True

    @pytest.fixture(autouse=True)
    async def opened(self, tmp_path: Path) -> AsyncIterator[None]:
        self.folder = tmp_path / "account"
        self.clock = ManualClock()
        self.store = await self.open_store()
        yield
        await self.close_store()

    @abstractmethod
    async def open_store(self) -> QueueStore: ...

    @abstractmethod
    async def close_store(self) -> None:
        """Close the store and what it is on."""

    async def reopen(self) -> None:
        if not self.is_durable:
            pytest.skip("this store forgets on close")
        await self.close_store()
        self.store = await self.open_store()

    # Shorthands

    async def a_queue(self, name: str = "work") -> str:
        await self.store.create_queue(name, {})
        return name

    async def put(
        self, queue: str, *texts: str, hidden: int = 0, lives: int | None = 3600
    ) -> list[Message]:
        return [
            await self.store.put(queue, text, hidden_seconds=hidden, lifetime_seconds=lives)
            for text in texts
        ]

    async def claim(self, queue: str, limit: int = 32, hidden: int = 30) -> list[Message]:
        return await self.store.claim(queue, limit, hidden_seconds=hidden)

    async def update(
        self, queue: str, message: Message, hidden: int = 0, text: str | None = None
    ) -> Message:
        return await self.store.update(
            queue, place_of(message), receipt_of(message), hidden_seconds=hidden, text=text
        )

    async def delete(self, queue: str, message: Message) -> None:
        await self.store.delete(queue, place_of(message), receipt_of(message))

    async def count(self, queue: str) -> int:
        count = (await self.store.get_queue(queue)).message_count
        assert count is not None
        return count

    # Queues

    async def test_a_new_queue_is_created_once(self) -> None:
        assert await self.store.create_queue("work", {"Of": "me"})
        assert not await self.store.create_queue("work", {"Of": "me"})

    async def test_the_same_metadata_in_another_case_are_the_same(self) -> None:
        await self.store.create_queue("work", {"Of": "me"})

        assert not await self.store.create_queue("work", {"oF": "me"})
        assert (await self.store.get_queue("work")).metadata == {"Of": "me"}

    @pytest.mark.parametrize("metadata", [{}, {"of": "Me"}, {"of": "me", "by": "you"}])
    async def test_a_queue_with_other_metadata_is_in_the_way(
        self, metadata: dict[str, str]
    ) -> None:
        await self.store.create_queue("work", {"of": "me"})

        with pytest.raises(QueueExistsError):
            await self.store.create_queue("work", metadata)

    async def test_metadata_keep_their_case(self) -> None:
        await self.store.create_queue("work", {"UP": "UPval", "low": "1"})

        assert (await self.store.get_queue("work")).metadata == {"UP": "UPval", "low": "1"}

    async def test_metadata_are_replaced_as_a_whole(self) -> None:
        await self.store.create_queue("work", {"a": "1", "b": "2"})

        await self.store.set_metadata("work", {"c": "3"})

        assert (await self.store.get_queue("work")).metadata == {"c": "3"}

    async def test_a_missing_queue_is_not_found_by_anything(self) -> None:
        place, receipt = MessagePlace(1, 1), bytes(24)
        for attempt in (
            self.store.delete_queue("nobody"),
            self.store.get_queue("nobody"),
            self.store.set_metadata("nobody", {}),
            self.store.get_policies("nobody"),
            self.store.set_policies("nobody", []),
            self.store.put("nobody", "x", hidden_seconds=0, lifetime_seconds=None),
            self.store.claim("nobody", 1, hidden_seconds=1),
            self.store.peek("nobody", 1),
            self.store.update("nobody", place, receipt, hidden_seconds=0, text=None),
            self.store.delete("nobody", place, receipt),
            self.store.clear("nobody"),
        ):
            with pytest.raises(QueueNotFoundError):
                await attempt

    async def test_a_deleted_queue_can_be_created_again_and_is_empty(self) -> None:
        queue = await self.a_queue()
        (old,) = await self.put(queue, "old")
        await self.store.delete_queue(queue)
        await self.a_queue()

        assert await self.claim(queue) == []
        assert await self.count(queue) == 0
        with pytest.raises(MessageNotFoundError):
            await self.delete(queue, old)

    async def test_queues_are_listed_in_order_by_prefix_and_start(self) -> None:
        for name in ("b-2", "a", "b-1", "c", "b"):
            await self.store.create_queue(name, {})

        async def names(prefix: str, start: str, limit: int) -> list[str]:
            found = await self.store.list_queues(prefix, start, limit)
            return [queue.name for queue in found]

        assert await names("", "", 100) == ["a", "b", "b-1", "b-2", "c"]
        assert await names("b", "", 100) == ["b", "b-1", "b-2"]
        assert await names("b", "b-1", 100) == ["b-1", "b-2"]
        assert await names("b", "", 2) == ["b", "b-1"]
        assert await names("b", "c", 2) == []
        assert await names("\u00e9", "", 2) == []

    async def test_policies_are_kept_with_their_queue(self) -> None:
        queue = await self.a_queue()
        assert await self.store.get_policies(queue) == []

        policies = [Policy("one", "2026-01-01", None, "raup"), Policy("two")]
        await self.store.set_policies(queue, policies)

        assert await self.store.get_policies(queue) == policies

    # Put, claim and peek

    async def test_messages_come_in_the_order_they_were_put(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "1", "2", "3", "4")

        assert texts_of(await self.claim(queue, 2)) == ["1", "2"]
        assert texts_of(await self.claim(queue, 2)) == ["3", "4"]
        assert await self.claim(queue, 2) == []

    async def test_messages_put_at_the_same_time_are_all_there(self) -> None:
        queue = await self.a_queue()

        await asyncio.gather(*(self.put(queue, str(n)) for n in range(50)))

        found = [*await self.claim(queue), *await self.claim(queue)]
        assert sorted(texts_of(found)) == sorted(str(n) for n in range(50))
        assert len({message.id for message in found}) == 50

    async def test_claims_at_the_same_time_share_the_messages(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, *(str(n) for n in range(40)))

        claims = await asyncio.gather(*(self.claim(queue, 3) for _ in range(20)))

        found = [text for claim in claims for text in texts_of(claim)]
        assert sorted(found) == sorted(str(n) for n in range(40))

    async def test_a_put_tells_all_about_the_message(self) -> None:
        queue = await self.a_queue()
        (message,) = await self.put(queue, "x", hidden=5, lives=60)

        assert message.text == "x"
        assert message.dequeue_count == 0
        assert message.visible_at == message.inserted_at + 5 * TICKS_PER_SECOND
        assert message.expires_at == message.inserted_at + 60 * TICKS_PER_SECOND
        assert 0 <= message.inserted_at - self.clock.ticks() <= TICKS_PER_SECOND

    async def test_a_claim_hides_counts_and_hands_out_a_new_receipt(self) -> None:
        queue = await self.a_queue()
        (put,) = await self.put(queue, "x")

        (first,) = await self.claim(queue, hidden=30)
        self.clock.advance(31)
        (second,) = await self.claim(queue, hidden=40)

        assert (first.id, second.id) == (put.id, put.id)
        assert (first.dequeue_count, second.dequeue_count) == (1, 2)
        assert len({put.receipt, first.receipt, second.receipt}) == 3
        assert (first.inserted_at, first.expires_at) == (put.inserted_at, put.expires_at)
        assert second.visible_at - first.visible_at >= 40 * TICKS_PER_SECOND

    async def test_receipts_of_one_claim_differ(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "1", "2", "3")

        assert len({message.receipt for message in await self.claim(queue)}) == 3

    async def test_a_claimed_message_is_hidden_for_exactly_so_long(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "x")
        (claimed,) = await self.claim(queue, hidden=30)

        self.clock.advance((claimed.visible_at - self.clock.ticks() - 10) / TICKS_PER_SECOND)
        assert await self.store.peek(queue, 1) == []
        assert await self.claim(queue) == []
        self.clock.advance((claimed.visible_at - self.clock.ticks()) / TICKS_PER_SECOND)
        assert texts_of(await self.store.peek(queue, 1)) == ["x"]
        assert texts_of(await self.claim(queue)) == ["x"]

    async def test_messages_that_were_claimed_together_come_back_in_their_order(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, *(str(n) for n in range(20)))
        await self.claim(queue, 20, hidden=10)
        self.clock.advance(11)

        assert texts_of(await self.claim(queue)) == [str(n) for n in range(20)]

    async def test_messages_come_back_in_the_order_in_which_they_were_claimed(self) -> None:
        queue = await self.a_queue()
        first, *_ = await self.put(queue, "1", "2", "3")
        await self.update(queue, first)
        assert texts_of(await self.claim(queue, hidden=10)) == ["2", "3", "1"]
        self.clock.advance(11)

        assert texts_of(await self.claim(queue)) == ["2", "3", "1"]

    async def test_a_message_put_with_a_delay_is_hidden_at_first(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "later", hidden=10)
        await self.put(queue, "now")

        assert texts_of(await self.claim(queue)) == ["now"]
        self.clock.advance(11)
        assert texts_of(await self.claim(queue)) == ["later"]

    async def test_a_peek_changes_nothing(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "1", "2")

        first, second = await self.store.peek(queue, 5), await self.store.peek(queue, 5)

        assert texts_of(first) == ["1", "2"]
        assert first == second
        assert [message.dequeue_count for message in first] == [0, 0]
        assert [message.dequeue_count for message in await self.claim(queue)] == [1, 1]

    async def test_queues_do_not_see_each_others_messages(self) -> None:
        one, two = await self.a_queue("one"), await self.a_queue("two")
        (message,) = await self.put(one, "x")

        assert await self.claim(two) == []
        with pytest.raises(MessageNotFoundError):
            await self.delete(two, message)
        assert texts_of(await self.claim(one)) == ["x"]

    @pytest.mark.parametrize(
        "text", ["", " ", "\r\n\t ", "<&>\"'", "\U0001f600\u00e9", "a" * 65536]
    )
    async def test_texts_come_back_as_they_were(self, text: str) -> None:
        queue = await self.a_queue()
        await self.put(queue, text)

        assert texts_of(await self.store.peek(queue, 1)) == [text]
        assert texts_of(await self.claim(queue)) == [text]

    # Expiry

    async def test_an_expired_message_is_gone_for_everybody(self) -> None:
        queue = await self.a_queue()
        (message,) = await self.put(queue, "x", lives=10)
        self.clock.advance(11)

        assert await self.store.peek(queue, 1) == []
        with pytest.raises(MessageNotFoundError):
            await self.update(queue, message)
        with pytest.raises(MessageNotFoundError):
            await self.delete(queue, message)
        assert await self.claim(queue) == []

    async def test_a_message_is_gone_exactly_when_it_expires(self) -> None:
        queue = await self.a_queue()
        one, two = await self.put(queue, "1", "2", lives=10)

        self.clock.jump((one.expires_at - self.clock.ticks() - 10) / TICKS_PER_SECOND)
        assert texts_of(await self.store.peek(queue, 5)) == ["1", "2"]
        one = await self.update(queue, one)
        self.clock.jump((one.expires_at - self.clock.ticks()) / TICKS_PER_SECOND)
        assert texts_of(await self.store.peek(queue, 5)) == ["2"]
        with pytest.raises(MessageNotFoundError):
            await self.delete(queue, one)
        self.clock.jump((two.expires_at - self.clock.ticks()) / TICKS_PER_SECOND)
        assert await self.claim(queue) == []

    async def test_a_claim_counts_what_it_removes(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "dead", "dead", lives=10)
        await self.put(queue, "alive")
        self.clock.advance(11)

        await self.claim(queue)

        assert await self.count(queue) == 1

    async def test_a_claim_finds_what_lives_behind_what_expired(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, *(f"dead {n}" for n in range(1200)), lives=10)
        await self.put(queue, "alive", lives=None)
        self.clock.advance(11)

        assert texts_of(await self.store.peek(queue, 32)) == ["alive"]
        assert texts_of(await self.claim(queue)) == ["alive"]

    async def test_a_message_without_end_outlives_everything(self) -> None:
        queue = await self.a_queue()
        (message,) = await self.put(queue, "x", lives=None)
        self.clock.advance(50 * 365 * limits.DAY_SECONDS)

        assert message.expires_at == limits.NEVER
        assert texts_of(await self.claim(queue)) == ["x"]

    async def test_a_claim_may_hide_beyond_the_expiry(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "x", lives=10)
        (message,) = await self.claim(queue, hidden=100)
        await self.delete(queue, message)

        assert await self.count(queue) == 0

    async def test_a_sweep_leaves_the_living(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, *(f"dead {n}" for n in range(600)), lives=10)
        await self.put(queue, "alive")
        self.clock.advance(11)

        await self.store.sweep()

        assert await self.count(queue) == 1
        assert texts_of(await self.claim(queue)) == ["alive"]

    # Update

    async def test_an_update_changes_text_and_visibility_only(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "old")
        (claimed,) = await self.claim(queue)

        updated = await self.update(queue, claimed, hidden=5, text="new")
        assert await self.claim(queue) == []
        self.clock.advance(6)
        (found,) = await self.claim(queue)

        assert updated.receipt != claimed.receipt
        assert (found.id, found.text, found.dequeue_count) == (claimed.id, "new", 2)
        assert (found.inserted_at, found.expires_at) == (claimed.inserted_at, claimed.expires_at)

    async def test_an_update_without_text_leaves_it(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "text")
        (claimed,) = await self.claim(queue)
        await self.update(queue, claimed, hidden=0)

        (found,) = await self.claim(queue)

        assert (found.text, found.dequeue_count) == ("text", 2)

    async def test_an_update_may_empty_the_text(self) -> None:
        queue = await self.a_queue()
        (message,) = await self.put(queue, "text")
        await self.update(queue, message, text="")

        assert texts_of(await self.claim(queue)) == [""]

    async def test_an_update_cannot_hide_beyond_the_expiry(self) -> None:
        queue = await self.a_queue()
        (message,) = await self.put(queue, "x", lives=60)

        with pytest.raises(InvalidRequestError) as refused:
            await self.update(queue, message, hidden=61)

        assert refused.value.code == "InvalidQueryParameterValue"
        await self.update(queue, message, hidden=59)

    # Receipts

    async def test_the_receipt_of_a_put_deletes_at_once(self) -> None:
        queue = await self.a_queue()
        (message,) = await self.put(queue, "x")

        await self.delete(queue, message)

        assert await self.claim(queue) == []

    async def test_a_receipt_is_good_until_somebody_else_gets_the_message(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "x")
        (mine,) = await self.claim(queue, hidden=10)
        self.clock.advance(20)

        await self.delete(queue, mine)

        assert await self.claim(queue) == []

    async def test_an_older_receipt_is_worthless(self) -> None:
        queue = await self.a_queue()
        (put,) = await self.put(queue, "x")
        (first,) = await self.claim(queue, hidden=10)
        self.clock.advance(20)
        (second,) = await self.claim(queue, hidden=10)
        third = await self.update(queue, second, hidden=10)

        for old in (put, first, second):
            with pytest.raises(ReceiptMismatchError):
                await self.delete(queue, old)
            with pytest.raises(ReceiptMismatchError):
                await self.update(queue, old)
        await self.delete(queue, third)

    async def test_the_receipt_of_another_message_is_worthless(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "1", "2")
        one, two = await self.claim(queue)

        with pytest.raises(ReceiptMismatchError):
            await self.store.delete(queue, place_of(one), receipt_of(two))

    async def test_a_deleted_message_is_not_found(self) -> None:
        queue = await self.a_queue()
        (message,) = await self.put(queue, "x")
        await self.delete(queue, message)

        with pytest.raises(MessageNotFoundError):
            await self.delete(queue, message)
        with pytest.raises(MessageNotFoundError):
            await self.update(queue, message)

    async def test_no_message_answers_to_the_identifier_of_one_before_it(self) -> None:
        queue = await self.a_queue()
        (old,) = await self.put(queue, "old")
        await self.delete(queue, old)
        (new,) = await self.put(queue, "new")

        assert new.id != old.id
        with pytest.raises(MessageNotFoundError):
            await self.store.delete(queue, place_of(old), receipt_of(new))

    # Counts and clear

    async def test_the_count_knows_hidden_messages_too(self) -> None:
        queue = await self.a_queue()
        one, *_ = await self.put(queue, "1", "2", "3", hidden=5)
        assert await self.count(queue) == 3
        await self.delete(queue, one)
        self.clock.advance(6)
        await self.claim(queue, 1)

        assert await self.count(queue) == 2

    async def test_a_clear_removes_hidden_messages_too(self) -> None:
        queue = await self.a_queue()
        await self.store.set_metadata(queue, {"of": "me"})
        await self.store.set_policies(queue, [Policy("one")])
        await self.put(queue, *(str(n) for n in range(40)))
        claimed = await self.claim(queue, 10, hidden=1)

        await self.store.clear(queue)
        self.clock.advance(10)

        assert await self.claim(queue) == []
        assert await self.store.peek(queue, 1) == []
        assert await self.count(queue) == 0
        with pytest.raises(MessageNotFoundError):
            await self.delete(queue, claimed[0])
        assert (await self.store.get_queue(queue)).metadata == {"of": "me"}
        assert await self.store.get_policies(queue) == [Policy("one")]

    async def test_a_cleared_queue_takes_messages(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "old")
        await self.store.clear(queue)
        await self.put(queue, "new")
        await self.store.sweep()

        assert await self.count(queue) == 1
        assert texts_of(await self.claim(queue)) == ["new"]

    async def test_an_acknowledged_put_can_be_found(self) -> None:
        """Clears, drops and puts at the same time leave no message that nobody can reach."""
        queue = await self.a_queue()

        async def put_some() -> None:
            for n in range(20):
                await self.put(queue, str(n))

        async def clear_some() -> None:
            for _ in range(10):
                await self.store.clear(queue)
                await asyncio.sleep(0)

        await asyncio.gather(put_some(), clear_some(), put_some())
        await self.store.clear(queue)
        await self.put(queue, "last")
        await self.store.sweep()

        assert await self.count(queue) == 1
        assert texts_of(await self.claim(queue)) == ["last"]

    async def test_a_queue_is_there_all_the_time_that_it_is_cleared(self) -> None:
        queue = await self.a_queue()
        await self.store.set_policies(queue, [Policy("one")])

        async def clear_some() -> None:
            for _ in range(20):
                await self.store.clear(queue)

        clearing = asyncio.ensure_future(clear_some())
        while not clearing.done():
            await self.count(queue)
            await self.store.peek(queue, 1)
            assert await self.store.get_policies(queue) == [Policy("one")]
            await asyncio.sleep(0)
        await clearing

    async def test_a_cancelled_clear_leaves_a_queue_that_works(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "old")
        clearing = asyncio.ensure_future(self.store.clear(queue))
        await asyncio.sleep(0)
        clearing.cancel()
        await asyncio.gather(clearing, return_exceptions=True)
        for _ in range(100):
            if await self.count(queue) == 0:
                break
            await asyncio.sleep(0.01)

        await self.put(queue, "new")

        assert texts_of(await self.claim(queue)) == ["new"]

    # Time

    async def test_a_wall_clock_that_went_back_hides_nothing_longer(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "x")
        await self.claim(queue, hidden=10)
        self.clock.jump(-3600)

        self.clock.advance(11)

        assert texts_of(await self.claim(queue)) == ["x"]

    async def test_a_forward_leap_of_the_wall_clock_shows_no_hidden_message(self) -> None:
        for seconds in (60, 30 * 86_400):
            queue = await self.a_queue()
            await self.put(queue, "x")
            await self.claim(queue, hidden=30)

            self.clock.jump(seconds)

            assert await self.claim(queue) == []
            self.clock.advance(31)
            assert texts_of(await self.claim(queue)) == ["x"]
            self.clock.jump(-seconds)
            await self.store.delete_queue(queue)

    async def test_a_forward_leap_that_is_corrected_expires_no_message(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "1", "2", lives=7 * 86_400)

        self.clock.jump(30 * 86_400)
        await self.store.sweep()
        assert texts_of(await self.claim(queue, 1, hidden=10)) == ["1"]
        self.clock.advance(60)
        self.clock.jump(-30 * 86_400)
        await self.store.sweep()

        assert texts_of(await self.claim(queue)) == ["2", "1"]

    async def test_a_forward_leap_that_lasts_expires_messages(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "x", lives=7 * 86_400)

        self.clock.jump(30 * 86_400)
        await self.store.sweep()
        self.clock.advance(LEAP_CONFIRM_SECONDS)
        await self.store.sweep()

        assert await self.claim(queue) == []
        assert (await self.store.get_queue(queue)).message_count == 0

    async def test_messages_put_behind_the_wall_clocks_back_are_visible_at_once(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "1")
        self.clock.jump(-3600)
        await self.put(queue, "2")

        assert texts_of(await self.store.peek(queue, 5)) == ["1", "2"]
        assert texts_of(await self.claim(queue)) == ["1", "2"]

    # Restarts

    async def test_everything_survives_a_restart(self) -> None:
        await self.store.create_queue("work", {"Of": "me"})
        await self.store.set_policies("work", [Policy("one", permission="p")])
        await self.put("work", "1", "2", "3")
        (first,) = await self.claim("work", 1, hidden=30)
        await self.store.create_queue("gone", {})
        await self.store.delete_queue("gone")

        await self.reopen()

        found = await self.store.get_queue("work")
        assert (found.metadata, found.message_count) == ({"Of": "me"}, 3)
        assert await self.store.get_policies("work") == [Policy("one", permission="p")]
        assert texts_of(await self.claim("work")) == ["2", "3"]
        await self.delete("work", first)
        with pytest.raises(QueueNotFoundError):
            await self.store.get_queue("gone")

    async def test_a_hidden_message_is_hidden_after_a_restart_with_the_clock_set_back(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "x")
        await self.claim(queue, hidden=30)
        self.clock.jump(-3600)

        await self.reopen()

        assert await self.claim(queue) == []
        self.clock.advance(31)
        assert texts_of(await self.claim(queue)) == ["x"]

    async def test_nothing_is_hidden_longer_after_a_restart_with_the_clock_set_back(self) -> None:
        queue = await self.a_queue()
        self.clock.jump(-3600)
        self.clock.advance(1000)
        await self.put(queue, "x")

        await self.reopen()

        assert texts_of(await self.claim(queue)) == ["x"]

    async def test_what_was_dropped_is_swept_after_a_restart(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, *(str(n) for n in range(30)))
        await self.store.clear(queue)
        await self.reopen()

        await self.store.sweep()

        assert await self.count(queue) == 0
        assert await self.claim(queue) == []
