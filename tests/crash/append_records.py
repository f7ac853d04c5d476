"""A process that appends records to a log and tells each acknowledgement: for others to fail.

`python append_records.py FOLDER COUNT [alone]` prints the sequence of each acknowledged record,
and `stopped` with the class of the error when the log gives up; then it tries twice more.
"""

import asyncio
import sys
from pathlib import Path

from partita.errors import PartitaError
from partita.reliable.state.records import FORMAT, Entry, Put, Record, encode_record
from partita.reliable.storage.local_log import LocalLog
from partita.reliable.storage.os_disk import OsDisk


async def work(folder: Path, count: int, *, alone: bool) -> None:
    log = await LocalLog.open(OsDisk(folder), segment_bytes=4000)
    refused = 0
    while log.last < count and refused < 3:
        sequence, previous, epoch = log.tip
        entry = Entry("tx", [Put(1, b"key", b"v" * (sequence % 300))])
        raw = encode_record(Record(FORMAT, epoch, sequence + 1, previous, 0, "", [entry]))
        try:
            await log.append(sequence + 1, raw, alone=alone)
        except PartitaError as error:
            refused += 1
            print("stopped", type(error).__name__, flush=True)
        else:
            print(sequence + 1, flush=True)
    await log.close()


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2]), alone="alone" in sys.argv))
