"""`partita messages`: what is in queues, and messages back to work."""
