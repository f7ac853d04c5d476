"""The durability of acknowledged writes: the one setting that all stores have."""

import enum


class Durability(enum.Enum):
    """The durability of an acknowledged write."""

    FULL = "full"
    """It is on disk: it survives power loss if the disk honours sync."""
    FAST = "fast"
    """It survives a kill of the process; power loss may lose the last writes, each as a whole."""
