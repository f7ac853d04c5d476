"""What the blob operations do on a store."""
