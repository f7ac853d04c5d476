"""`partita top`: a live view of a server in the terminal, over its operations endpoint."""
