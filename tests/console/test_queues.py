"""Queues in the console: the API by plain HTTP, the screens in a real browser."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from azure.storage.queue import QueueClient, QueueServiceClient

from support.browser import THEMES, Watch, picture, use_theme, violations
from support.console_api import ask, ended_job
from support.live import LiveServer


@pytest.fixture
def queues(console: LiveServer) -> Iterator[QueueServiceClient]:
    with QueueServiceClient.from_connection_string(console.connection_string) as client:
        yield client
        for queue in client.list_queues():
            client.delete_queue(queue.name)


def filled(queues: QueueServiceClient, name: str, *texts: str) -> QueueClient:
    queue = queues.create_queue(name)
    for text in texts:
        queue.send_message(text)
    return queue


def test_queues_are_listed_with_their_counts(
    console: LiveServer, queues: QueueServiceClient
) -> None:
    filled(queues, "mail", "a", "b")
    filled(queues, "mail-poison")

    status, found = ask(console, "GET", "queues")

    assert (status, found) == (
        200,
        {
            "queues": [{"name": "mail", "messages": 2}, {"name": "mail-poison", "messages": 0}],
            "has_more": False,
        },
    )


def test_a_peek_claims_nothing_and_hidden_messages_are_counted(
    console: LiveServer, queues: QueueServiceClient
) -> None:
    queue = filled(queues, "mail", "a", "b")
    assert [each.content for each in queue.receive_messages(max_messages=1)] == ["a"]

    for _ in range(2):
        _, found = ask(console, "GET", "queues/mail")
        assert [each["text"] for each in found["peeked"]] == ["b"]
        assert (found["messages"], found["hidden"], found["poison_of"]) == (2, 1, None)


def test_a_claimed_message_is_changed_released_and_deleted_by_its_receipt(
    console: LiveServer, queues: QueueServiceClient
) -> None:
    queue = filled(queues, "mail", "a")
    _, found = ask(console, "POST", "queues/mail/claim", {"count": 1, "seconds": 60})
    (message,) = found["claimed"]
    held = {"id": message["id"], "receipt": message["receipt"]}

    status, _ = ask(console, "POST", "queues/mail/update", {**held, "text": "b", "seconds": 0})
    assert status == 200
    assert [each.content for each in queue.peek_messages()] == ["b"]
    status, refused = ask(console, "POST", "queues/mail/delete", held)
    assert (status, refused["error"]["code"]) == (404, "MessageNotFound")

    _, found = ask(console, "POST", "queues/mail/claim", {"count": 1, "seconds": 60})
    (message,) = found["claimed"]
    held = {"id": message["id"], "receipt": message["receipt"]}
    assert ask(console, "POST", "queues/mail/delete", held)[0] == 200
    assert queue.get_queue_properties().approximate_message_count == 0


def test_poison_messages_go_back_to_work(console: LiveServer, queues: QueueServiceClient) -> None:
    mail = filled(queues, "mail")
    poison = filled(queues, "mail-poison", *(f"m{n}" for n in range(70)))
    assert ask(console, "GET", "queues/mail-poison")[1]["poison_of"] == "mail"

    _, job = ask(console, "POST", "queues/mail-poison/move", {"to": "mail"})
    job = ended_job(console, job)

    assert (job["state"], job["counts"]) == ("done", {"messages": 70})
    assert mail.get_queue_properties().approximate_message_count == 70
    assert poison.get_queue_properties().approximate_message_count == 0


def test_a_move_keeps_the_time_to_live(console: LiveServer, queues: QueueServiceClient) -> None:
    source = filled(queues, "one")
    source.send_message("forever", time_to_live=-1)
    source.send_message("month", time_to_live=30 * 86_400)
    target = filled(queues, "two")
    before = {each.content: each.expires_on for each in source.peek_messages(2)}

    _, job = ask(console, "POST", "queues/one/move", {"to": "two"})

    assert ended_job(console, job)["state"] == "done"
    after = {each.content: each.expires_on for each in target.peek_messages(2)}
    assert after["forever"] == before["forever"]
    assert before["month"] is not None
    assert after["month"] is not None
    assert abs(after["month"] - before["month"]) < timedelta(days=1)


def test_a_move_of_some_leaves_the_others(console: LiveServer, queues: QueueServiceClient) -> None:
    filled(queues, "one", *(f"m{n}" for n in range(5)))
    two = filled(queues, "two")

    _, job = ask(console, "POST", "queues/one/move", {"to": "two", "count": 2})
    job = ended_job(console, job)

    assert [each.content for each in two.peek_messages(32)] == ["m0", "m1"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("queues", {"name": "NO"}, 400, "OutOfRangeInput"),
        ("queues/missing/messages", {"text": "a"}, 404, "QueueNotFound"),
        ("queues/mail/messages", {"text": "a", "delay_seconds": -1}, 400, None),
        ("queues/mail/claim", {"count": 33}, 400, "ConsoleInput"),
        ("queues/mail/claim", {"wrong": 1}, 400, "ConsoleInput"),
        ("queues/mail/drop", {"confirm": "other"}, 400, "ConsoleInput"),
        ("queues/mail/move", {"to": "mail"}, 400, "ConsoleInput"),
    ],
)
def test_a_refused_change_says_why(
    console: LiveServer,
    queues: QueueServiceClient,
    path: str,
    body: object,
    status: int,
    code: str | None,
) -> None:
    filled(queues, "mail", "a")

    told, found = ask(console, "POST", path, body)

    assert told == status
    assert found["error"]["message"]
    assert code in (None, found["error"]["code"])


@pytest.mark.proof
@pytest.mark.parametrize("theme", THEMES)
def test_the_screens_of_queues(
    watch: Watch, console: LiveServer, queues: QueueServiceClient, axe: str, theme: str
) -> None:
    filled(queues, "orders", '{"order": 12345678901234567890, "lines": [1, 2]}', "eyJhIjogMX0=")
    filled(queues, "orders-poison", "broken")
    queues.get_queue_client("orders").receive_message(visibility_timeout=60)
    page = watch.page
    use_theme(page, theme)
    page.goto(console.announced["console"])
    page.get_by_role("link", name="Queues").click()
    page.get_by_role("link", name="orders-poison").wait_for()
    assert violations(page, axe) == []
    picture(page, f"queues-{theme}")

    page.get_by_role("link", name="orders", exact=True).click()
    page.get_by_text("1 hidden").wait_for()
    page.get_by_role("button", name="Put a message").click()
    page.get_by_label("Text").fill('{"order": 12345678901234567890}')
    page.get_by_role("button", name="Put", exact=True).click()
    page.get_by_text('"order": 12345678901234567890').wait_for()
    page.get_by_role("button", name="Claim").click()
    page.get_by_role("heading", name="Claimed by this tab").wait_for()

    assert violations(page, axe) == []
    picture(page, f"queue-{theme}")
