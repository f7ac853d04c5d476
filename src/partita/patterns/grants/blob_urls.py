"""Addresses of large values, signed for a limited time."""

from datetime import UTC, timedelta
from urllib.parse import quote

from azure.storage.blob import BlobSasPermissions, generate_blob_sas

from partita.patterns.fields.large_values import LargeValue
from partita.patterns.grants.grants import SKEW_SECONDS, GrantTerms, check_terms
from partita.patterns.protocol.utc import utc_now
from partita.ticks import Clock


def signed_url(
    value: LargeValue, credential: tuple[str, str, str], clock: Clock, ttl: timedelta
) -> str:
    """Return an address at which the holder can read one blob until `ttl` has passed.

    `credential` has the account, its key, and the endpoint of blobs.
    """
    check_terms(GrantTerms("r", ttl))
    account, key, endpoint = credential
    now = utc_now(clock).astimezone(UTC)
    token = generate_blob_sas(
        account,
        value.container,
        value.name,
        account_key=key,
        permission=BlobSasPermissions(read=True),
        start=now - timedelta(seconds=SKEW_SECONDS),
        expiry=now + ttl,
        protocol="https" if endpoint.startswith("https:") else None,
    )
    path = quote(f"{value.container}/{value.name}", safe="/~()*!.'")
    return f"{endpoint.rstrip('/')}/{path}?{token}"
