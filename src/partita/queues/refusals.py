"""The errors that every queue store raises. Pure."""

from partita.errors import (
    InvalidRequestError,
    MessageNotFoundError,
    QueueExistsError,
    QueueNotFoundError,
    ReceiptMismatchError,
)
from partita.queues.message import MessagePlace, print_id
from partita.refusals import invalid_parameter


def queue_not_found(name: str) -> QueueNotFoundError:
    return QueueNotFoundError(
        "QueueNotFound", "The specified queue does not exist.", facts={"queue": name}
    )


def queue_exists(name: str) -> QueueExistsError:
    return QueueExistsError(
        "QueueAlreadyExists", "The specified queue already exists.", facts={"queue": name}
    )


def message_not_found(queue: str, place: MessagePlace) -> MessageNotFoundError:
    return MessageNotFoundError(
        "MessageNotFound",
        "The specified message does not exist.",
        facts={"queue": queue, "message": print_id(place)},
        hint="Skip the message: it was deleted or has expired.",
    )


def receipt_mismatch(queue: str, place: MessagePlace) -> ReceiptMismatchError:
    return ReceiptMismatchError(
        "MessageNotFound",
        "The specified message does not exist.",
        facts={"queue": queue, "message": print_id(place)},
        hint="Use the receipt of the last receive or update of the message.",
    )


def beyond_expiry(hidden_seconds: int) -> InvalidRequestError:
    return invalid_parameter(
        "visibilitytimeout",
        str(hidden_seconds),
        "The message would be hidden beyond its expiry.",
        hint="Use a shorter visibilitytimeout: a message cannot be hidden beyond its expiry.",
    )
