"""The log as a stream on a quorum, and the replicas that follow it."""
