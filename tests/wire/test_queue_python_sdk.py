"""The official Python queue SDK, both halves, against a live server."""

import base64
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.storage.queue import (
    AccessPolicy,
    AccountSasPermissions,
    CorsRule,
    QueueSasPermissions,
    ResourceTypes,
    TextBase64DecodePolicy,
    TextBase64EncodePolicy,
    generate_account_sas,
    generate_queue_sas,
)

from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from support.live import LiveServer
from wire.queue_sdk import code_of, open_queue, open_queues
from wire.sdk import all_of, pages_of


@pytest.fixture
async def queues(half: str, server: LiveServer) -> AsyncIterator[Any]:
    async with open_queues(half, server.queue_endpoint) as client:
        yield client


@pytest.fixture
def queue_name() -> str:
    return f"q{uuid.uuid4().hex}"


@pytest.fixture
async def queue(queues: Any, queue_name: str) -> Any:
    """A QueueClient for an empty queue."""
    return await queues.create_queue(queue_name)


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


# Queues


async def test_a_queue_is_created_listed_and_deleted(queues: Any, queue_name: str) -> None:
    await queues.create_queue(queue_name)
    listed = await all_of(queues.list_queues(name_starts_with=queue_name))
    await queues.delete_queue(queue_name)

    assert [(each.name, each.metadata) for each in listed] == [(queue_name, None)]
    assert await all_of(queues.list_queues(name_starts_with=queue_name)) == []


async def test_a_queue_that_exists_is_not_created_again(queues: Any, queue: Any) -> None:
    with pytest.raises(ResourceExistsError) as raised:
        await queues.create_queue(queue.queue_name)
    assert raised.value.status_code == 204

    with pytest.raises(ResourceExistsError) as raised:
        await queues.create_queue(queue.queue_name, metadata={"of": "me"})
    assert code_of(raised) == (409, "QueueAlreadyExists")


async def test_metadata_keep_their_case(queues: Any, queue_name: str) -> None:
    metadata = {"hello": "world", "UP": "UPval", "number": "42"}
    queue = await queues.create_queue(queue_name, metadata=metadata)
    assert (await queue.get_queue_properties()).metadata == metadata

    await queue.set_queue_metadata({"other": "x"})
    assert (await queue.get_queue_properties()).metadata == {"other": "x"}
    (listed,) = await all_of(queues.list_queues(name_starts_with=queue_name, include_metadata=True))
    assert listed.metadata == {"other": "x"}


async def test_queues_are_listed_in_pages(queues: Any, queue_name: str) -> None:
    names = sorted(f"{queue_name}-{n}" for n in range(5))
    for name in names:
        await queues.create_queue(name)

    pages = await pages_of(queues.list_queues(name_starts_with=queue_name, results_per_page=2))

    assert [[each.name for each in page] for page in pages] == [names[:2], names[2:4], names[4:]]


async def test_what_is_not_there_is_not_found(queues: Any, queue_name: str) -> None:
    queue = queues.get_queue_client(queue_name)
    for attempt in (
        queue.get_queue_properties,
        queue.delete_queue,
        queue.peek_messages,
        queue.clear_messages,
        queue.get_queue_access_policy,
        lambda: queue.send_message("x"),
        lambda: queue.set_queue_metadata({}),
        lambda: queue.delete_message(str(uuid.uuid4()), "x"),
        lambda: queue.update_message(str(uuid.uuid4()), "x", visibility_timeout=1),
    ):
        with pytest.raises(ResourceNotFoundError) as raised:
            await attempt()
        assert code_of(raised) == (404, "QueueNotFound")


@pytest.mark.parametrize(
    ("name", "code"),
    [("Upper", "InvalidResourceName"), ("ab", "OutOfRangeInput"), ("a--b", "InvalidResourceName")],
)
async def test_bad_names_are_refused(queues: Any, name: str, code: str) -> None:
    with pytest.raises(HttpResponseError) as raised:
        await queues.create_queue(name)

    assert code_of(raised) == (400, code)


# Messages


