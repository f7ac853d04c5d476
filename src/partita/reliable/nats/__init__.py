"""NATS JetStream: connection, streams, requests, local cluster."""
