"""The disk: log segments, the local log, checkpoints, increments, backup chains."""
