"""What the functions of the API share: accounts, jobs, tickets, and which accounts are unlocked."""

import base64
import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from partita.console.accounts import ConsoleAccount, SdkImport
from partita.console.jobs import Jobs
from partita.console.sources.catalogs import ShardCatalog
from partita.console.sources.fleets import ShardFleet
from partita.console.sources.operations import Operations
from partita.console.sources.states import OpenState, States
from partita.console.transfers.files import Files
from partita.console.transfers.tickets import Tickets
from partita.console.transfers.uploads import Uploads
from partita.errors import NotAuthorizedError
from partita.service.http.request import Request
from partita.ticks import Clock

if TYPE_CHECKING:
    from partita.console.sources.types import EntityTypes

UNLOCKS_MAX: Final = 64
"""Tabs that have unlocked an account; the oldest is forgotten."""
UNLOCK_HEADER: Final = "x-partita-unlock"

_START_WRITABLE: Final = "Start the console without --read-only."


class Sources(msgspec.Struct, frozen=True):
    """What the console shows besides accounts; None: it is not part of this console."""

    operations: Operations | None = None
    states: States | OpenState | None = None
    catalog: ShardCatalog | None = None
    fleet: ShardFleet | None = None
    types: "EntityTypes | None" = None


class Services:
    """The objects of one console."""

    def __init__(
        self,
        accounts: Sequence[ConsoleAccount],
        clock: Clock,
        *,
        is_read_only: bool = False,
        sources: Sources | None = None,
    ) -> None:
        self.accounts = {account.name: account for account in accounts}
        self.clock = clock
        self.is_read_only = is_read_only
        """Whether no account can be unlocked."""
        found = sources or Sources()
        self.operations = found.operations
        self.states = found.states
        self.catalog = found.catalog
        self.fleet = found.fleet
        self.types = found.types
        self.sdk = SdkImport()
        self.jobs = Jobs(clock)
        self.tickets = Tickets(clock)
        self.uploads = Uploads()
        self.files = Files(clock)
        self._unlocks: dict[str, str] = {}
        """The account that each secret of a tab unlocks."""

    def unlock(self, account: ConsoleAccount, typed: str) -> str:
        """Return the secret that makes an account writable for one tab."""
        if self.is_read_only:
            raise _read_only(
                _of(account), "It was started with --read-only, which no page changes."
            )
        if typed != account.name:
            raise NotAuthorizedError(
                "ConsoleUnlockRefused",
                "The typed name is not the name of the account.",
                facts={"account": account.name},
                hint="Type the name exactly as the page shows it.",
            )
        while len(self._unlocks) >= UNLOCKS_MAX:
            del self._unlocks[next(iter(self._unlocks))]
        secret = base64.urlsafe_b64encode(self.clock.random_bytes(32)).rstrip(b"=").decode()
        self._unlocks[secret] = account.name
        return secret

    def lock(self, request: Request) -> None:
        """Forget the secret that a request carries."""
        self._unlocks.pop(request.headers.get(UNLOCK_HEADER, ""), None)

    def check_writable(self, account: ConsoleAccount, request: Request) -> None:
        """Refuse a change of an account that is read-only."""
        if self.is_read_only:
            raise _read_only(_of(account), _START_WRITABLE)
        if account.facts.is_development:
            return
        given = request.headers.get(UNLOCK_HEADER, "").encode()
        for secret, name in self._unlocks.items():
            if name == account.name and hmac.compare_digest(given, secret.encode()):
                return
        raise _read_only(_of(account), "Unlock the account in the bar at the top of the page.")

    def check_fleet_writable(self) -> None:
        """Refuse a change of the fleet, if nothing may be changed."""
        if self.is_read_only:
            raise _read_only({}, _START_WRITABLE)

    async def close(self) -> None:
        await self.jobs.close()
        self.files.close()
        if self.states is not None:
            await self.states.close()
        if self.catalog is not None:
            await self.catalog.close()
        if self.fleet is not None:
            await self.fleet.close()
        await self.sdk.close()
        for account in self.accounts.values():
            await account.close()


def _of(account: ConsoleAccount) -> dict[str, str]:
    return {"account": account.name}


def _read_only(facts: dict[str, str], hint: str) -> NotAuthorizedError:
    what = "account" if facts else "fleet"
    return NotAuthorizedError(
        "ConsoleReadOnly", f"The console shows this {what} read-only.", facts=facts, hint=hint
    )
