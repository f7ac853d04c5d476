"""The embedded blob store of an engine, for tests that look at its rows, files and collector."""

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.store.sqlite_store import SqliteBlobStore


def store_of(engine: BlobEngine) -> SqliteBlobStore:
    assert isinstance(engine.store, SqliteBlobStore)
    return engine.store
