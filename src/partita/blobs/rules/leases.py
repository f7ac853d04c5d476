"""Leases of blobs and containers: a state machine over ticks. Pure.

A lease is stored as its id, its end and the time of its break; its state follows from the
current time. Source: REST reference, "Lease Blob", tables of outcomes.
"""

from typing import Literal
from uuid import UUID

import msgspec

from partita.blobs.rules import limits
from partita.blobs.rules.model import LeaseFacts, LeaseRequest, LeaseState
from partita.errors import ConflictError
from partita.refusals import invalid_header, missing_header
from partita.ticks import TICKS_PER_SECOND

Thing = Literal["Blob", "Container"]


class Lease(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A lease: its id, and how long it is valid."""

    id: str
    duration: int
    """Seconds, or LEASE_INFINITE."""
    ends_at: int | None
    """None: it does not expire."""
    breaks_at: int | None = None
    """The time from which on it is broken."""


def state_at(lease: Lease | None, now: int) -> LeaseState:
    if lease is None:
        return "available"
    if lease.breaks_at is not None:
        return "breaking" if now < lease.breaks_at else "broken"
    if lease.ends_at is not None and now >= lease.ends_at:
        return "expired"
    return "leased"


def facts_at(lease: Lease | None, now: int) -> LeaseFacts:
    state = state_at(lease, now)
    if state != "leased" or lease is None:
        return LeaseFacts(state)
    return LeaseFacts(state, "infinite" if lease.ends_at is None else "fixed")


def lease_id_of(text: str, header: str = "x-ms-lease-id") -> str:
    """Return the id in canonical form."""
    try:
        return str(UUID(text))
    except ValueError:
        raise invalid_header(header, text) from None


def apply(
    lease: Lease | None, request: LeaseRequest, *, now: int, new_id: str
) -> tuple[Lease | None, int | None]:
    """Return the lease after a request, and the seconds until a break takes effect."""
    match request.action:
        case "acquire":
            return _acquire(lease, request, now, new_id), None
        case "renew":
            return _renew(_held(lease), _id_of(request), now), None
        case "change":
            return _change(_held(lease), request, now), None
        case "release":
            _require_match(_held(lease), _id_of(request))
            return None, None
        case "break":
            broken = _break(_held(lease), request.break_period, now)
            assert broken.breaks_at is not None
            return broken, -(-max(broken.breaks_at - now, 0) // TICKS_PER_SECOND)


def check_use(
    lease: Lease | None, lease_id: str | None, *, now: int, writes: bool, thing: Thing = "Blob"
) -> None:
    """Refuse a request that lacks the lease, or that has the id of another lease."""
    state = state_at(lease, now)
    if lease_id is None:
        if writes and state in ("leased", "breaking"):
            raise _refused(
                "LeaseIdMissing",
                f"There is currently a lease on the {thing.lower()} and no lease ID was specified "
                "in the request.",
            )
        return
    given = lease_id_of(lease_id)
    if lease is None:
        raise _not_present(thing)
    if given != lease.id:
        raise _mismatch(thing)
    if state in ("expired", "broken"):
        raise _refused(
            "LeaseLost",
            f"A lease ID was specified, but the lease for the {thing.lower()} has expired.",
        )


def after_write(lease: Lease | None, now: int) -> Lease | None:
    """Return the lease after a write: an expired one can no longer be renewed."""
    return None if state_at(lease, now) == "expired" else lease


def _acquire(lease: Lease | None, request: LeaseRequest, now: int, new_id: str) -> Lease:
    duration = request.duration
    if duration is None:
        raise missing_header("x-ms-lease-duration")
    is_fixed = limits.LEASE_SECONDS_MIN <= duration <= limits.LEASE_SECONDS_MAX
    if not is_fixed and duration != limits.LEASE_INFINITE:
        raise invalid_header("x-ms-lease-duration", str(duration))
    proposed = request.proposed_id
    wanted = lease_id_of(proposed, "x-ms-proposed-lease-id") if proposed is not None else new_id
    state = state_at(lease, now)
    if lease is not None and state == "breaking" and wanted == lease.id:
        raise _conflict(
            "LeaseIsBreakingAndCannotBeAcquired",
            "The lease ID matched, but the lease is currently in breaking state and cannot be "
            "acquired until it is broken.",
        )
    if lease is not None and state in ("leased", "breaking") and wanted != lease.id:
        raise _conflict("LeaseAlreadyPresent", "There is already a lease present.")
    return Lease(wanted, duration, now + duration * TICKS_PER_SECOND if is_fixed else None)


def _renew(lease: Lease, lease_id: str, now: int) -> Lease:
    _require_match(lease, lease_id)
    if lease.breaks_at is not None:
        raise _conflict(
            "LeaseIsBrokenAndCannotBeRenewed",
            "The lease ID matched, but the lease has been broken explicitly and cannot be renewed.",
        )
    ends_at = None if lease.ends_at is None else now + lease.duration * TICKS_PER_SECOND
    return Lease(lease.id, lease.duration, ends_at)


def _change(lease: Lease, request: LeaseRequest, now: int) -> Lease:
    if request.proposed_id is None:
        raise invalid_header("x-ms-proposed-lease-id", "")
    given = _id_of(request)
    wanted = lease_id_of(request.proposed_id, "x-ms-proposed-lease-id")
    state = state_at(lease, now)
    if state in ("expired", "broken"):
        raise _not_held()
    if lease.id not in (given, wanted):
        raise _mismatch_of_lease()
    if state == "breaking":
        raise _conflict(
            "LeaseIsBreakingAndCannotBeChanged",
            "The lease ID matched, but the lease is currently in breaking state and cannot be "
            "changed.",
        )
    return msgspec.structs.replace(lease, id=wanted)


def _break(lease: Lease, period: int | None, now: int) -> Lease:
    if period is not None and not 0 <= period <= limits.LEASE_BREAK_SECONDS_MAX:
        raise invalid_header("x-ms-lease-break-period", str(period))
    if state_at(lease, now) in ("expired", "broken"):
        return msgspec.structs.replace(lease, breaks_at=now)
    ends = [at for at in (lease.breaks_at, lease.ends_at) if at is not None]
    if period is not None:
        ends.append(now + period * TICKS_PER_SECOND)
    return msgspec.structs.replace(lease, breaks_at=min(ends, default=now))


def _held(lease: Lease | None) -> Lease:
    if lease is None:
        raise _not_held()
    return lease


def _id_of(request: LeaseRequest) -> str:
    if request.lease_id is None:
        raise invalid_header("x-ms-lease-id", "")
    return lease_id_of(request.lease_id)


def _require_match(lease: Lease, lease_id: str) -> None:
    if lease.id != lease_id:
        raise _mismatch_of_lease()


def _not_held() -> ConflictError:
    return _conflict(
        "LeaseNotPresentWithLeaseOperation",
        "There is currently no lease on the blob or container.",
    )


def _mismatch_of_lease() -> ConflictError:
    return _conflict(
        "LeaseIdMismatchWithLeaseOperation",
        "The lease ID specified did not match the lease ID for the blob or container.",
    )


def _mismatch(thing: Thing) -> ConflictError:
    message = f"The lease ID specified did not match the lease ID for the {thing.lower()}."
    if thing == "Blob":
        return _refused("LeaseIdMismatchWithBlobOperation", message)
    return _refused("LeaseIdMismatchWithContainerOperation", message)


def _not_present(thing: Thing) -> ConflictError:
    message = f"There is currently no lease on the {thing.lower()}."
    if thing == "Blob":
        return _refused("LeaseNotPresentWithBlobOperation", message)
    return _refused("LeaseNotPresentWithContainerOperation", message)


def _refused(code: str, message: str) -> ConflictError:
    return ConflictError(
        code, message, hint="Send the lease id in x-ms-lease-id, or wait until the lease ends."
    )


def _conflict(code: str, message: str) -> ConflictError:
    return ConflictError(code, message, hint="Read the properties to get the state of the lease.")
