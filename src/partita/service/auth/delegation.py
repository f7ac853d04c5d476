"""User delegation keys: made for the owner of a token, and valid for SAS of one service. Pure.

A key is computed from the first key of the account and its own fields, so that it is not stored and
every front end knows it; replacing the account key revokes it. What the roles of its owner
permitted when it was made is part of the computation: a SAS never permits more.
"""

import binascii
import re
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

import msgspec

from partita.errors import NotAuthorizedError
from partita.refusals import invalid_xml_value
from partita.service.auth.bearer import Identity
from partita.service.auth.policy import parse_time
from partita.service.auth.roles import DELEGATED
from partita.service.auth.shared_key import SigningKey, authentication_failed
from partita.service.formats.xml_text import (
    document,
    name_of,
    not_valid,
    parse_xml,
    text_element,
    text_of,
)
from partita.tables.edm import text_of as time_text
from partita.ticks import TICKS_PER_DAY, TICKS_PER_SECOND

KEY_DAYS_MAX = 7
"""How long a key is valid at most, from the time when it is made."""
KEY_TERMS_BYTES_MAX = 4 * 1024
_TERMS = ("Start", "Expiry", "DelegatedUserTid")

_PURPOSE, _PURPOSE_FOR_USERS = "UserDelegationKey1", "UserDelegationKey2"
"""The first line of the signed text: no other text that an account key signs begins with it."""
_TENANT = re.compile(r"[0-9A-Za-z-]{1,64}")


class KeyTerms(msgspec.Struct, frozen=True):
    """What a request for a key asks for, in ticks; `start` 0 means now."""

    expiry: int
    start: int = 0
    user_tid: str = ""
    """The tenant of the users that SAS of the key are for; empty: they need not name a user."""


class DelegationKey(msgspec.Struct, frozen=True):
    """The fields of a user delegation key as a SAS repeats them; its value is not among them."""

    oid: str
    tid: str
    start: str
    expiry: str
    service: str
    version: str
    user_tid: str = ""

    def is_valid_at(self, now: int) -> bool:
        """Return whether the key is valid at this time."""
        starts, ends = parse_time(self.start), parse_time(self.expiry)
        return starts is not None and ends is not None and starts <= now < ends

    def value(self, key: SigningKey, account: str, letters: str) -> bytes:
        """Return the secret of the key, for an owner whose roles permit these letters."""
        fields = (self.oid, self.tid, self.start, self.expiry, self.service, self.version)
        if not self.user_tid:
            return key.signature("\n".join((_PURPOSE, account, *fields, letters)))
        users = (_PURPOSE_FOR_USERS, account, *fields, self.user_tid, letters)
        return key.signature("\n".join(users))

    def signing_keys(
        self, keys: Sequence[SigningKey], account: str
    ) -> Iterator[tuple[str, SigningKey]]:
        """List the keys that this can be, with what the roles of its owner permit."""
        for letters in DELEGATED.get(self.service, ()):
            for key in keys:
                yield letters, SigningKey(self.value(key, account, letters))


def parse_key_terms(body: bytes) -> KeyTerms:
    """Parse the document `KeyInfo` of a request.

    >>> parse_key_terms(b"<KeyInfo><Expiry>1970-01-01T00:00:01Z</Expiry></KeyInfo>").expiry
    10000000
    """
    times: dict[str, int] = {}
    tenants: list[str] = []
    for child in parse_xml(body, "KeyInfo", bytes_max=KEY_TERMS_BYTES_MAX, elements_max=8):
        name = name_of(child)
        is_tenant = name == "DelegatedUserTid"
        if name in times or (is_tenant and tenants) or name not in _TERMS:
            raise not_valid(hint="Use one Start and one Expiry in KeyInfo.")
        if is_tenant:
            tenants.append(_tenant(child))
        else:
            times[name] = _time(child)
    if "Expiry" not in times:
        raise not_valid(hint="Give Expiry in KeyInfo.")
    return KeyTerms(times["Expiry"], times.get("Start", 0), "".join(tenants))


def _tenant(element: Element) -> str:
    text = text_of(element).strip()
    if text and not _TENANT.fullmatch(text):
        raise invalid_xml_value(hint="Use the identifier of a tenant for DelegatedUserTid.")
    return text


def _time(element: Element) -> int:
    text = text_of(element).strip()
    if not text and name_of(element) == "Start":
        return 0
    ticks = parse_time(text)
    if ticks is None:
        raise invalid_xml_value(hint=f"Use an ISO 8601 time for {name_of(element)}.")
    return ticks


def make_key(
    terms: KeyTerms, identity: Identity, *, service: str, version: str, now: int
) -> DelegationKey:
    """Return the key that a request gets; equal requests get equal keys."""
    start = terms.start or now
    if terms.expiry <= max(start, now) or terms.expiry > now + KEY_DAYS_MAX * TICKS_PER_DAY:
        raise invalid_xml_value(
            hint=f"Use an Expiry after Start, in the future and within {KEY_DAYS_MAX} days."
        )
    times = _seconds(start), _seconds(terms.expiry)
    return DelegationKey(identity.oid, identity.tid, *times, service, version, terms.user_tid)


def print_key(key: DelegationKey, value: bytes) -> bytes:
    """Return the answer to a request for a key."""
    texts = {
        "SignedOid": key.oid,
        "SignedTid": key.tid,
        "SignedStart": key.start,
        "SignedExpiry": key.expiry,
        "SignedService": key.service,
        "SignedVersion": key.version,
        **({"SignedDelegatedUserTid": key.user_tid} if key.user_tid else {}),
        "Value": binascii.b2a_base64(value, newline=False).decode(),
    }
    content = "".join(text_element(name, text) for name, text in texts.items())
    return document("UserDelegationKey", content)


def only_for_tokens() -> NotAuthorizedError:
    """Return the refusal of a request for a key without a bearer token."""
    return authentication_failed(
        hint="Only a bearer token gets a user delegation key: start the server with"
        " --oauth-issuer, or make the SAS with an account key.",
        setting="credential",
    )


def _seconds(ticks: int) -> str:
    return time_text(ticks - ticks % TICKS_PER_SECOND)
