"""Page blobs: listing, short ranges, sequence numbers."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partita.blobs.store.rows import BlobRows
from partita.errors import InvalidRequestError
from support.blob_engines import NAME, opened

if TYPE_CHECKING:
    from partita.blobs.store.contract import PieceRow


async def test_a_page_blob_is_listed_from_a_place_that_no_blob_can_reach(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.page_blobs.create_page_blob(NAME, 1024)
        pages = await engine.page_blobs.page_ranges(NAME, first=10**19, last=10**20)
        assert (pages.ranges, pages.next_first) == ([], None)


async def test_a_short_range_of_a_page_blob_reads_only_the_rows_of_its_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[PieceRow] = []
    pieces = BlobRows.pieces

    def noted(rows: BlobRows, content: int, first: int, end: int, limit: int = -1) -> object:
        found.extend(pieces(rows, content, first, end, limit))
        return pieces(rows, content, first, end, limit)

    async with opened(tmp_path) as engine:
        await engine.page_blobs.create_page_blob(NAME, 512 * 20)
        for page in range(0, 20, 2):
            await engine.page_blobs.put_pages(NAME, 512 * page, b"x" * 512, last=512 * page + 511)
        monkeypatch.setattr(BlobRows, "pieces", noted)
        got = await engine.open_blob(NAME, first=500, last=1030)
        content = b"".join([part async for part in got.content])
        await got.content.close()
        assert content == b"x" * 12 + bytes(512) + b"x" * 7
        assert [piece.place for piece in found] == [0, 1024]


async def test_a_page_blob_has_a_sequence_number_from_its_beginning_that_fits(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as engine:
        with pytest.raises(InvalidRequestError, match="InvalidHeaderValue"):
            await engine.page_blobs.create_page_blob(NAME, 512, sequence_number=2**63)
