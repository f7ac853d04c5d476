"""From conditions to requests, decided without I/O."""
