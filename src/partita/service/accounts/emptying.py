"""Empty an account for the next test: no tables, queues, containers or service properties.

The one rule: only an account with the well-known development key is emptied, or any account of a
server that was started with `--allow-empty`.
"""

import contextlib

import msgspec

from partita.blobs.rules.model import LeaseRequest
from partita.errors import ConflictError, NotAuthorizedError
from partita.service.accounts.account import Account
from partita.service.accounts.service_properties_xml import ServiceProperties

EMPTY_SETTING = "--allow-empty"
"""The setting that lets accounts with keys of their own be emptied."""
_AT_ONCE = LeaseRequest("break", break_period=0)


class Emptied(msgspec.Struct, frozen=True):
    """What was removed."""

    account: str
    tables: int = 0
    queues: int = 0
    containers: int = 0


def only_by_key() -> NotAuthorizedError:
    """Return the refusal of a request that is not signed with a key of the account."""
    return NotAuthorizedError(
        "AuthorizationFailure",
        "This request is not authorized to perform this operation.",
        hint="Sign the request with a key of the account.",
    )


def check_guard(account: Account, *, allows_all: bool) -> None:
    """Raise unless an account may be emptied."""
    if not account.is_guarded and not allows_all:
        raise NotAuthorizedError(
            "AuthorizationFailure",
            "This request is not authorized to perform this operation.",
            hint=f"Only the development account is emptied: start the server with {EMPTY_SETTING}.",
            setting=EMPTY_SETTING,
        )


async def empty(account: Account) -> Emptied:
    """Remove everything of an account that clients have created; writes meanwhile may survive."""
    for letter, properties in dict(account.properties).items():
        if properties != ServiceProperties():
            await account.set_properties(letter, ServiceProperties())
    return Emptied(
        account.name,
        await _remove_tables(account),
        await _remove_queues(account),
        await _remove_containers(account),
    )


async def _remove_tables(account: Account) -> int:
    removed, start = 0, ""
    while True:
        page = await account.tables.list_tables(None, start=start)
        for table in page.tables:
            with contextlib.suppress(ConflictError):  # another client was faster
                await account.tables.delete_table(table.name)
                removed += 1
        if page.continuation is None:
            return removed
        start = page.continuation


async def _remove_queues(account: Account) -> int:
    removed, start = 0, ""
    while True:
        page = await account.queues.list_queues(start=start)
        for queue in page.queues:
            with contextlib.suppress(ConflictError):
                await account.queues.delete_queue(queue.name)
                removed += 1
        if page.continuation is None:
            return removed
        start = page.continuation


async def _remove_containers(account: Account) -> int:
    containers, removed, marker = account.blobs.containers, 0, ""
    while True:
        page = await containers.list_containers(marker=marker, with_deleted=True)
        for container in page.items:
            if container.version is not None:
                await containers.forget_container(container.name, container.version)
                continue
            with contextlib.suppress(ConflictError):  # it has no lease
                await containers.lease_container(container.name, _AT_ONCE)
            with contextlib.suppress(ConflictError):
                await containers.delete_container(container.name)
                removed += 1
        if page.next_marker is None:
            return removed
        marker = page.next_marker