async def test_a_message_is_sent_received_and_deleted(queue: Any) -> None:
    sent = await queue.send_message("archive 00010")
    (received,) = await all_of(queue.receive_messages(visibility_timeout=30))

    assert (received.id, received.content) == (sent.id, "archive 00010")
    assert received.dequeue_count == 1
    assert received.pop_receipt != sent.pop_receipt
    assert received.next_visible_on > datetime.now(UTC) + timedelta(seconds=25)
    assert await all_of(queue.receive_messages()) == []
    await queue.delete_message(received)
    with pytest.raises(ResourceNotFoundError) as raised:
        await queue.delete_message(received)
    assert code_of(raised) == (404, "MessageNotFound")


async def test_messages_come_in_order_and_in_pages(queue: Any) -> None:
    for n in range(7):
        await queue.send_message(f"{n}")

    pages = await pages_of(queue.receive_messages(messages_per_page=3))

    texts = [[message.content for message in page] for page in pages]
    assert [page for page in texts if page] == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


async def test_a_peek_shows_no_receipt(queue: Any) -> None:
    await queue.send_message("x")

    (peeked,) = await queue.peek_messages(max_messages=32)

    assert (peeked.content, peeked.dequeue_count) == ("x", 0)
    assert (peeked.pop_receipt, peeked.next_visible_on) == (None, None)


async def test_an_updated_message_is_shown_again_with_its_new_text(queue: Any) -> None:
    await queue.send_message("old")
    received = await queue.receive_message()

    updated = await queue.update_message(received, content="new", visibility_timeout=0)
    again = await queue.receive_message()

    assert updated.pop_receipt not in (received.pop_receipt, again.pop_receipt)
    assert (again.content, again.dequeue_count) == ("new", 2)


async def test_an_update_without_content_keeps_it(queue: Any) -> None:
    await queue.send_message("text")
    received = await queue.receive_message()
    await queue.update_message(received.id, received.pop_receipt, visibility_timeout=0)

    assert (await queue.receive_message()).content == "text"


async def test_the_receipt_of_an_older_dequeue_deletes_nothing(queue: Any) -> None:
    await queue.send_message("x")
    first = await queue.receive_message()
    await queue.update_message(first, visibility_timeout=0)
    second = await queue.receive_message()

    with pytest.raises(HttpResponseError) as raised:
        await queue.delete_message(first.id, first.pop_receipt)
    assert code_of(raised) == (404, "MessageNotFound")
    await queue.delete_message(second)


async def test_a_sent_message_can_be_deleted_and_updated_by_its_receipt(queue: Any) -> None:
    sent = await queue.send_message("x")
    updated = await queue.update_message(sent, content="y", visibility_timeout=0)
    assert [message.content for message in await queue.peek_messages()] == ["y"]
    await queue.delete_message(updated.id, updated.pop_receipt)

    assert await queue.peek_messages() == []


async def test_a_message_that_never_expires_says_so(queue: Any) -> None:
    sent = await queue.send_message("x", time_to_live=-1)

    assert sent.expires_on == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


async def test_hidden_and_expiring_messages(queue: Any) -> None:
    sent = await queue.send_message("x", visibility_timeout=5, time_to_live=60)

    assert sent.expires_on - sent.inserted_on == timedelta(seconds=60)
    assert timedelta(seconds=4) <= sent.next_visible_on - sent.inserted_on
    assert await queue.receive_message() is None
    assert (await queue.get_queue_properties()).approximate_message_count == 1


async def test_cleared_messages_are_gone(queue: Any) -> None:
    for n in range(5):
        await queue.send_message(f"{n}")
    await queue.receive_message()

    await queue.clear_messages()

    assert await queue.peek_messages() == []
    assert (await queue.get_queue_properties()).approximate_message_count == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  a\tb\n ",
        "<&>\"'",
        "]]>",
        "\u00e9\u4e2d\U0001f600",
        "{'a': [1]}",
    ],
)
async def test_texts_come_back_as_they_were(queue: Any, text: str) -> None:
    await queue.send_message(text)

    assert [message.content for message in await queue.peek_messages()] == [text]
    assert (await queue.receive_message()).content == text


