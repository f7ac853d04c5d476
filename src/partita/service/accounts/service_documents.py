"""Service properties, statistics, user delegation keys: answered the same way by all services."""

from partita.refusals import invalid_parameter
from partita.service.accounts import service_properties_xml as xml_wire
from partita.service.accounts.respond import AuthorizedRequest
from partita.service.auth import delegation
from partita.service.http.request import Response

_XML = ("Content-Type", "application/xml")


async def get_properties(authorized: AuthorizedRequest, letter: str) -> Response:
    await authorized.account.refresh_properties()
    properties = authorized.account.properties[letter]
    return Response(200, [_XML], xml_wire.print_properties(properties, authorized.version, letter))


async def set_properties(authorized: AuthorizedRequest, letter: str, body: bytes) -> Response:
    await authorized.account.refresh_properties()
    current = authorized.account.properties[letter]
    wanted = xml_wire.parse_properties(body, current, authorized.version, letter)
    await authorized.account.set_properties(letter, wanted)
    return Response(202)


def get_statistics(authorized: AuthorizedRequest) -> Response:
    if not authorized.target.is_secondary:
        raise invalid_parameter(hint="Ask the secondary endpoint for statistics.")
    return Response(200, [_XML], xml_wire.print_stats("live", authorized.now))


def get_user_delegation_key(
    authorized: AuthorizedRequest, terms: delegation.KeyTerms, letter: str
) -> Response:
    """Answer with the key that the owner of the bearer token can sign SAS of a service with."""
    identity, rights = authorized.grant.identity, authorized.grant.rights
    if identity is None or rights is None:
        raise delegation.only_for_tokens()
    key = delegation.make_key(
        terms, identity, service=letter, version=authorized.version, now=authorized.now
    )
    account = authorized.account
    value = key.value(account.keys[0], account.name, rights.delegated)
    return Response(200, [_XML], delegation.print_key(key, value))
