"""`partita patterns`: check definitions, maintain indexes, run workers."""
