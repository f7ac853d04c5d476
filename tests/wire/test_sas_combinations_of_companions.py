"""Every kind of token against every operation of queues and blobs, judged by an oracle.

The oracle is written from the protocol's tables of permissions and resource types, and signs
its tokens itself: it knows nothing of the code that decides.
"""

import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Iterator
from itertools import combinations, product
from typing import NamedTuple
from urllib.parse import quote

import pytest

from partita.blobs.rules.model import BlobName, Terms
from partita.clock import ManualClock
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT as ACCOUNT
from partita.service.accounts.account import DEVELOPMENT_KEY, Account, Accounts
from partita.service.accounts.respond import Front
from partita.service.hosting.services import BLOBS, QUEUES
from partita.service.http.request import Request
from support.accounts import open_folder_account
from support.repeats import IS_SOAK

VERSION = "2026-10-06"
EXPIRY = "2030-01-01T00:00:00Z"
ALL_LETTERS = "racwdlupt"

FORBIDDEN = (403, "AuthorizationFailure")
LACKS = (403, "AuthorizationPermissionMismatch")
WRONG_SERVICE = (403, "AuthorizationServiceMismatch")
WRONG_RESOURCE = (403, "AuthorizationResourceTypeMismatch")
NOT_AUTHENTICATED = (403, "AuthenticationFailed")


class Operation(NamedTuple):
    """One way to ask for one thing."""

    name: str
    service: str
    """b or q."""
    resource: str
    """s, c or o: what an account SAS calls it."""
    permissions: tuple[str, ...]
    """Alternatives; none: no SAS will do."""
    method: str
    path: str
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    allowed: int = 200
    by_service_sas: bool = True
    """A SAS of the queue, container or blob may do it, given the letter."""


BLOCK = "YWFh"
BLOCK_BLOB = (("x-ms-blob-type", "BlockBlob"),)
PHOTO = "photos/a/1"
CONTAINER = "restype=container"
MESSAGE = b"<QueueMessage><MessageText>x</MessageText></QueueMessage>"
TAG_BODY = b"<Tags><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tags>"
PROPERTIES = b"<StorageServiceProperties><Cors /></StorageServiceProperties>"


def _of_blobs() -> Iterator[Operation]:
    for method in ("GET", "HEAD"):
        yield Operation(f"{method} blob", "b", "o", ("r",), method, PHOTO)
    yield Operation("metadata", "b", "o", ("r",), "GET", PHOTO, "comp=metadata")
    yield Operation("block list", "b", "o", ("r",), "GET", PHOTO, "comp=blocklist")
    yield Operation("overwrite", "b", "o", ("w",), "PUT", PHOTO, "", BLOCK_BLOB, b"new", 201)
    yield Operation(
        "put block", "b", "o", ("w",), "PUT", PHOTO, f"comp=block&blockid={BLOCK}", (), b"x", 201
    )
    meta = (("x-ms-meta-a", "1"),)
    yield Operation("set metadata", "b", "o", ("w",), "PUT", PHOTO, "comp=metadata", meta)
    yield Operation("set properties", "b", "o", ("w",), "PUT", PHOTO, "comp=properties")
    lease = (("x-ms-lease-action", "acquire"), ("x-ms-lease-duration", "15"))
    yield Operation("lease", "b", "o", ("w",), "PUT", PHOTO, "comp=lease", lease, b"", 201)
    yield Operation("snapshot", "b", "o", ("c", "w"), "PUT", PHOTO, "comp=snapshot", allowed=201)
    yield Operation("delete", "b", "o", ("d",), "DELETE", PHOTO, allowed=202)
    yield Operation("get tags", "b", "o", ("t",), "GET", PHOTO, "comp=tags")
    yield Operation("set tags", "b", "o", ("t",), "PUT", PHOTO, "comp=tags", (), TAG_BODY, 204)
    yield Operation(
        "list blobs", "b", "c", ("l",), "GET", "photos", f"{CONTAINER}&comp=list&prefix=a/1"
    )
    for name, permissions, method, query, headers, allowed in (
        ("container", ("r",), "GET", "", (), 200),
        ("set container metadata", ("w",), "PUT", "&comp=metadata", meta, 200),
        ("lease container", ("w",), "PUT", "&comp=lease", lease, 201),
        ("delete container", ("d",), "DELETE", "", (), 202),
        ("get policies", (), "GET", "&comp=acl", (), 200),
        ("set policies", (), "PUT", "&comp=acl", (), 200),
    ):
        yield Operation(
            name, "b", "c", permissions, method, "photos", CONTAINER + query, headers, b"",
            allowed, by_service_sas=False,
        )  # fmt: skip
    yield Operation(
        "create container", "b", "c", ("c", "w"), "PUT", "fresh", CONTAINER, allowed=201,
        by_service_sas=False,
    )  # fmt: skip
    yield from _of_service("b")


