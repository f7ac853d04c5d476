"""Conditional headers of requests. Pure.

Last-Modified has whole seconds, so times are compared in seconds. The lease is checked before.
Source: REST reference, "Specifying conditional headers for Blob service operations".
"""

from collections.abc import Mapping

from partita.blobs.rules import tags as tag_rules
from partita.blobs.rules.model import Conditions, SequenceConditions, etag_of
from partita.errors import ConflictError, InvalidRequestError
from partita.ticks import TICKS_PER_SECOND


def check_read(conditions: Conditions, changed_at: int, tags: Mapping[str, str]) -> None:
    """Check a read; `facts["unchanged"]` marks a client that has the current version."""
    etag = etag_of(changed_at)
    if conditions.if_match and not _holds(conditions.if_match, etag):
        raise _not_met()
    if not _is_unmodified(conditions, changed_at):
        raise _not_met()
    check_tags(conditions, tags)
    if "*" in conditions.if_none_match:
        raise InvalidRequestError(
            "UnsatisfiableCondition",
            "The request includes an unsatisfiable condition for this operation.",
            hint="Use If-None-Match: * for writes only.",
        )
    wishes = []
    if conditions.if_none_match:
        wishes.append(not _holds(conditions.if_none_match, etag))
    if conditions.if_modified_since is not None:
        wishes.append(_whole(changed_at) > conditions.if_modified_since)
    if wishes and not any(wishes):
        raise _not_met(unchanged=True)


def check_write(
    conditions: Conditions,
    changed_at: int | None,
    tags: Mapping[str, str],
    *,
    creates: bool = False,
    holds_lease: bool = False,
) -> None:
    """Check a write; `changed_at` is None if the blob does not exist.

    `creates` marks operations that write a whole blob: `If-None-Match: *` then means "only if
    it does not exist" and has its own code. A request with the lease overwrites nevertheless, as
    in the service.
    """
    _check_combination(conditions)
    check_tags(conditions, tags)
    if changed_at is None:
        if conditions.if_match:
            raise _not_met()
        return
    etag = etag_of(changed_at)
    if "*" in conditions.if_none_match and creates:
        if not holds_lease:
            raise ConflictError("BlobAlreadyExists", "The specified blob already exists.")
    elif conditions.if_none_match and _holds(conditions.if_none_match, etag):
        raise _not_met()
    if conditions.if_match and not _holds(conditions.if_match, etag):
        raise _not_met()
    if not _is_modified(conditions, changed_at) or not _is_unmodified(conditions, changed_at):
        raise _not_met()


def check_container(conditions: Conditions, changed_at: int) -> None:
    """Check a change of a container: it supports only conditions on time."""
    if conditions.if_match or conditions.if_none_match or conditions.if_tags:
        raise InvalidRequestError(
            "ConditionHeadersNotSupported",
            "Condition headers are not supported.",
            hint="Use If-Modified-Since or If-Unmodified-Since for a container.",
        )
    if not _is_modified(conditions, changed_at) or not _is_unmodified(conditions, changed_at):
        raise _not_met()


def check_tier_time(conditions: Conditions, tier_changed_at: int | None) -> None:
    """Check the time of the last tier change; without one it is before all times."""
    changed = 0 if tier_changed_at is None else _whole(tier_changed_at)
    since, until = conditions.if_tier_modified_since, conditions.if_tier_unmodified_since
    if (since is not None and changed <= since) or (until is not None and changed > until):
        raise _not_met()


def check_sequence(conditions: SequenceConditions, number: int) -> None:
    is_met = (
        (conditions.at_most is None or number <= conditions.at_most)
        and (conditions.below is None or number < conditions.below)
        and (conditions.equal is None or number == conditions.equal)
    )
    if not is_met:
        raise ConflictError(
            "SequenceNumberConditionNotMet",
            "The sequence number condition specified was not met.",
            facts={"sequence_number": number},
        )


def source_error(error: ConflictError) -> ConflictError:
    """Return the error of a failed condition on the source of a copy."""
    return ConflictError(
        "SourceConditionNotMet",
        "The source condition specified using HTTP conditional header(s) is not met.",
        facts=error.facts,
    )


def _check_combination(conditions: Conditions) -> None:
    has_match = bool(conditions.if_match) or conditions.if_unmodified_since is not None
    has_none_match = bool(conditions.if_none_match) or conditions.if_modified_since is not None
    if has_match and has_none_match:
        raise InvalidRequestError(
            "MultipleConditionHeadersNotSupported",
            "Multiple condition headers are not supported.",
            hint="Combine If-Match with If-Unmodified-Since, or the other two headers.",
        )


def check_tags(conditions: Conditions, tags: Mapping[str, str]) -> None:
    """Check the expression on tags."""
    if conditions.if_tags is not None and not tag_rules.matches(conditions.if_tags, tags):
        raise _not_met()


def _holds(etags: tuple[str, ...], etag: str) -> bool:
    return "*" in etags or etag in etags


def _is_modified(conditions: Conditions, changed_at: int) -> bool:
    since = conditions.if_modified_since
    return since is None or _whole(changed_at) > since


def _is_unmodified(conditions: Conditions, changed_at: int) -> bool:
    since = conditions.if_unmodified_since
    return since is None or _whole(changed_at) <= since


def _whole(ticks: int) -> int:
    return ticks - ticks % TICKS_PER_SECOND


def _not_met(*, unchanged: bool = False) -> ConflictError:
    return ConflictError(
        "ConditionNotMet",
        "The condition specified using HTTP conditional header(s) is not met.",
        facts={"unchanged": True} if unchanged else None,
        hint="Read the blob again, then decide.",
    )
