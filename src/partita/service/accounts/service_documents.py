"""Service properties and statistics: the calls that every service answers alike."""

from partita.errors import InvalidRequestError
from partita.service.accounts import service_properties_xml as xml_wire
from partita.service.accounts.respond import Asked
from partita.service.http.request import Response

_XML = ("Content-Type", "application/xml")


def get_properties(asked: Asked, letter: str) -> Response:
    properties = asked.account.properties_of(letter)
    return Response(200, [_XML], xml_wire.print_properties(properties, asked.version, letter))


async def set_properties(asked: Asked, letter: str) -> Response:
    current = asked.account.properties_of(letter)
    wanted = xml_wire.parse_properties(asked.request.body, current, asked.version, letter)
    await asked.account.set_properties(letter, wanted)
    return Response(202)


def get_statistics(asked: Asked) -> Response:
    if not asked.target.is_secondary:
        raise InvalidRequestError(
            "InvalidQueryParameterValue",
            "Value for one of the query parameters specified in the request URI is invalid.",
            hint="Statistics are served by the secondary endpoint.",
        )
    return Response(200, [_XML], xml_wire.print_stats("live", asked.now))
