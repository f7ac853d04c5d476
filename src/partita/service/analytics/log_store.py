"""Writes logs into the container `$logs`, under names that no front end has used."""

from base64 import b64encode
from typing import Final

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules.limits import INLINE_BYTES_MAX
from partita.blobs.rules.model import (
    BlobName,
    BlockChoice,
    Conditions,
    Headers,
    Properties,
    Terms,
)
from partita.blobs.rules.names import LOGS
from partita.errors import ConfigurationError, ConflictError
from partita.service.analytics.log_blobs import Log, folder_of, name_of, number_after
from partita.service.analytics.recording import Recording

NAME_ATTEMPTS_MAX: Final = 100
"""Attempts to find a free name for a log, while other front ends write theirs."""
HOURS_KNOWN_MAX: Final = 4
"""Hours of which the number of the next log is remembered."""
_TEXT: Final = Headers(content_type="text/plain")
_NEW: Final = Terms(conditions=Conditions(if_none_match=("*",)))


async def put_log(blobs: BlobEngine, recording: Recording, log: Log) -> None:
    """Write a log under the first free number of its hour."""
    folder, numbers = folder_of(recording.service, log.hour), recording.numbers
    content = b"".join(log.lines)
    properties = Properties(_TEXT, log.metadata())
    for _ in range(NAME_ATTEMPTS_MAX):
        if log.hour not in numbers:
            numbers[log.hour] = await _next_number(blobs, folder)
        name = BlobName(LOGS, name_of(folder, numbers.pop(log.hour)))
        try:
            await _put(blobs, name, content, properties)
        except ConflictError as error:
            if error.code != "BlobAlreadyExists":
                raise
            continue  # another front end has used the number
        numbers[log.hour] = number_after(name.name)
        while len(numbers) > HOURS_KNOWN_MAX:
            del numbers[min(numbers)]
        return
    raise ConflictError(
        "BlobAlreadyExists", f"No free name was found for a log in {folder}.", hint="Retry."
    )


async def _next_number(blobs: BlobEngine, folder: str) -> int:
    """Return the number after that of the last log of an hour."""
    number, marker = 0, ""
    while True:
        listing = await blobs.containers.list_blobs(LOGS, prefix=folder, marker=marker)
        if listing.items:
            number = number_after(listing.items[-1].name)
        if listing.next_marker is None:
            return number
        marker = listing.next_marker


async def _put(blobs: BlobEngine, name: BlobName, content: bytes, properties: Properties) -> None:
    try:
        await blobs.put_blob(name, content, properties=properties, terms=_NEW)
    except ConfigurationError as error:
        if error.code != "BlobStoreMissing":
            raise
        await _put_in_blocks(blobs, name, content, properties)


async def _put_in_blocks(
    blobs: BlobEngine, name: BlobName, content: bytes, properties: Properties
) -> None:
    """Write a log where only short contents are stored: PostgreSQL without a blob store."""
    front, choices = blobs.store.new_id(), list[BlockChoice]()
    for start in range(0, len(content), INLINE_BYTES_MAX):
        # The ids are of this attempt: another front end may stage a log of the same name.
        block_id = b64encode(f"{front}{start:08}".encode()).decode()
        block = content[start : start + INLINE_BYTES_MAX]
        await blobs.block_blobs.put_block(name, block_id, block)
        choices.append(BlockChoice("Uncommitted", block_id))
    await blobs.block_blobs.put_block_list(name, choices, properties=properties, terms=_NEW)
