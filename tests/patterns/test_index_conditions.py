"""Indexes with a condition on a value that is stored in a blob."""

from typing import Annotated

import pydantic
import pytest

from partita.patterns import Database, InBlob, entity, evolve, index
from support.entities import rows


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


@entity(table="albums", partition="{owner}", row="a_{id:04d}")
class Album(pydantic.BaseModel):
    owner: str
    id: int
    cover: Annotated[bytes | None, InBlob] = None
    is_public: bool = False


public = index(Album, row="public_{id:04d}", where=lambda album: album.is_public)


covered = index(Album, row="covered_{id:04d}", where=lambda album: album.cover is not None)


empty_cover = index(
    Album,
    row="large_{id:04d}",
    where=lambda album: album.cover is not None and len(album.cover) > 3,
)


async def test_a_condition_sees_the_same_before_and_after_of_a_value_in_a_blob(
    db: Database,
) -> None:
    albums = db.table(Album)
    await db.create_tables()
    await albums.save(Album(owner="o", id=1, cover=b"a long cover"))

    loaded = await albums.get(owner="o", id=1)
    await albums.save(evolve(loaded, is_public=True))
    loaded = await albums.get(owner="o", id=1)
    await albums.save(evolve(loaded, is_public=False))
    await db.drain()

    assert await db.verify(Album) == []
    assert [each.id for each in await albums.via(covered).range(owner="o").list()] == [1]
    await albums.delete(await albums.get(owner="o", id=1))
    await db.drain()
    assert [row.row_key for row in await rows(db, "albums")] == []
