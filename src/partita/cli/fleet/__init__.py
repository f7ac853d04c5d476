"""`partita fleet`: local fleets, ranges, shards, the balancer."""