async def test_bytes_travel_in_base64(queues: Any, queue_name: str) -> None:
    await queues.create_queue(queue_name)
    queue = queues.get_queue_client(
        queue_name,
        message_encode_policy=TextBase64EncodePolicy(),
        message_decode_policy=TextBase64DecodePolicy(),
    )
    await queue.send_message("\x00\x01 anything")

    assert (await queue.receive_message()).content == "\x00\x01 anything"


@pytest.mark.parametrize("text", ["x" * 65536, "\u00e9" * 32768, "<" * 65536])
async def test_a_message_holds_64_kib(queue: Any, text: str) -> None:
    await queue.send_message(text)
    assert (await queue.receive_message()).content == text

    with pytest.raises(HttpResponseError) as raised:
        await queue.send_message(text + "x")
    assert code_of(raised) == (413, "RequestBodyTooLarge")


async def test_numbers_out_of_range_are_refused(queue: Any) -> None:
    with pytest.raises(HttpResponseError) as raised:
        await queue.send_message("x", time_to_live=0)

    assert code_of(raised) == (400, "OutOfRangeQueryParameterValue")


async def test_a_malformed_receipt_is_refused(queue: Any) -> None:
    sent = await queue.send_message("x")

    for change in (queue.delete_message, queue.update_message):
        with pytest.raises(HttpResponseError) as raised:
            await change(sent.id, "nonsense")
        assert code_of(raised) == (400, "InvalidQueryParameterValue")


@pytest.mark.parametrize("size", [20, 24, 30], ids="{} bytes".format)
async def test_an_invented_receipt_finds_no_message(queue: Any, size: int) -> None:
    sent = await queue.send_message("x")

    for change in (queue.delete_message, queue.update_message):
        with pytest.raises(ResourceNotFoundError) as raised:
            await change(sent.id, base64.b64encode(bytes(size)).decode())
        assert code_of(raised) == (404, "MessageNotFound")
    assert (await queue.receive_message()).content == "x"


async def test_the_receipt_of_another_message_finds_no_message(queue: Any) -> None:
    first, second = await queue.send_message("1"), await queue.send_message("2")

    for change in (queue.delete_message, queue.update_message):
        with pytest.raises(ResourceNotFoundError) as raised:
            await change(first.id, second.pop_receipt)
        assert code_of(raised) == (404, "MessageNotFound")


# Who may


async def test_a_queue_sas_may_what_its_letters_say(
    half: str, queue: Any, server: LiveServer
) -> None:
    token = generate_queue_sas(
        DEVELOPMENT_ACCOUNT,
        queue.queue_name,
        DEVELOPMENT_KEY,
        QueueSasPermissions(add=True),
        in_an_hour(),
    )
    async with open_queue(half, f"{server.queue_endpoint}/{queue.queue_name}", token) as limited:
        await limited.send_message("x")
        for attempt in (
            limited.peek_messages,
            limited.get_queue_properties,
            limited.clear_messages,
            limited.delete_queue,
            limited.get_queue_access_policy,
            lambda: limited.set_queue_metadata({}),
        ):
            with pytest.raises(HttpResponseError) as raised:
                await attempt()
            assert raised.value.status_code == 403


async def test_a_queue_sas_of_every_letter_works_on_messages(
    half: str, queue: Any, server: LiveServer
) -> None:
    token = generate_queue_sas(
        DEVELOPMENT_ACCOUNT,
        queue.queue_name,
        DEVELOPMENT_KEY,
        QueueSasPermissions(read=True, add=True, update=True, process=True),
        in_an_hour(),
    )
    async with open_queue(half, f"{server.queue_endpoint}/{queue.queue_name}", token) as limited:
        sent = await limited.send_message("x")
        await limited.update_message(sent, visibility_timeout=0)
        assert len(await limited.peek_messages()) == 1
        assert (await limited.get_queue_properties()).approximate_message_count == 1
        await limited.delete_message(await limited.receive_message())


