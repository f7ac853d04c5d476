"""Every documented limit of the blob service, named, and our own.

Source: REST reference, "Scalability targets for Blob storage" and "Naming and referencing
containers, blobs, and metadata". Limits that differ by protocol version belong to the wire.
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
"""How long a staged block waits for a commit since the last one was staged."""

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
"""Content up to this size lies in the database, longer content in a file; one chunk at most."""
CHUNK_BYTES = 64 * KIB
"""Content is verified on read in chunks of this size."""
SLAB_BYTES = MIB
"""What a thread writes and hashes at a time while an upload arrives."""
READ_BYTES = 2 * MIB
"""What a thread reads at a time while a download leaves: each turn costs 0.1 ms, however short."""
