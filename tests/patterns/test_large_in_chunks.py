"""Large values that are read and written in chunks, on request, and by signed addresses."""

import urllib.request
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Annotated, Any
from urllib.error import HTTPError

import pytest

from partita.errors import (
    BlobMissingError,
    ChecksumError,
    DefinitionError,
    ETagMismatchError,
    UsageError,
)
from partita.patterns import Database, InBlob, LargeValue, Table, entity, evolve, sync
from partita.patterns.protocol.calls import DeleteBlob, ListBlobs, PutBlob, ask
from partita.patterns.writing import chunks
from partita.service.hosting.in_process import LocalAccount
from support.live import LiveServer

FILM = bytes(range(256)) * 4


@entity(table="films", partition="{studio}", row="{title}")
class Film:
    studio: str
    title: str
    year: int = 0
    reel: Annotated[LargeValue | None, InBlob] = None
    poster: Annotated[bytes | None, InBlob] = None


@pytest.fixture
async def films(direct_db: Database) -> Table[Film]:
    table = direct_db.table(Film)
    await direct_db.create_tables()
    return table


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 100)


async def pieces(content: bytes, size: int = 33) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def shot(films: Table[Film], content: bytes = FILM) -> Film:
    film = await films.save(Film(studio="A", title="One"))
    return await films.large(film, "reel").write(pieces(content))


async def blobs(db: Database) -> list[str]:
    return [blob.name for blob in (await db.run(ask(ListBlobs("partita-large")))).blobs]


@pytest.mark.usefixtures("small_chunks")
async def test_a_value_is_written_and_read_in_chunks(films: Table[Film]) -> None:
    film = await shot(films)

    loaded = await films.get(studio="A", title="One")
    read = [chunk async for chunk in films.large(loaded, "reel").stream()]

    assert loaded.reel is not None
    assert loaded.reel == film.reel
    assert loaded.reel.length == len(FILM)
    assert (b"".join(read), max(map(len, read))) == (FILM, 100)


async def test_a_lazy_value_is_not_read_with_its_entity(
    direct_db: Database, films: Table[Film]
) -> None:
    await shot(films)

    with direct_db.measuring() as cost:
        film = await films.get(studio="A", title="One")
        [listed] = await films.partition(studio="A").all().list()

    assert cost.requests == 2
    assert film.reel == listed.reel


async def test_an_empty_value_is_a_value(films: Table[Film]) -> None:
    film = await shot(films, b"")

    assert await films.large(film, "reel").read() == b""


async def test_an_entity_keeps_a_value_that_it_does_not_read(
    direct_db: Database, films: Table[Film]
) -> None:
    film = await shot(films)

    with direct_db.measuring() as cost:
        film = await films.save(evolve(film, year=1927))
    await direct_db.drain()

    assert cost.requests == 1
    assert await films.large(film, "reel").read() == FILM


async def test_a_replaced_value_is_removed_and_the_new_one_kept(
    direct_db: Database, films: Table[Film]
) -> None:
    film = await shot(films)
    film = await films.large(film, "reel").write(pieces(b"new"))
    await direct_db.drain()

    assert await films.large(film, "reel").read() == b"new"
    assert len(await blobs(direct_db)) == 1


async def test_a_conflicting_write_leaves_the_stored_value(
    direct_db: Database, films: Table[Film]
) -> None:
    film = await shot(films)
    await films.save(evolve(film, year=1927))

    with pytest.raises(ETagMismatchError):
        await films.large(film, "reel").write(pieces(b"late"))
    await direct_db.drain()

    assert await films.large(await films.get(studio="A", title="One"), "reel").read() == FILM


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("key", [{"title": "Two"}, {"studio": "B"}])
async def test_a_move_takes_a_value_along(
    direct_db: Database, films: Table[Film], key: dict[str, str]
) -> None:
    film = await shot(films)

    moved = await films.move(film, **key)
    await direct_db.drain()

    assert await films.large(moved, "reel").read() == FILM
    assert len(await blobs(direct_db)) == 1


async def test_two_entities_never_share_a_blob(direct_db: Database, films: Table[Film]) -> None:
    film = await shot(films)
    copy = await films.save(Film(studio="A", title="Copy", reel=film.reel))

    await films.delete(film)
    await direct_db.drain()

    assert await films.large(copy, "reel").read() == FILM


@pytest.mark.usefixtures("small_chunks")
async def test_a_changed_blob_is_found_at_the_end_of_a_stream(
    direct_db: Database, films: Table[Film]
) -> None:
    film = await shot(films)
    assert film.reel is not None
    changed = PutBlob(film.reel.container, film.reel.name, FILM[:-1] + b"!")
    await direct_db.run(ask(DeleteBlob(film.reel.container, film.reel.name)))
    with pytest.raises(BlobMissingError):
        await films.large(film, "reel").read()
    await direct_db.run(ask(changed))

    with pytest.raises(ChecksumError):
        await films.large(film, "reel").read()


async def test_a_value_in_memory_can_be_streamed_but_not_written_in_chunks(
    films: Table[Film],
) -> None:
    film = await films.save(Film(studio="A", title="One", poster=b"poster"))
    poster = films.large(film, "poster")

    assert await poster.read() == b"poster"
    with pytest.raises(UsageError, match="holds its value in memory"):
        await poster.write(pieces(b"new"))


@pytest.mark.parametrize("name", ["title", "reel"])
async def test_a_field_without_a_large_value_is_refused(films: Table[Film], name: str) -> None:
    film = await films.save(Film(studio="A", title="One"))

    with pytest.raises(UsageError) as caught:
        await films.large(film, name).read()

    assert caught.value.code == "NotALargeValue"


def test_a_large_value_outside_a_blob_is_refused() -> None:
    space = {"__annotations__": {"id": int, "value": LargeValue}}

    with pytest.raises(DefinitionError, match="stored in a blob"):
        entity(table="bad", partition="{id:04d}", row="x")(type("Bad", (), space))


def test_the_address_of_a_value_reads_it_for_a_limited_time(served: LiveServer) -> None:
    with sync.connect(served.connection_string) as db:
        films = db.table(Film)
        db.create_tables()
        film = films.upsert(Film(studio="A b", title="One's", poster=b"the poster"))

        url = films.large(film, "poster").url(timedelta(minutes=5))

        with urllib.request.urlopen(url) as answer:
            assert answer.read() == b"the poster"
        with pytest.raises(HTTPError) as refused:
            urllib.request.urlopen(url.replace("sig=", "sig=A"))
        assert refused.value.code == 403
        refused.value.close()
        with pytest.raises(UsageError):
            films.large(film, "poster").url(timedelta(0))
        db.drop_tables()


def test_the_synchronous_api_writes_a_file(partita_account: LocalAccount, tmp_path: Any) -> None:
    (tmp_path / "film").write_bytes(FILM)

    def blocks() -> Iterator[bytes]:
        with (tmp_path / "film").open("rb") as file:
            while block := file.read(100):
                yield block

    with sync.connect(partita_account) as db:
        films = db.table(Film)
        db.create_tables()
        film = films.large(films.save(Film(studio="A", title="One")), "reel").write(blocks())

        assert b"".join(films.large(film, "reel").stream()) == FILM
