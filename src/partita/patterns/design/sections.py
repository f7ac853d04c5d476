"""The sections of the design guide that advice refers to, and the pages about them."""

import enum


class Section(enum.Enum):
    """A section of the guide."""

    GUIDELINES = ("Guidelines for table design", "guidelines.md")
    QUERY_KINDS = (
        "How your choice of PartitionKey and RowKey impacts query performance",
        "design-for-querying.md",
    )
    PARTITION_KEY = ("Choosing an appropriate PartitionKey", "choosing-keys.md")
    SORTING = ("Sorting data in the Table service", "sorting.md")
    INTRA_INDEX = ("Intra-partition secondary index pattern", "intra-partition-index.md")
    INTER_INDEX = ("Inter-partition secondary index pattern", "inter-partition-index.md")
    INDEX_ENTITIES = ("Index entities pattern", "index-entities.md")
    COMPOUND_KEY = ("Compound key pattern", "compound-key.md")
    LOG_TAIL = ("Log tail pattern", "log-tail.md")
    PREPEND_APPEND = ("Prepend/append anti-pattern", "prepend-append.md")
    LOGS = ("Log data anti-pattern", "log-data.md")
    COST = ("Cost considerations", "plans-and-costs.md")

    @property
    def title(self) -> str:
        return self.value[0]

    @property
    def page(self) -> str:
        """The page about it, in docs/patterns."""
        return self.value[1]