def _of_queues() -> Iterator[Operation]:
    messages = "work/messages"
    yield Operation("peek", "q", "o", ("r",), "GET", messages, "peekonly=true")
    yield Operation("put", "q", "o", ("a",), "POST", messages, "", (), MESSAGE, 201)
    yield Operation("get", "q", "o", ("p",), "GET", messages)
    yield Operation("queue metadata", "q", "c", ("r",), "GET", "work", "comp=metadata")
    for name, resource, permissions, method, path, query, allowed in (
        ("clear", "o", ("d",), "DELETE", messages, "", 204),
        ("set metadata", "c", ("w",), "PUT", "work", "comp=metadata", 204),
        ("delete queue", "c", ("d",), "DELETE", "work", "", 204),
        ("create queue", "c", ("c", "w"), "PUT", "fresh", "", 201),
        ("get policies", "c", (), "GET", "work", "comp=acl", 200),
        ("set policies", "c", (), "PUT", "work", "comp=acl", 204),
    ):
        yield Operation(
            name, "q", resource, permissions, method, path, query, allowed=allowed,
            by_service_sas=False,
        )  # fmt: skip
    yield from _of_service("q")


def _of_service(service: str) -> Iterator[Operation]:
    yield Operation("list", service, "s", ("l",), "GET", "", "comp=list", by_service_sas=False)
    query = "restype=service&comp=properties"
    yield Operation("properties", service, "s", ("r",), "GET", "", query, by_service_sas=False)
    yield Operation(
        "set properties of the service", service, "s", ("w",), "PUT", "", query, (), PROPERTIES,
        202, by_service_sas=False,
    )  # fmt: skip


OPERATIONS = [*_of_blobs(), *_of_queues()]


# Tokens


def signature(*slots: str) -> str:
    mac = hmac.digest(base64.b64decode(DEVELOPMENT_KEY), "\n".join(slots).encode(), hashlib.sha256)
    return quote(base64.b64encode(mac).decode(), safe="")


def account_sas(services: str, resources: str, letters: str) -> str:
    sig = signature(ACCOUNT, letters, services, resources, "", EXPIRY, "", "", VERSION, "", "")
    return f"sv={VERSION}&ss={services}&srt={resources}&sp={letters}&se={EXPIRY}&sig={sig}"


def queue_sas(queue: str, letters: str) -> str:
    sig = signature(letters, "", EXPIRY, f"/queue/{ACCOUNT}/{queue}", "", "", "", VERSION)
    return f"sv={VERSION}&sp={letters}&se={EXPIRY}&sig={sig}"


def blob_sas(resource: str, name: str, letters: str, depth: int = 0) -> str:
    head = (letters, "", EXPIRY, f"/blob/{ACCOUNT}/{name}", "", "", "", VERSION)
    sig = signature(*head, resource, "", "", *[""] * 5)
    further = f"&sdd={depth}" if depth else ""
    return f"sv={VERSION}&sr={resource}&sp={letters}&se={EXPIRY}{further}&sig={sig}"


# The oracle


def is_permitted(operation: Operation, letters: str) -> bool:
    return any(letter in letters for letter in operation.permissions)


def by_account_sas(
    operation: Operation, services: str, resources: str, letters: str
) -> tuple[int, str]:
    if not operation.permissions:
        return FORBIDDEN
    if operation.service not in services:
        return WRONG_SERVICE
    if operation.resource not in resources:
        return WRONG_RESOURCE
    return judged_by_letters(operation, letters)


def by_service_sas(operation: Operation, letters: str) -> tuple[int, str]:
    if not operation.by_service_sas:
        return FORBIDDEN
    return judged_by_letters(operation, letters)


def judged_by_letters(operation: Operation, letters: str) -> tuple[int, str]:
    if operation.name in ("overwrite", "put block") and "c" in letters and "w" not in letters:
        return 403, "UnauthorizedBlobOverwrite"
    return (operation.allowed, "") if is_permitted(operation, letters) else LACKS


# The account


