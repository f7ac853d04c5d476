"""Shared access signatures: made here from the key, which never reaches the page."""

from partita.bulk.signatures import SasTerms, sign_terms
from partita.console.api.sdk_errors import sdk_errors
from partita.console.calls import Answer, Call, Route, sdk_route
from partita.console.errors import check_name, invalid
from partita.errors import ConfigurationError


async def make_sas(call: Call) -> Answer:
    """Sign terms; return the signature and what it permits."""
    remote, now = call.account.remote, call.services.clock.ticks()
    terms = call.decode(SasTerms)
    try:
        return sign_terms(terms, call.account.name, remote.key, remote.endpoints, now)
    except ConfigurationError as error:  # an error of the form, not of the server
        raise invalid(error.message, error.hint) from error


async def list_policies(call: Call) -> Answer:
    """Return the stored access policies of a queue or container, by name."""
    name = check_name("queue or container", call.query.get("name", ""))
    with sdk_errors():
        if call.query.get("kind") == "queue":
            found = await call.account.queues.get_queue_client(name).get_queue_access_policy()
            return {"policies": sorted(found)}
        policy = await call.account.blobs.get_container_client(name).get_container_access_policy()
    return {"policies": sorted(each.id for each in policy["signed_identifiers"])}


ROUTES = (
    Route("POST", "/api/v1/a/{account}/sas", make_sas, writes=True),
    sdk_route("GET", "/api/v1/a/{account}/policies", list_policies),
)
