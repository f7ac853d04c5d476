"""`partita console`: the console of any account."""
