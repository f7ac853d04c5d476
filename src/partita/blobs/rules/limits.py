"""The limits of the blob service, and those of Partita.

Source: REST reference, "Scalability targets for Blob storage" and "Naming and referencing
containers, blobs, and metadata". Limits that depend on the protocol version are in the service.
"""

KIB = 1024
MIB = 1024 * KIB

BLOB_NAME_CHARACTERS_MAX = 1024
BLOB_NAME_SEGMENTS_MAX = 254
CONTAINER_NAME_CHARACTERS_MIN = 3
CONTAINER_NAME_CHARACTERS_MAX = 63
METADATA_BYTES_MAX = 8 * KIB
TAGS_MAX = 10
TAG_KEY_CHARACTERS_MAX = 128
TAG_VALUE_CHARACTERS_MAX = 256
SEARCH_CHARACTERS_MAX = 2 * KIB
"""The longest expression of a search by tags."""
SEARCHED_BLOBS_MAX = 10_000
"""Blobs with tags that one page of a search looks at."""
ENCRYPTION_SCOPE_CHARACTERS_MAX = 63
POLICIES_MAX = 5
LIST_ITEMS_MAX = 5000

PUT_BLOB_BYTES_MAX = 5000 * MIB
BLOCK_BYTES_MAX = 4000 * MIB
APPEND_BYTES_MAX = 100 * MIB
BLOCK_ID_BYTES_MAX = 64
BLOCKS_COMMITTED_MAX = 50_000
BLOCKS_STAGED_MAX = 100_000
APPENDED_BLOCKS_MAX = 50_000
STAGED_SECONDS_MAX = 7 * 24 * 3600
"""How long staged blocks are kept after the last one was staged."""

PAGE_BYTES = 512
PAGE_BLOB_BYTES_MAX = 8 * 1024 * 1024 * MIB
PUT_PAGES_BYTES_MAX = 4 * MIB

LEASE_SECONDS_MIN = 15
LEASE_SECONDS_MAX = 60
LEASE_INFINITE = -1
LEASE_BREAK_SECONDS_MAX = 60

RANGE_MD5_BYTES_MAX = 4 * MIB
"""The longest range whose MD5 or CRC64 a download computes."""

INLINE_BYTES_MAX = 64 * KIB
"""Content up to this size is stored in the database, longer content in a file; one chunk."""
CHUNK_BYTES = 64 * KIB
"""Content is verified on read in chunks of this size."""
SLAB_BYTES = MIB
"""The bytes that a thread writes and hashes at a time during an upload."""
READ_BYTES = 2 * MIB
"""The bytes that a thread reads at a time during a download: each call costs 0.1 ms."""
