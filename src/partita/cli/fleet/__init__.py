"""`partita fleet`: the PostgreSQL store of several front ends."""
