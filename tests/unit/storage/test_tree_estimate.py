"""The rows of one number are estimated from few pages of the tree, and garbage is not trusted."""

import contextlib
import os
import random
from collections.abc import Iterator

import apsw
import pytest

from partita.storage.tree_estimate import ReadPage, Rows, estimate_rows, file_pages

PAGE_BYTES = 8192
COUNTS = {1: 300, 2: 40_000, 3: 0, 4: 9_000, 5: 1, 900_000_000_000: 5_000}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ReadPage, int]]:
    path = tmp_path_factory.mktemp("tree") / "rows.sqlite"
    chance = random.Random(1)
    with contextlib.closing(apsw.Connection(str(path))) as database:
        database.pragma("page_size", PAGE_BYTES)
        database.execute(
            "CREATE TABLE entity (tid INTEGER, name TEXT, document BLOB, PRIMARY KEY (tid, name))"
            " WITHOUT ROWID"
        )
        with database:
            for number, count in COUNTS.items():
                database.executemany(
                    "INSERT INTO entity VALUES (?, ?, zeroblob(?))",
                    [(number, f"{row:08}", chance.randrange(200, 600)) for row in range(count)],
                )
        root = database.execute("SELECT rootpage FROM sqlite_schema").get
    descriptor = os.open(path, os.O_RDONLY)
    yield file_pages(descriptor, PAGE_BYTES), int(root)
    os.close(descriptor)


@pytest.mark.parametrize("number", COUNTS)
def test_estimate_is_near_the_count(tree: tuple[ReadPage, int], number: int) -> None:
    read, root = tree

    rows = estimate_rows(read, root, number)

    assert rows.number == pytest.approx(COUNTS[number], rel=0.1, abs=0)
    assert rows.size == pytest.approx(COUNTS[number] * 415, rel=0.15, abs=650)


def test_few_pages_are_read(tree: tuple[ReadPage, int]) -> None:
    read, root = tree
    places: list[int] = []

    def counted(place: int) -> bytes:
        places.append(place)
        return read(place)

    estimate_rows(counted, root, 2)

    assert len(places) < 200 < COUNTS[2] * 415 // PAGE_BYTES


def test_pages_that_are_missing_or_garbage_count_as_nothing(tree: tuple[ReadPage, int]) -> None:
    read, root = tree
    chance = random.Random(2)

    def garbage(place: int) -> bytes:
        return b"\x02" + chance.randbytes(PAGE_BYTES - 1) if place != root else read(place)

    assert estimate_rows(lambda _place: b"", root, 2) == Rows(0, 0)
    for number in COUNTS:
        assert estimate_rows(garbage, root, number).number >= 0
