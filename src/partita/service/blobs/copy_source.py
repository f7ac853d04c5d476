"""The source of a copy: another blob of this server, of the same account or of another.

A source on another server is only used if the operator has allowed its host: `external_source`.

A request that is signed with the key of the source's account may read it; any other request
needs a SAS in the address, a bearer token in a header of its own, or a public container. The tags
of the source need a SAS with `t`. A bearer token is never sent to another server.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from partita.blobs.rules.model import BlobName, Opened
from partita.errors import NotAuthorizedError, PartitaError
from partita.refusals import invalid_header, not_implemented
from partita.service.accounts.account import Account, Accounts
from partita.service.accounts.respond import AuthorizedRequest, locate
from partita.service.auth import bearer
from partita.service.auth.sas import (
    ANONYMOUS,
    OBJECT,
    READ,
    TAGS,
    BlobScope,
    Grant,
    Need,
    Sas,
    evaluate,
    parse_sas,
)
from partita.service.auth.shared_key import malformed
from partita.service.blobs.address import OneBlob, parse_blob_resource, parse_copy_source
from partita.service.blobs.external_source import (
    ExternalSource,
    external_source,
    is_allowed,
    opened_external,
)
from partita.service.blobs.wire import COPY_SOURCE, COPY_SOURCE_AUTHORIZATION, CopySource
from partita.service.formats.address import parse_query
from partita.service.formats.query_options import options_of


class Source(msgspec.Struct, frozen=True):
    """A blob of this server, and the address that named it."""

    account: Account
    name: BlobName
    address: str


async def find_source(
    authorized: AuthorizedRequest,
    accounts: Accounts,
    wanted: CopySource,
    *,
    is_trusted: bool = False,
    copies_tags: bool = False,
) -> Source | ExternalSource:
    """Find the blob that a request copies from, and check that it may read it.

    `is_trusted`: the key of the account is enough for a blob of the same account. `copies_tags`:
    the request also reads the tags of the source.
    """
    request, address = authorized.request, wanted.address
    host, path, query = parse_copy_source(address)
    asked_host = request.headers.get("host", "")
    is_elsewhere = is_allowed(address, accounts.copy_hosts) and host.lower() != asked_host.lower()
    if is_elsewhere or not _is_here(host, asked_host, accounts):
        if COPY_SOURCE_AUTHORIZATION in request.headers:
            hint = f"Omit {COPY_SOURCE_AUTHORIZATION}: it is not sent to another server."
            raise not_implemented(hint)
        return external_source(address, accounts.copy_hosts)
    target = locate(request.scheme, host, path, accounts, "blob")
    pairs = parse_query(query)
    options = options_of(pairs)
    resource = parse_blob_resource(target.path, is_container=False)
    if not isinstance(resource, OneBlob):
        raise invalid_header(COPY_SOURCE, address, "Use the address of a blob.")
    account = accounts[target.account]
    name = BlobName(
        resource.container,
        resource.name,
        options.get("snapshot") or None,
        options.get("versionid") or None,
    )
    reads_tags = copies_tags or wanted.terms.conditions.if_tags is not None
    is_own = account is authorized.account and _reads_blobs(
        authorized.grant, "rt" if reads_tags else "r"
    )
    if COPY_SOURCE_AUTHORIZATION in request.headers or not (is_trusted and is_own):
        source = _Asked(account, target.path, pairs, name)
        await _check_source(authorized, accounts, source, reads_tags=reads_tags)
    return Source(account, name, address.partition("?")[0])


def _reads_blobs(grant: Grant, letters: str) -> bool:
    """Return whether a key or a role permits this for every blob of the account."""
    rights = grant.rights
    return grant.everything or (rights is not None and set(letters) <= set(rights.object))


def _is_here(host: str, asked_host: str, accounts: Accounts) -> bool:
    account, _, rest = host.lower().partition(".")
    if host.lower() == asked_host.lower() or (rest.startswith("blob.") and account in accounts):
        return True
    # The same port: another name of this server, such as localhost or a host of the account.
    return host.rpartition(":")[2] == asked_host.rpartition(":")[2] and ":" in host


class _Asked(msgspec.Struct, frozen=True):
    """A source whose address is decoded."""

    account: Account
    path: str
    pairs: list[tuple[str, str]]
    name: BlobName


async def _check_source(
    authorized: AuthorizedRequest, accounts: Accounts, source: _Asked, *, reads_tags: bool
) -> None:
    name = source.name
    scope = BlobScope(name.container, name.name, name.snapshot, name.version)
    token = authorized.request.headers.get(COPY_SOURCE_AUTHORIZATION)
    has_credentials = token is not None
    try:
        sas = parse_sas(source.pairs, "b", source.path, allows_old=accounts.allows_old_sas)
        has_credentials = has_credentials or sas is not None
        if token is None:
            grant = await _grant_of_sas(authorized, accounts, source, sas)
        elif sas is None:
            grant = await _grant_of_token(authorized, accounts, source, token)
        else:
            raise malformed(hint=f"Use {COPY_SOURCE_AUTHORIZATION} or a SAS of the source.")
        grant.check(Need(OBJECT, READ, scope))
        if reads_tags:
            grant.check(Need(OBJECT, TAGS, scope))
    except NotAuthorizedError as error:
        code = error.code if has_credentials else "NoAuthenticationInformation"
        raise NotAuthorizedError(
            "CannotVerifyCopySource",
            "Server failed to authenticate the request. Please refer to the information in the"
            " www-authenticate header.",
            facts={"status": 403 if has_credentials else 401, "source": code},
            hint="Add a SAS of the source to x-ms-copy-source, or make its container public."
            " To copy its tags, or with x-ms-source-if-tags, use a SAS with the permission t.",
            setting="public access",
        ) from error


async def _grant_of_sas(
    authorized: AuthorizedRequest, accounts: Accounts, source: _Asked, sas: Sas | None
) -> Grant:
    account, found = source.account, None
    if account.name:
        found = await account.blobs.containers.find_container(source.name.container)
    if sas is None:
        return ANONYMOUS.opened(None if found is None else found.access)
    return evaluate(
        sas,
        service="b",
        account=account.name,
        keys=account.keys,
        policies=() if found is None else found.policies,
        now=authorized.now,
        peer=authorized.request.peer,
        scheme=authorized.request.scheme,
        allows_delegation=accounts.issuer is not None,
    )


async def _grant_of_token(
    authorized: AuthorizedRequest, accounts: Accounts, source: _Asked, text: str
) -> Grant:
    """Return what the bearer token for the source permits there."""
    request, issuer = authorized.request, accounts.issuer
    kind, _, token = text.partition(" ")
    if kind != "Bearer" or COPY_SOURCE_AUTHORIZATION in request.repeated:
        raise malformed(hint=f"Send one Bearer token in {COPY_SOURCE_AUTHORIZATION}.")
    if issuer is None or not source.account.name:
        raise bearer.challenge(request, issuer)
    try:
        bearer.check_transport(request, issuer)
        accepted = await issuer.accept(token.strip(), source.account.name, "blob", authorized.now)
    except bearer.TokenRefusedError as error:
        raise bearer.challenge(request, issuer, str(error)) from error
    return Grant.of_token(accepted.identity, accepted.rights_in("b"), "b")


@asynccontextmanager
async def opened(source: Source | ExternalSource, wanted: CopySource) -> AsyncIterator[Opened]:
    """Open the source for reading; its errors have their own code."""
    if isinstance(source, ExternalSource):
        async with opened_external(source, wanted) as elsewhere:
            yield elsewhere
        return
    try:
        found = await source.account.blobs.open_blob(
            source.name,
            first=None if wanted.range is None else wanted.range.first,
            last=None if wanted.range is None else wanted.range.last,
            terms=wanted.terms,
        )
    except PartitaError as error:
        raise unverified(error) from error
    try:
        yield found
    finally:
        await found.content.close()


def unverified(error: PartitaError) -> PartitaError:
    """Return the error of a source that is missing or does not meet its conditions."""
    statuses = {"BlobNotFound": 404, "ContainerNotFound": 404, "ResourceNotFound": 404}
    status = statuses.get(error.code)
    if error.code in ("ConditionNotMet", "SourceConditionNotMet"):
        status = 304 if error.facts.get("unchanged") else 412
    if status is None:
        return error
    return type(error)(
        "CannotVerifyCopySource",
        "Could not verify the copy source within the specified time."
        if status == 404
        else "The source condition specified using HTTP conditional header(s) is not met.",
        facts={**error.facts, "status": status},
        hint=error.hint,
    )
