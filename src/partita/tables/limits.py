"""The limits of the table service, from the REST reference."""

KIB = 1024
MIB = 1024 * KIB

ENTITY_BYTES_MAX = 1 * MIB
PROPERTY_BYTES_MAX = 64 * KIB
KEY_CHARACTERS_MAX = 512
"""UTF-16 code units: the 1 KiB of the reference."""
PROPERTIES_MAX = 252
"""Custom properties; PartitionKey, RowKey and Timestamp make 255."""
BODY_MEMBERS_MAX = 1024
"""Members of the JSON object in a request, annotations and nulls included; counted before it is
decoded. An entity of 252 properties needs half of them."""
NESTED_BODY_BYTES_MAX = 64 * KIB
"""A longer body with an array or object in it is refused at the first one; of a body with too
many members, this much is decoded."""
PROPERTY_NAME_CHARACTERS_MAX = 255
TABLE_NAME_CHARACTERS_MIN = 3
TABLE_NAME_CHARACTERS_MAX = 63
GROUP_OPERATIONS_MAX = 100
GROUP_BYTES_MAX = 4 * MIB
TURN_MEMBERS_MAX = 5000
"""Members of the entities of a group; a group with more is applied in a thread."""
TURN_BYTES_MAX = 256 * KIB
"""Bytes of documents that are decoded in one turn of the event loop; more, in a thread."""
PAGE_ENTITIES_MAX = 1000
PAGE_BYTES_MAX = 4 * MIB
"""A page ends early if its documents exceed this size."""
PAGE_SECONDS_MAX = 5.0
"""A page ends early, perhaps empty, after this time."""
FILTER_DEPTH_MAX = 100
FILTER_CHARACTERS_MAX = 32 * KIB
SELECT_NAMES_MAX = 255
POLICIES_MAX = 5
POLICY_ID_CHARACTERS_MAX = 64
NUMBER_DIGITS_MAX = 64
