"""Block lists: the ids of blocks, and the blocks that a list to commit names. Pure."""

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import TypeVar

from partita.blobs.rules import limits
from partita.blobs.rules.model import BlockChoice
from partita.errors import ConflictError, InvalidRequestError
from partita.refusals import invalid_header, invalid_parameter, too_many_blocks_in_list

T = TypeVar("T")


def check_block_id(block_id: str, others: str | None) -> str:
    """Check a block id; `others` is another id of the blob: all have the same length."""
    try:
        decoded = b64decode(block_id, validate=True)
    except (binascii.Error, ValueError):
        raise _bad_id("A block id must be base64.") from None
    if not 1 <= len(decoded) <= limits.BLOCK_ID_BYTES_MAX:
        raise _bad_id("A block id must be the base64 of 1 to 64 bytes.")
    if others is not None and len(others) != len(block_id):
        raise InvalidRequestError(
            "InvalidBlobOrBlock",
            "The specified blob or block content is invalid.",
            hint="Use block ids of the same length for all blocks of a blob.",
        )
    return block_id


def resolve(
    choices: Sequence[BlockChoice], committed: Mapping[str, T], staged: Mapping[str, T]
) -> list[T]:
    """Return the blocks of a list, in order."""
    if len(choices) > limits.BLOCKS_COMMITTED_MAX:
        raise too_many_blocks_in_list()
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
            hint="Stage each block before the list that commits it.",
        )
    return found


def refuse_empty(size: int) -> None:
    if size == 0:
        raise invalid_header("Content-Length", "0")


def too_many_blocks(what: str, most: int) -> ConflictError:
    return ConflictError(
        "BlockCountExceedsLimit",
        f"The {what} cannot exceed the maximum limit of {most:,} blocks.",
    )


def _bad_id(reason: str) -> InvalidRequestError:
    return invalid_parameter("blockid", reason=reason)
