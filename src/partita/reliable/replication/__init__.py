"""The log on a replicated stream, and the replicas that follow it."""
