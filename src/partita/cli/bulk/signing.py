"""`partita sas`: a shared access signature, and what it permits in words."""

from partita.bulk.connecting import parse_where
from partita.bulk.signatures import SasTerms, sign_terms
from partita.cli.bulk.facts import SasFacts
from partita.cli.bulk.opening import get_where
from partita.cli.kit.commands import Given
from partita.clock import SystemClock
from partita.service.accounts.development import (
    DEVELOPMENT_ACCOUNT,
    DEVELOPMENT_KEY,
    ENDPOINTS,
)
from partita.service.hosting.locations import Folder


async def sas(given: Given) -> SasFacts:
    place = parse_where(get_where(given))
    if isinstance(place, Folder):
        account, key, endpoints = DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, ENDPOINTS
    else:
        account, key, endpoints = place.account, place.key, place.endpoints
    named = {each: getattr(given, each) for each in SasTerms.__struct_fields__}
    terms = SasTerms(**{name: value for name, value in named.items() if value is not None})
    made = sign_terms(terms, account, key, endpoints, SystemClock().ticks())
    return SasFacts(
        made.url,
        made.connection_string,
        made.token,
        made.grants,
        made.expiry,
        given.connection_string,
    )
