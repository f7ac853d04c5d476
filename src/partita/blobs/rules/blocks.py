"""Block lists: the ids of blocks, and what a list to commit stands for. Pure."""

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import TypeVar

from partita.blobs.rules import limits
from partita.blobs.rules.model import BlockChoice
from partita.errors import InvalidRequestError, LimitExceededError

T = TypeVar("T")


def check_block_id(block_id: str, others: str | None) -> str:
    """Return the id; `others` is one that the blob has, since all must have one length."""
    try:
        decoded = b64decode(block_id, validate=True)
    except (binascii.Error, ValueError):
        raise _bad_id("A block id is base64.") from None
    if not 1 <= len(decoded) <= limits.BLOCK_ID_BYTES_MAX:
        raise _bad_id("A block id has 1 to 64 bytes behind its base64.")
    if others is not None and len(others) != len(block_id):
        raise InvalidRequestError(
            "InvalidBlobOrBlock",
            "The specified blob or block content is invalid.",
            hint="All block ids of a blob have the same length.",
        )
    return block_id


def resolve(
    choices: Sequence[BlockChoice], committed: Mapping[str, T], staged: Mapping[str, T]
) -> list[T]:
    """Return the blocks that a list names, in its order."""
    if len(choices) > limits.BLOCKS_COMMITTED_MAX:
        raise LimitExceededError(
            "BlockListTooLong",
            "The block list may not contain more than 50,000 blocks.",
            facts={"blocks": len(choices)},
        )
    return [_resolve_one(choice, committed, staged) for choice in choices]


def _resolve_one(choice: BlockChoice, committed: Mapping[str, T], staged: Mapping[str, T]) -> T:
    found = None
    if choice.which != "Committed":
        found = staged.get(choice.id)
    if found is None and choice.which != "Uncommitted":
        found = committed.get(choice.id)
    if found is None:
        raise InvalidRequestError(
            "InvalidBlockList",
            "The specified block list is invalid.",
            hint="It names a block that is neither staged nor committed where it was looked for.",
        )
    return found


def _bad_id(reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        "InvalidQueryParameterValue",
        "Value for one of the query parameters specified in the request URI is invalid.",
        facts={"elements": [("QueryParameterName", "blockid"), ("Reason", reason)]},
    )
