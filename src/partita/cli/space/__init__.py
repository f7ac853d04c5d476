"""`partita tables` and `partita compact`: the space that accounts take."""
