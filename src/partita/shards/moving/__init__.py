"""Online moves of shardlets: copy, catch up, fence, switch."""
