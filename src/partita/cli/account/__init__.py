"""`partita account`: back up, restore and verify a whole account."""
