"""The session of a tab: version and accounts; unlocking and locking an account."""

import msgspec

import partita
from partita.console.calls import Answer, Call, Route


class Unlock(msgspec.Struct, forbid_unknown_fields=True):
    """The name of the account, as the user typed it."""

    name: str


async def show(call: Call) -> Answer:
    """Return what the page needs to draw itself."""
    services = call.services
    if services.accounts:
        services.sdk.begin()  # because a page was opened: the first queue or blob shall not wait
    return {
        "version": partita.__version__,
        "read_only": services.is_read_only,
        "has_operations": services.operations is not None,
        "has_states": services.states is not None,
        "has_shards": services.catalog is not None,
        "has_fleet": services.fleet is not None,
        "types": {} if services.types is None else services.types.tables(),
        "accounts": [account.facts for account in services.accounts.values()],
    }


async def unlock(call: Call) -> Answer:
    """Return the secret that this tab sends with its changes."""
    return {"unlock": call.services.unlock(call.account, call.decode(Unlock).name)}


async def lock(call: Call) -> Answer:
    """Make the account read-only again for this tab."""
    call.services.lock(call.request)
    return {}


ROUTES = (
    Route("GET", "/api/v1/session", show),
    Route("POST", "/api/v1/a/{account}/unlock", unlock),
    Route("POST", "/api/v1/a/{account}/lock", lock),
)