async def test_the_sas_of_one_queue_opens_no_other(
    half: str, queues: Any, queue: Any, queue_name: str, server: LiveServer
) -> None:
    other = await queues.create_queue(f"{queue_name}-other")
    token = generate_queue_sas(
        DEVELOPMENT_ACCOUNT,
        queue.queue_name,
        DEVELOPMENT_KEY,
        QueueSasPermissions(read=True),
        in_an_hour(),
    )
    async with open_queue(half, f"{server.queue_endpoint}/{other.queue_name}", token) as foreign:
        with pytest.raises(HttpResponseError) as raised:
            await foreign.peek_messages()
    assert code_of(raised) == (403, "AuthenticationFailed")


async def test_a_stored_policy_rules_its_tokens(half: str, queue: Any, server: LiveServer) -> None:
    policy = AccessPolicy(QueueSasPermissions(read=True), in_an_hour())
    await queue.set_queue_access_policy({"looking": policy, "empty": AccessPolicy()})
    stored = await queue.get_queue_access_policy()
    assert sorted(stored) == ["empty", "looking"]
    assert stored["looking"].permission == "r"
    token = generate_queue_sas(
        DEVELOPMENT_ACCOUNT, queue.queue_name, DEVELOPMENT_KEY, policy_id="looking"
    )
    async with open_queue(half, f"{server.queue_endpoint}/{queue.queue_name}", token) as limited:
        assert await limited.peek_messages() == []
        with pytest.raises(HttpResponseError):
            await limited.send_message("x")

        await queue.set_queue_access_policy({})
        with pytest.raises(HttpResponseError) as raised:
            await limited.peek_messages()
    assert code_of(raised) == (403, "AuthenticationFailed")


async def test_an_account_sas_for_messages_may_delete_them(
    half: str, queue: Any, server: LiveServer
) -> None:
    token = generate_account_sas(
        DEVELOPMENT_ACCOUNT,
        DEVELOPMENT_KEY,
        ResourceTypes(object=True),
        AccountSasPermissions(add=True, process=True, update=True, delete=True),
        in_an_hour(),
        services="q",
    )
    async with open_queue(half, f"{server.queue_endpoint}/{queue.queue_name}", token) as limited:
        sent = await limited.send_message("x")
        await limited.update_message(sent, visibility_timeout=0)
        await limited.delete_message(await limited.receive_message())
        await limited.clear_messages()
        with pytest.raises(HttpResponseError) as raised:
            await limited.delete_queue()
    assert code_of(raised) == (403, "AuthorizationResourceTypeMismatch")


async def test_a_wrong_key_is_not_let_in(half: str, server: LiveServer) -> None:
    wrong = DEVELOPMENT_KEY[::-1].lstrip("=") + "=="
    async with open_queues(half, server.queue_endpoint, wrong) as stranger:
        with pytest.raises(HttpResponseError) as raised:
            await stranger.create_queue("work")
    assert code_of(raised) == (403, "AuthenticationFailed")


# The service itself


async def test_service_properties_are_kept_apart_from_those_of_tables(
    half: str, start_server: Any
) -> None:
    live = start_server()
    async with open_queues(half, live.queue_endpoint) as queues:
        rule = CorsRule(["https://example.com"], ["GET"], max_age_in_seconds=5)
        await queues.set_service_properties(cors=[rule])
        live.restart()
    async with open_queues(half, live.queue_endpoint) as queues:
        found = await queues.get_service_properties()

    assert [rule.allowed_origins for rule in found["cors"]] == ["https://example.com"]


async def test_messages_survive_a_restart(half: str, start_server: Any) -> None:
    live = start_server()
    async with open_queues(half, live.queue_endpoint) as queues:
        queue = await queues.create_queue("work")
        for text in ("1", "2"):
            await queue.send_message(text)
        first = await queue.receive_message(visibility_timeout=300)
    live.restart()
    async with open_queues(half, live.queue_endpoint) as queues:
        queue = queues.get_queue_client("work")
        received = await all_of(queue.receive_messages())
        await queue.delete_message(first)
        count = (await queue.get_queue_properties()).approximate_message_count

    assert [message.content for message in received] == ["2"]
    assert count == 1
