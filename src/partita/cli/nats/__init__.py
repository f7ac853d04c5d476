"""`partita nats`: the NATS cluster of a replicated state."""
