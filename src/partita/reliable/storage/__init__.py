"""The disk: log segments, the local log, checkpoints, backup chains."""