class World:
    """Queues and blobs that each operation finds as the one before found them."""

    def __init__(self, account: Account, clock: ManualClock) -> None:
        self._account = account
        accounts = Accounts([account], clock)
        self._fronts = {
            letter: Front(kind.build(accounts, clock), accounts, clock)
            for letter, kind in (("b", BLOBS), ("q", QUEUES))
        }
        self._leases: dict[str, str] = {}
        """The ids of leases that were granted, by container."""
        self.wrong: list[str] = []
        self.count = 0

    async def build(self) -> None:
        blobs, queues = self._account.blobs, self._account.queues
        for container in ("photos", "fresh", "other"):
            if await blobs.containers.find_container(container) is not None:
                await blobs.containers.delete_container(
                    container, terms=Terms(self._leases.pop(container, None))
                )
        for page in [await queues.list_queues()]:
            for queue in page.queues:
                await queues.delete_queue(queue.name)
        for container in ("photos", "other"):
            await blobs.containers.create_container(container)
            for name in ("a/1", "a/2", "b"):
                await blobs.put_blob(BlobName(container, name), b"old")
        for queue_name in ("work", "other"):
            await queues.create_queue(queue_name, {})
            await queues.put(queue_name, "old")

    async def everything(self) -> list[object]:
        """Read all that a refused operation could have changed."""
        blobs, queues = self._account.blobs, self._account.queues
        found: list[object] = [await blobs.containers.list_containers(), await queues.list_queues()]
        found += [await blobs.containers.list_blobs(name) for name in ("photos", "other")]
        found += [await queues.peek(name, limit=32) for name in ("work", "other")]
        return [*found, *(self._account.properties[letter] for letter in "bq")]

    async def expect(self, expected: tuple[int, str], operation: Operation, token: str) -> None:
        """Send one request; a refusal must be the one that was foretold and change nothing."""
        self.count += 1
        before = await self.everything()
        headers = {
            "host": "127.0.0.1",
            "x-ms-version": VERSION,
            "content-length": str(len(operation.body)),
            **dict(operation.headers),
        }
        query = "&".join(filter(None, (operation.query, token)))
        request = Request(
            operation.method, f"/{ACCOUNT}/{operation.path}", query, headers, operation.body
        )
        response = await self._fronts[operation.service].respond(request)
        told = (response.status, response.header("x-ms-error-code") or "")
        if told != expected:
            self.wrong.append(f"{operation.name} with {token}: {told}, not {expected}")
        if response.download is not None:
            await response.download.close()
        if response.status >= 300:
            if await self.everything() != before:
                self.wrong.append(f"{operation.name} with {token} changed something")
        elif operation.method not in ("GET", "HEAD") or operation.name == "get":
            if lease := response.header("x-ms-lease-id"):
                self._leases[operation.path] = lease
            await self.build()

    def finish(self, *, count_min: int) -> None:
        assert self.wrong == []
        assert self.count >= count_min


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock = ManualClock()
    account = await open_folder_account(ACCOUNT, [DEVELOPMENT_KEY], root=None, clock=clock)
    opened = World(account, clock)
    await opened.build()
    yield opened
    await account.close()


def subsets(letters: str) -> list[str]:
    """All sets of letters; in a short run the empty, the single, the nearly full and the full."""
    sizes = range(len(letters) + 1) if IS_SOAK else (1, len(letters) - 1, len(letters))
    return ["".join(chosen) for size in sizes for chosen in combinations(letters, size) if chosen]


async def test_account_sas_grants_by_service_resource_and_letter(world: World) -> None:
    resources = subsets("sco") if IS_SOAK else ["s", "c", "o", "sc", "sco"]
    for services, types, letters, operation in product(
        ("bq", "t", "b", "q"), resources, [*ALL_LETTERS, ALL_LETTERS], OPERATIONS
    ):
        if services != "bq" and not IS_SOAK and types != "sco":
            continue
        expected = by_account_sas(operation, services, types, letters)
        await world.expect(expected, operation, account_sas(services, types, letters))
    world.finish(count_min=2000)


async def test_queue_sas_grants_what_its_letters_say(world: World) -> None:
    for operation, letters in product(_of_queues(), subsets("raup")):
        if operation.path.startswith("work"):
            expected = by_service_sas(operation, letters)
            await world.expect(expected, operation, queue_sas("work", letters))
            await world.expect(NOT_AUTHENTICATED, operation, queue_sas("other", letters))
        else:
            await world.expect(NOT_AUTHENTICATED, operation, queue_sas("work", letters))
    world.finish(count_min=150)


@pytest.mark.parametrize(
    ("resource", "name"), [("c", "photos"), ("b", "photos/a/1"), ("d", "photos/a")]
)
async def test_blob_sas_grants_what_its_letters_say(world: World, resource: str, name: str) -> None:
    letters_of_kind = "racwdlt"
    depth = 1 if resource == "d" else 0
    for operation, letters in product(_of_blobs(), subsets(letters_of_kind)):
        token = blob_sas(resource, name, letters, depth)
        await world.expect(expected_of(operation, resource, letters), operation, token)
        other = name.replace("photos", "other")
        await world.expect(NOT_AUTHENTICATED, operation, blob_sas(resource, other, letters, depth))
    world.finish(count_min=300)


def expected_of(operation: Operation, resource: str, letters: str) -> tuple[int, str]:
    is_blob = operation.path == PHOTO
    if resource == "c" and operation.path == "photos":
        return by_service_sas(operation, letters)
    if resource == "d" and operation.name == "list blobs":
        return by_service_sas(operation, letters)
    return by_service_sas(operation, letters) if is_blob else NOT_AUTHENTICATED


async def test_token_of_one_service_opens_no_other(world: World) -> None:
    for operation in OPERATIONS:
        token = (
            queue_sas("photos", "raup")
            if operation.service == "b"
            else blob_sas("c", "work", "racwdl")
        )
        await world.expect(NOT_AUTHENTICATED, operation, token)
    world.finish(count_min=30)
