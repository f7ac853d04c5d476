"""Service properties and statistics: calls that all three services answer the same way."""

from partita.refusals import invalid_parameter
from partita.service.accounts import service_properties_xml as xml_wire
from partita.service.accounts.respond import AuthorizedRequest
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
