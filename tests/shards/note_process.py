"""A process that commits notes, one per transaction: `note_process.py CATALOG WRITER COMMITS`.

It prints the number of errors.
"""

import sys

from sqlalchemy.exc import DBAPIError

from partita.shards.maps.manager import ShardMapManager
from support.routed import Note


def main(catalog: str, writer: int, commits: int) -> None:
    errors = 0
    with ShardMapManager.open(catalog) as manager:
        make = manager.get_map("tenants").sessionmaker()
        for number in range(commits):
            try:
                with make.begin(5) as session:
                    session.add(Note(tenant_id=5, id=writer * 1_000 + number))
            except DBAPIError:
                errors += 1
    print("errors", errors)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
