"""Stored access policies: which ones are valid, and how a policy completes a SAS.

Start, expiry and permissions are each given by the token or by its policy, never by both: a
change of the policy must take effect on all its tokens.
"""

from collections.abc import Sequence

import msgspec

from partita.errors import InvalidRequestError, LimitExceededError
from partita.policies import Policy
from partita.refusals import invalid_xml, invalid_xml_value
from partita.service.auth.shared_key import authentication_failed
from partita.tables import edm, limits

LETTERS = {"t": "raud", "q": "raup", "b": "racwdxyltfmeopi"}
"""The permission letters of a SAS or policy of each service."""
TABLE_LETTERS = LETTERS["t"]


class Terms(msgspec.Struct, frozen=True, gc=False):
    """Start, expiry and permissions of a SAS; a policy can supply them. Empty: not given."""

    start: str = ""
    expiry: str = ""
    permissions: str = ""


def check_policies(policies: Sequence[Policy], letters: str = TABLE_LETTERS) -> None:
    """Raise unless the policies may be stored together."""
    if len(policies) > limits.POLICIES_MAX:
        raise invalid_xml(
            LimitExceededError, f"Store at most {limits.POLICIES_MAX} access policies."
        )
    if len({policy.id for policy in policies}) != len(policies):
        raise invalid_xml(InvalidRequestError, "Give each policy an Id of its own.")
    for policy in policies:
        _check_policy(policy, letters)


def _check_policy(policy: Policy, letters: str) -> None:
    if not 0 < len(policy.id) <= limits.POLICY_ID_CHARACTERS_MAX:
        raise invalid_xml_value(
            hint=f"Use an Id of 1 to {limits.POLICY_ID_CHARACTERS_MAX} characters."
        )
    for time in (policy.start, policy.expiry):
        if time is not None and parse_time(time) is None:
            raise invalid_xml_value(hint="Use ISO 8601 times for Start and Expiry.")
    if policy.permission is not None and not set(policy.permission) <= set(letters):
        raise invalid_xml_value(hint=f"Use letters of '{letters}' for Permission.")


def parse_time(text: str) -> int | None:
    """Parse a time of a SAS or policy into ticks; None if it is invalid."""
    ticks = edm.ticks_of(text)
    if ticks is None or not edm.TICKS_MIN <= ticks <= edm.TICKS_MAX:
        return None
    return ticks


def merge(given: Terms, policy: Policy | None) -> Terms:
    """Return the terms of a token completed by its policy.

    Start is optional; expiry and permissions are required.
    """
    terms = given
    if policy is not None:
        terms = Terms(
            _one_of("st", given.start, policy.start),
            _one_of("se", given.expiry, policy.expiry),
            _one_of("sp", given.permissions, policy.permission),
        )
    for name, value in (("se", terms.expiry), ("sp", terms.permissions)):
        if not value:
            raise authentication_failed(hint=f"Give {name} in the SAS or in its policy.")
    return terms


def _one_of(name: str, given: str, stored: str | None) -> str:
    if given and stored:
        raise authentication_failed(hint=f"Give {name} in the SAS or in its policy, not in both.")
    return given or stored or ""
