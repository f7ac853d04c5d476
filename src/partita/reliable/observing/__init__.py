"""Look at a reliable state without changing it: in a folder, on NATS, or open in this process."""
