"""NATS JetStream: connection, streams, local cluster."""
