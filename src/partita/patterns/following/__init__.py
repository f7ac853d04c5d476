"""Work that follows a write: index rows, moves, transactions, done by workers."""
