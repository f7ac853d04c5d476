"""`partita certificate`: a TLS certificate for development."""
